"""Reading one record as a memoryview, with and without its check, in all formats, from warm memory."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from benchmarks.measure import (
    alternate,
    describe_list,
    kind_of,
    medians,
    print_table,
    ratio,
    real_list,
    scratch,
    target,
)
from packtrain import PackOptions, open_dataset, pack
from packtrain._core.options import StoreOptions
from packtrain._readers.formats import FORMATS

REPETITIONS: Final = 51
"""Many short ones, of some milliseconds each: what is compared runs close together."""
WARM_PASSES: Final = 8
"""Passes before the one that is timed. A large shared cache needs several until it keeps what it sees; with fewer, what
runs later is faster, whatever it is."""
WAYS: Final = ("mmap", "pread")
STEPS: Final = ("unchecked", "checked", "crc32c alone")


def measure() -> dict[str, Any]:
    images = real_list()
    with scratch() as folder:
        cases: dict[str, Callable[[], float]] = {}
        for format_name in FORMATS:
            options = PackOptions(format=format_name, root=images.parent, store=StoreOptions(store="verbatim"))
            pack(images, folder / format_name, options)
            for io in WAYS:
                cases.update(_cases(folder / format_name, io))
        samples = alternate(cases, REPETITIONS)
        output = kind_of(folder)
    middle = medians(samples)
    factor = {
        key: _check_over_checksum(*(samples[f"{key} {step}"] for step in STEPS))
        for key in (f"{format_name} {io}" for format_name in FORMATS for io in WAYS)
    }
    return {
        "input": describe_list(images),
        "output": output,
        "settings": {"repetitions": REPETITIONS, "warm_up": 1, "order": "alternating"},
        "microseconds": samples,
        "median_microseconds": middle,
        "ratios": factor,
        "targets": [
            bound
            for format_name in FORMATS
            for bound in (
                target(f"{format_name}: record() unchecked, us", middle[f"{format_name} mmap unchecked"], most=5),
                target(f"{format_name}: cost of the check over crc32c alone", factor[f"{format_name} mmap"], most=1.2),
            )
        ],
    }


def show(result: dict[str, Any]) -> None:
    rows = []
    for key, factor in result["ratios"].items():
        figures = [f"{result['median_microseconds'][f'{key} {step}']:.2f}" for step in STEPS]
        rows.append([key, *figures, f"{factor:.2f}"])
    print_table(["us per record", *STEPS, "(checked - unchecked) / crc32c"], rows)


def _cases(folder: Path, io: str) -> dict[str, Callable[[], float]]:
    unchecked, checked = (open_dataset(folder, io=io, check=check) for check in (False, True))
    rows = list(range(len(unchecked)))
    random.Random(0).shuffle(rows)
    views = [unchecked.record(row) for row in rows]
    calls: tuple[Callable[[Any], object], ...] = (unchecked.record, checked.record, crc32c)
    arguments: tuple[Sequence[Any], ...] = (rows, rows, views)
    return {
        f"{folder.name} {io} {step}": partial(_microseconds, call, values)
        for step, call, values in zip(STEPS, calls, arguments, strict=True)
    }


def _microseconds(call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    """Mean time of one call, once the records are as near as they get."""
    for _ in range(WARM_PASSES):
        for argument in arguments:
            call(argument)
    started = time.perf_counter()
    for argument in arguments:
        call(argument)
    return (time.perf_counter() - started) / len(arguments) * 1e6


def _check_over_checksum(unchecked: list[float], checked: list[float], checksum: list[float]) -> float:
    return ratio([with_ - without for with_, without in zip(checked, unchecked, strict=True)], checksum)
