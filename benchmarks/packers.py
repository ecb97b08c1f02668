"""Runs one packer once, in a process of its own, and prints how long it took.

    python -m benchmarks.packers NAME LIST ROOT OUT BYTES
    python -m benchmarks.packers versions

The peers' interpreters run this module too, so packtrain is imported only if it is the packer. Each packer is used
as its own documentation shows. Its imports run before the clock starts.
"""

from __future__ import annotations

import importlib
import json
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from benchmarks.memory import touch_memory
from benchmarks.torchvision_import import import_torchvision

SHARD_BYTES: Final = 64 << 20
"""Target size of every packer's shards, in bytes: the default of MDSWriter."""

Pack = Callable[[Path, Path, Path], None]
"""Packs the images of a list into a folder: called with the list, the folder that its paths are relative to, and the
output folder."""


def packtrain(format_name: str, workers: int, mode: str = "verbatim") -> Pack:
    from packtrain import PackOptions, StoreOptions, pack

    importlib.import_module(f"packtrain._formats.{format_name}.writer")

    def run(images: Path, root: Path, out: Path) -> None:
        store = StoreOptions(store=mode)
        options = PackOptions(format=format_name, root=root, shard_size=SHARD_BYTES, store=store)
        pack(images, out, options, num_workers=workers)

    return run


def packtrain_samples() -> Pack:
    """The same images as samples that come one by one, from a generator that reads the files."""
    from packtrain import PackOptions, StoreOptions, pack

    importlib.import_module("packtrain._packer.stream")

    def run(images: Path, root: Path, out: Path) -> None:
        def samples() -> Iterator[dict[str, bytes | int]]:
            for _, path, label in _samples(images, root):
                with open(path, "rb", buffering=0) as file:
                    yield {"image": file.read(), "label": label}

        pack(samples(), out, PackOptions(format="tar", shard_size=SHARD_BYTES, store=StoreOptions("verbatim")))

    return run


def packtrain_parquet(mode: str) -> Pack:
    """The same images from Parquet files, which are where the list would be."""
    from packtrain import PackOptions, StoreOptions, pack

    importlib.import_module("packtrain._packer.hugging_face")
    importlib.import_module("packtrain._formats.tar.writer")
    importlib.import_module("pyarrow.parquet")

    def run(images: Path, root: Path, out: Path) -> None:
        pack(images, out, PackOptions(shard_size=SHARD_BYTES, store=StoreOptions(mode)))

    return run


def load_dataset() -> Pack:
    """The cache of Arrow files that `datasets` writes, which holds the bytes of the images as they are."""
    import_torchvision()
    import datasets

    datasets.disable_progress_bars()

    def run(images: Path, root: Path, out: Path) -> None:
        files = sorted(map(str, images.glob("*.parquet")))
        datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(out))

    return run


def shard_writer() -> Pack:
    import webdataset

    def run(images: Path, root: Path, out: Path) -> None:
        out.mkdir()
        with webdataset.ShardWriter(f"{out}/train-%06d.tar", maxsize=SHARD_BYTES, verbose=0) as sink:
            for number, path, label in _samples(images, root):
                with open(path, "rb") as file:
                    data = file.read()
                sink.write({"__key__": f"{number:09d}", "jpg": data, "cls": label})

    return run


def mds_writer() -> Pack:
    import_torchvision()
    from streaming import MDSWriter

    def run(images: Path, root: Path, out: Path) -> None:
        columns = {"image": "bytes", "label": "int"}
        with MDSWriter(out=str(out), columns=columns, size_limit=SHARD_BYTES) as sink:
            for _, path, label in _samples(images, root):
                with open(path, "rb") as file:
                    data = file.read()
                sink.write({"image": data, "label": label})

    return run


def plain_copy() -> Pack:
    """The least that a packer can do: read every file and write its bytes."""

    def run(images: Path, root: Path, out: Path) -> None:
        with open(out, "wb", buffering=0) as sink:
            for _, path, _ in _samples(images, root):
                with open(path, "rb", buffering=0) as file:
                    sink.write(file.read())

    return run


# In the order in which they run: packers that are compared run close together.
PACKERS: Final[dict[str, Callable[[], Pack]]] = {
    "webdataset ShardWriter": shard_writer,
    "packtrain tar": lambda: packtrain("tar", 1),
    "packtrain tar, one by one": packtrain_samples,
    "streaming MDSWriter": mds_writer,
    "packtrain hdf5": lambda: packtrain("hdf5", 1),
    "packtrain lmdb": lambda: packtrain("lmdb", 1),
    "packtrain tar, 2 workers": lambda: packtrain("tar", 2),
    "packtrain hdf5, 2 workers": lambda: packtrain("hdf5", 2),
    "packtrain lmdb, 2 workers": lambda: packtrain("lmdb", 2),
    "packtrain tar, crop-ready, 2 workers": lambda: packtrain("tar", 2, "crop-ready"),
    "packtrain tar, coefficients, 2 workers": lambda: packtrain("tar", 2, "coefficients"),
    "read and write only": plain_copy,
}
FROM_PARQUET: Final[dict[str, Callable[[], Pack]]] = {
    "datasets, load_dataset": load_dataset,
    "packtrain, verbatim": lambda: packtrain_parquet("verbatim"),
    "packtrain, crop-ready": lambda: packtrain_parquet("crop-ready"),
}


def _samples(images: Path, root: Path) -> Iterator[tuple[int, str, int]]:
    """Number, path and label of each line."""
    with open(images) as lines:
        for number, line in enumerate(lines):
            path, label = line.rsplit(None, 1)
            yield number, f"{root}/{path}", int(label)


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    if sys.argv[1] == "versions":
        found = {"python": platform.python_version()}
        for name in ("mosaicml-streaming", "numpy", "torch", "webdataset"):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        print(json.dumps(found))
        return
    name, images, root, out, size = sys.argv[1:]
    try:
        pack = (PACKERS | FROM_PARQUET)[name]()
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    touch_memory(Path(out).with_name("touch"), int(size))
    started, used = time.perf_counter(), processor_seconds()
    pack(Path(images), Path(root), Path(out))
    print(json.dumps({"seconds": time.perf_counter() - started, "cpu_seconds": processor_seconds() - used}))


if __name__ == "__main__":
    main()
