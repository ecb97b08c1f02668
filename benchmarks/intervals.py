"""How long restart intervals should be: bytes, and time to decode a RandomResizedCrop, for several least lengths.

The extension is compiled anew for each, with another INTERVAL_BYTES; that takes a C compiler and libjpeg's headers.
"""

from __future__ import annotations

import subprocess
import sysconfig
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from benchmarks.crops import SEED, TRAIN, file_paths, microseconds, one_thread
from benchmarks.measure import (
    ROOT,
    alternate,
    describe_list,
    medians,
    pillow_build,
    print_table,
    ratio,
    real_list,
    scratch,
)
from benchmarks.transcoding import transcodable
from packtrain._codec.cut import cut
from packtrain._codec.decode import EncodedImage, RecordDecoder
from packtrain._codec.decoders import decoder
from packtrain._codec.decoders.extension import frame_size
from packtrain._codec.geometry import Box, Crop
from packtrain._core.options import StoreOptions

REPETITIONS: Final = 9
WHOLE_ROWS: Final = 1 << 30
LEAST_BYTES: Final = (WHOLE_ROWS, 3000, 1500, 1000, 700, 600, 500, 350, 200)
DECODERS: Final = ("extension", "pillow", "simplejpeg")


def measure() -> dict[str, Any]:
    one_thread()
    images = real_list()
    files = transcodable([Path(path).read_bytes() for path in file_paths(images)])
    boxes = _boxes(files)
    records: dict[str, list[memoryview]] = {}
    with scratch() as folder:
        for least in LEAST_BYTES:
            transcode = build(folder, least).transcode
            records[_name(least)] = [memoryview(transcode(data)) for data in files]
    cases: dict[str, Callable[[], float]] = {}
    for name in DECODERS:
        region = partial(_region, RecordDecoder(StoreOptions(), decoder(name)))
        for length, stored in records.items():
            cases[f"{name}, {length}"] = partial(microseconds, region, list(zip(stored, boxes, strict=True)))
    samples = alternate(cases, REPETITIONS)
    before = sum(map(len, files))
    return {
        **pillow_build(),
        "input": {**describe_list(images), "transcoded": len(files)},
        "settings": {"repetitions": REPETITIONS, "warm_up": 1, "order": "alternating", "threads": 1},
        "bytes_out_over_in": {name: sum(map(len, stored)) / before for name, stored in records.items()},
        "bytes_of_cuts_over_in": {name: _cut_bytes(stored, boxes) / before for name, stored in records.items()},
        "mean_table_bytes": {name: _table_bytes(stored) for name, stored in records.items()},
        "microseconds": samples,
        "median_microseconds": medians(samples),
        "time_over_whole_rows": {
            case: ratio(figures, samples[f"{case.split(',')[0]}, {_name(WHOLE_ROWS)}"])
            for case, figures in samples.items()
        },
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    rows = []
    for name, size in result["bytes_out_over_in"].items():
        row = [
            name,
            f"{size:.4f}",
            f"{result['bytes_of_cuts_over_in'][name]:.3f}",
            f"{result['mean_table_bytes'][name]:.0f}",
        ]
        for decoder_name in DECODERS:
            case = f"{decoder_name}, {name}"
            row.append(f"{result['median_microseconds'][case]:.0f} ({result['time_over_whole_rows'][case]:.3f})")
        rows.append(row)
    header = ["least bytes of an interval", "bytes out / in", "bytes cut / in", "bytes of a table"]
    print_table([*header, *(f"{name}, us (over whole rows)" for name in DECODERS)], rows)


def build(folder: Path, least: int) -> ModuleType:
    """The extension, compiled into `folder` for intervals of at least so many bytes."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]
    library = folder / f"_extension_{least}.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-DNDEBUG", f"-DINTERVAL_BYTES={least}", "-o", str(library)]
    command += [f"-I{sysconfig.get_path('include')}", *described["sources"]]
    command += [f"-l{name}" for name in described["libraries"]]
    subprocess.run(command, cwd=ROOT, check=True)
    # The last part of the name says which function initialises the module; the first keeps it apart from the real one.
    loader = ExtensionFileLoader(f"interval_{least}._extension", str(library))
    spec = spec_from_loader(loader.name, loader, origin=str(library))
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def _boxes(files: Sequence[bytes]) -> list[tuple[int, int, Box]]:
    """Of each image width, height, and a random crop."""
    torch.manual_seed(SEED)
    boxes = []
    for data in files:
        width, height = frame_size(data)
        crop, _ = TRAIN.operations(width, height, torch.rand(TRAIN.draws, dtype=torch.float64).tolist())
        assert isinstance(crop, Crop)
        boxes.append((width, height, crop.box))
    return boxes


def _region(records: RecordDecoder, work: tuple[memoryview, tuple[int, int, Box]]) -> object:
    record, (width, height, box) = work
    return records.region(EncodedImage(record, width, height), box)


def _cut_bytes(records: Sequence[memoryview], boxes: Sequence[tuple[int, int, Box]]) -> int:
    parts = [cut(record, box) for record, (_, _, box) in zip(records, boxes, strict=True)]
    return sum(len(part.data) for part in parts if part is not None)


def _table_bytes(records: Sequence[memoryview]) -> float:
    """Mean bytes of a table with its segment."""
    return sum(len(table_segment(record)) for record in records) / len(records)


def table_segment(record: memoryview) -> memoryview:
    """The segment that holds a crop-ready record's table: the first one, but for JFIF's."""
    start = 2 if record[3] != 0xE0 else 4 + int.from_bytes(record[4:6])
    return record[start : start + 2 + int.from_bytes(record[start + 2 : start + 4])]


def _name(least: int) -> str:
    return "whole rows" if least == WHOLE_ROWS else str(least)
