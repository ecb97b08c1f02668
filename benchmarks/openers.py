"""Opens a dataset once, in a process of its own, and prints how long it took and how much memory it added.

    python -m benchmarks.openers (write | open) NAME FOLDER RECORDS

The peers' interpreters run this module too, so packtrain is imported only if its dataset is opened. Imports run before
the clock starts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import FFCV, LITDATA, PACKTRAIN, STREAMING
from benchmarks.peers.common import SHARD_BYTES, WORKERS
from benchmarks.torchvision_import import import_torchvision

FILES: Final = "a Python list of paths"
RECORD: Final = bytes(100)
NAME: Final = "n00000000/n00000000_%08d.JPEG"

Open = Callable[[Path], Sized]


def _packtrain() -> Open:
    from packtrain import open_dataset

    return open_dataset


def _files() -> Open:
    from benchmarks.peers.common import files

    return files


def _ffcv() -> Open:
    from ffcv.reader import Reader

    def opened(folder: Path) -> Sized:
        reader = Reader(str(folder / "data.beton"))
        return _Kept(reader, int(reader.num_samples))

    return opened


def _streaming() -> Open:
    import_torchvision()
    from streaming import StreamingDataset

    return lambda folder: StreamingDataset(local=str(folder / "mds"), batch_size=1)


def _litdata() -> Open:
    from litdata import StreamingDataset

    return lambda folder: StreamingDataset(str(folder / "litdata"))


OPENERS: Final[dict[str, Callable[[], Open]]] = {
    PACKTRAIN: _packtrain,
    FILES: _files,
    FFCV: _ffcv,
    STREAMING: _streaming,
    LITDATA: _litdata,
}


class _Kept:
    """Gives a length to an object that has none."""

    def __init__(self, what: object, length: int) -> None:
        self.what = what
        self.length = length

    def __len__(self) -> int:
        return self.length


def write(name: str, folder: Path, records: int) -> None:
    """Writes a dataset of small records; packtrain's is made by `benchmarks.open`."""
    if name == FILES:
        (folder / "train.txt").write_text("".join(f"{NAME % number} {number % 1000}\n" for number in range(records)))
    elif name == FFCV:
        _write_ffcv(folder, records)
    elif name == STREAMING:
        _streaming()
        from streaming import MDSWriter

        columns = {"image": "bytes", "label": "int"}
        with MDSWriter(out=str(folder / "mds"), columns=columns, size_limit=SHARD_BYTES) as sink:
            for number in range(records):
                sink.write({"image": RECORD, "label": number})
    elif name == LITDATA:
        from litdata import optimize

        options: dict[str, Any] = {"chunk_bytes": "64MB", "num_workers": WORKERS}
        optimize(fn=_item, inputs=list(range(records)), output_dir=str(folder / "litdata"), **options)


def _item(number: int) -> dict[str, Any]:
    return {"image": RECORD, "label": number}


def _write_ffcv(folder: Path, records: int) -> None:
    import numpy as np
    from ffcv.fields import BytesField, IntField
    from ffcv.writer import DatasetWriter

    class Samples:
        def __len__(self) -> int:
            return records

        def __getitem__(self, row: int) -> tuple[Any, int]:
            return np.frombuffer(RECORD, np.uint8), row

    fields = {"image": BytesField(), "label": IntField()}
    DatasetWriter(str(folder / "data.beton"), fields, num_workers=WORKERS).from_indexed_dataset(Samples())


def measured(opener: Open, folder: Path, records: int) -> dict[str, float]:
    """Seconds until a dataset is open, and the private memory that it added, in bytes."""
    before = _private()
    started = time.perf_counter()
    dataset = opener(folder)
    found = len(dataset)
    seconds = time.perf_counter() - started
    if found != records:
        raise RuntimeError(f"{found} records, not {records}")
    return {"seconds": seconds, "private_bytes": _private() - before}


def _private() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def main() -> None:
    what, name, place, count = sys.argv[1:]
    folder, records = Path(place), int(count)
    try:
        opener = OPENERS[name]()
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    if what == "write":
        write(name, folder, records)
        print("{}")
    else:
        print(json.dumps(measured(opener, folder, records)), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
