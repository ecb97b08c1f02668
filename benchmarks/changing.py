"""Changing a dataset: an append to 100 million, a million captions, `where` and `split` of ten million, 20 segments.

    python -m benchmarks.changing (append | add-field | split | where | read) DATASET ...

does one of it in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.measure import alternate, child, describe_list, kind_of, print_table, ratio, real_list, scratch, target
from benchmarks.open import make_dataset
from packtrain import PackOptions, StoreOptions, pack
from packtrain._core.version_files import SEGMENTS
from packtrain._core.versions import Change, begin_versions, publish
from packtrain._packer.changing import segment_of

RECORDS: Final = 100_000_000
SHARDS: Final = 20_480
CAPTIONS: Final = 1_000_000
ROWS: Final = 10_000_000
CONDITION: Final = "width >= 500 and label in (3, 5)"
QUICK_RECORDS: Final = 100_000
CHANGES: Final = 5
SEGMENT_COUNT: Final = 20
LINES: Final = 4_000
SIDE: Final = 224
ROUNDS: Final = 9
STORED: Final = 256
EPOCHS: Final = 6
"""Of each round; the first ones map the shards."""
BATCH: Final = 256
ONE, MANY = "one segment", f"{SEGMENT_COUNT} segments"
_NAME: Final = "5" * 16


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds and bytes of an append, seconds of other changes, and raw images per second from many segments."""
    images = real_list()
    records, captions, lines = (QUICK_RECORDS, 1000, 600) if quick else (RECORDS, CAPTIONS, LINES)
    with scratch(on_disk=True) as folder:
        appended, output = _appends(folder, images, records, 1 if quick else CHANGES), kind_of(folder)
    with scratch() as folder:
        added = _captions(folder, captions, 1 if quick else 3)
    with scratch() as folder:
        rows = QUICK_RECORDS if quick else ROWS
        make_dataset(folder, rows, rows // 5000)
        chosen = [child("changing", "where", folder) for _ in range(1 if quick else CHANGES)]
        split = [child("changing", "split", folder, seed) for seed in range(1 if quick else CHANGES)]
    with scratch() as folder:
        rates = _segments(folder, images, lines, 1 if quick else ROUNDS)
    return {
        "input": {**describe_list(images), "records": records, "captions": captions, "rows": rows, "lines": lines},
        "output": {"append": output, "others": "tmpfs"},
        "settings": {
            "epochs": EPOCHS,
            "batch": BATCH,
            "transform": f"RandomCrop({SIDE}), flip",
            "order": "alternating",
            "condition": CONDITION,
        },
        "append": appended,
        "add_field_seconds": added,
        "where_seconds": chosen,
        "split_seconds": split,
        "images_per_second": rates,
        "ratio": ratio(rates[MANY], rates[ONE]),
        "targets": [
            target("append of one image, seconds", float(np.median(appended["seconds"])), most=1),
            target("append of one image, MB written", max(appended["bytes"]) / 1e6, most=1),
            target("add-field of captions, seconds", float(np.median(added)), most=60),
            target("where, seconds", float(np.median(chosen)), most=2),
            target("split, seconds", float(np.median(split)), most=2),
            target(f"raw pixels, {MANY} over {ONE}", ratio(rates[MANY], rates[ONE]), least=0.98),
        ],
    }


def show(result: dict[str, Any]) -> None:
    given, appended, rates = result["input"], result["append"], result["images_per_second"]
    rows = [
        [f"append one image to {given['records']:,}", f"{np.median(appended['seconds']):.2f} s"],
        ["the whole command", f"{np.median(appended['command_seconds']):.2f} s"],
        ["bytes it writes", f"{np.median(appended['bytes']):,.0f}"],
        [f"add {given['captions']:,} captions", f"{np.median(result['add_field_seconds']):.1f} s"],
        [f"choose from {given['rows']:,} rows", f"{np.median(result['where_seconds']):.2f} s"],
        [f"split {given['rows']:,} rows", f"{np.median(result['split_seconds']):.2f} s"],
        *([f"raw images per second, {name}", f"{np.median(rate):,.0f}"] for name, rate in rates.items()),
        ["ratio", f"{result['ratio']:.3f}"],
    ]
    print_table(["change", "median"], rows)


def _appends(folder: Path, images: Path, records: int, count: int) -> dict[str, list[float]]:
    dataset, paths = folder / "dataset", _paths(images)
    pack(_list(folder / "first.txt", paths[:8]), dataset)
    (dataset / SEGMENTS / _NAME).mkdir(parents=True)
    make_dataset(dataset / SEGMENTS / _NAME, records, max(1, SHARDS * records // RECORDS))
    begin_versions(dataset)
    segment = segment_of(dataset / SEGMENTS / _NAME, _NAME)
    change = Change("append", "a synthetic segment")
    publish(dataset, lambda newest: newest.after(change, [*newest.segments, segment]))
    figures: dict[str, list[float]] = {"seconds": [], "command_seconds": [], "bytes": []}
    for number in range(count):
        one = _list(folder / f"one-{number}.txt", paths[8 + number : 9 + number])
        before, started = _bytes(dataset), time.perf_counter()
        figures["seconds"].append(child("changing", "append", dataset, one))
        figures["command_seconds"].append(time.perf_counter() - started)
        figures["bytes"].append(_bytes(dataset) - before)
    return figures


def _captions(folder: Path, count: int, rounds: int) -> list[float]:
    captions = folder / "captions.csv"
    with captions.open("w") as file:
        file.write("path,caption\n")
        for row in range(count):
            file.write(f"n00000000/n00000000_{row:08d}.JPEG,a photograph of thing {row} beside another thing\n")
    figures = []
    for number in range(rounds):
        dataset = folder / f"dataset-{number}"
        dataset.mkdir()
        make_dataset(dataset, count, max(1, count // 5000))
        figures.append(child("changing", "add-field", dataset, captions))
    return figures


def _segments(folder: Path, images: Path, lines: int, rounds: int) -> dict[str, list[float]]:
    paths = (_paths(images) * -(-lines // len(_paths(images))))[:lines]
    options = PackOptions(store=StoreOptions(store="raw", resize=f"{STORED}x{STORED}"), seed=None)
    pack(_list(folder / "all.txt", paths), folder / ONE, options, num_workers=2)
    step = lines // SEGMENT_COUNT
    pack(_list(folder / "0.txt", paths[:step]), folder / MANY, options, num_workers=2)
    for number in range(1, SEGMENT_COUNT):
        part = _list(folder / f"{number}.txt", paths[number * step : (number + 1) * step])
        child("changing", "append", folder / MANY, part)
    return alternate({name: partial(child, "changing", "read", folder / name) for name in (ONE, MANY)}, rounds)


def _paths(images: Path) -> list[Path]:
    return [images.parent / line.rsplit(None, 1)[0] for line in images.read_text().splitlines()]


def _list(path: Path, paths: list[Path]) -> Path:
    # Each has a label of its own: a list that is there already would not be appended again.
    path.write_text("".join(f"{image} {number}\n" for number, image in enumerate(paths)))
    return path


def _bytes(folder: Path) -> int:
    return sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names)


# --- in a fresh process: python -m benchmarks.changing append|add-field|read ... ---


def _append(dataset: str, images: str) -> float:
    from packtrain import append

    return _timed(lambda: append(dataset, images))


def _add_field(dataset: str, captions: str) -> float:
    from packtrain import FieldColumn, add_field

    column = FieldColumn("caption", "text", "caption", by_path=False)
    return _timed(lambda: add_field(dataset, captions, [column], num_workers=2))


def _where(dataset: str) -> float:
    from packtrain import open_dataset

    return _timed(lambda: open_dataset(dataset).where(CONDITION))


def _split(dataset: str, seed: str) -> float:
    from packtrain import split

    return _timed(lambda: split(dataset, val="10%", seed=int(seed), replace_existing=True))


def _read(dataset: str) -> float:
    """Raw images per second of processor time, in random rows, by a Loader without workers; the best of some epochs."""
    from packtrain import Loader, open_dataset
    from packtrain.transforms import RandomCrop, RandomHorizontalFlip

    opened = open_dataset(dataset, [RandomCrop(SIDE), RandomHorizontalFlip()])
    rates = []
    with Loader(opened, batch_size=BATCH, shuffle=True, num_workers=0, drop_last=True) as loader:
        for _ in range(EPOCHS):
            started, count = time.process_time(), 0
            for _batch in loader:
                count += BATCH
            rates.append(count / (time.process_time() - started))
    return max(rates)


def _timed(change: Callable[[], object]) -> float:
    started = time.perf_counter()
    change()
    return time.perf_counter() - started


def main() -> None:
    what, *arguments = sys.argv[1:]
    tasks: dict[str, Callable[..., float]] = {
        "append": _append,
        "add-field": _add_field,
        "where": _where,
        "split": _split,
        "read": _read,
    }
    print(json.dumps(tasks[what](*arguments)))


if __name__ == "__main__":
    main()
