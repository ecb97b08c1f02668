"""Batches per second, first batch, processor time of the consumer: packtrain's Loader and torch's DataLoader."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from benchmarks.crops import file_paths, pack_images
from benchmarks.loaders import PACE, PACED_SECONDS, SECONDS, WARM_UP
from benchmarks.measure import (
    NotInstalled,
    alternate,
    child,
    describe_list,
    kind_of,
    medians,
    pillow_build,
    print_table,
    ratio,
    real_list,
    repeated_list,
    scratch,
    target,
)
from benchmarks.peers.common import BATCH, SIDE, WORKERS
from packtrain.core.options import StoreOptions
from packtrain.readers import open_dataset

LINES: Final = 4000
"""A short list is repeated to about this length, so that no cache holds all images."""
REPETITIONS: Final = 5
RESIZE: Final = {"raw": "short=256", "square": "256x256"}
PACKTRAIN: Final = "packtrain"
TORCH: Final = "torch DataLoader"
TORCH_PILLOW: Final = "torch DataLoader, Pillow"
UNCHECKED: Final = "packtrain, check=False"
COPIES: Final = "copies alone"
INTERPRETERS: Final = {
    TORCH_PILLOW: "PACKTRAIN_PILLOW_PYTHON",
    "webdataset": "PACKTRAIN_PEERS_PYTHON",
    "mosaicml-streaming": "PACKTRAIN_PEERS_PYTHON",
    "litdata": "PACKTRAIN_LITDATA_PYTHON",
    "DALI": "PACKTRAIN_DALI_PYTHON",
    "FFCV": "PACKTRAIN_FFCV_PYTHON",
    "SPDL": "PACKTRAIN_SPDL_PYTHON",
}
"""The variable that names the interpreter of each contestant that does not run in this one."""
CASES: Final = {
    "jpeg": f"JPEG, RandomResizedCrop({SIDE}), flip",
    **{case: f"raw, {resize}, RandomCrop({SIDE})" for case, resize in RESIZE.items()},
}
CONTESTANTS: Final = {
    "jpeg": (PACKTRAIN, TORCH, TORCH_PILLOW),
    "raw": (PACKTRAIN, UNCHECKED, TORCH, COPIES),
    "square": (PACKTRAIN, UNCHECKED, TORCH, COPIES),
}
LEAST: Final = {
    "jpeg": {TORCH: 1.8, TORCH_PILLOW: 2.4},
    "raw": {TORCH: 6.0, COPIES: 1.0},
    "square": {TORCH: 6.0, COPIES: 1.0},
}
"""By what factor packtrain should be faster."""


def measure() -> dict[str, Any]:
    with scratch() as folder:
        described = prepare(real_list(), folder)
        rates = rates_of(CONTESTANTS, folder)
        both = (PACKTRAIN, TORCH)
        first = alternate(
            {name: partial(_figure, "seconds", "first", name, "jpeg", folder) for name in both}, REPETITIONS
        )
        paced = {name: run_child("pace", name, "raw", folder) for name in both}
        output = kind_of(folder)
    seconds = medians(first)
    over = {case: ratios_of(samples) for case, samples in rates.items()}
    return {
        **pillow_build(),
        "input": described,
        "output": output,
        "settings": settings(),
        "contestants": contestants(CONTESTANTS),
        "missing": missing(CONTESTANTS, rates),
        "images_per_second": rates,
        "median_images_per_second": {case: medians(samples) for case, samples in rates.items()},
        "ratios": over,
        "first_batch_seconds": first,
        "median_first_batch_seconds": seconds,
        "paced": paced,
        "targets": [
            *_rate_targets(over),
            target("packtrain: first batch after, s", seconds[PACKTRAIN], most=0.5),
            target(
                f"packtrain: main process at {PACE:,} images/s, % of a core",
                paced[PACKTRAIN]["percent_of_a_core"],
                most=5,
            ),
        ],
    }


def show(result: dict[str, Any]) -> None:
    show_rates(result, CONTESTANTS)
    rows = [
        [
            name,
            f"{1000 * result['median_first_batch_seconds'][name]:.0f}",
            f"{paced['percent_of_a_core']:.2f}",
            f"{paced['images_per_second']:,.0f}",
        ]
        for name, paced in result["paced"].items()
    ]
    print()
    print_table(["", "first batch, ms", f"% of a core at {PACE:,} images/s", "images/s there"], rows)


def prepare(images: Path, folder: Path) -> dict[str, Any]:
    """Writes what the contestants read; describes it.

    ``train.txt`` and the loose files that it names, the dataset ``crop-ready`` of these; of those that a crop can be
    taken from, in a folder for each raw case, the dataset ``raw``, and all its pixels in ``pixels.bin`` with a row
    (offset, height, width, label) for each image in ``pixels.npy``.
    """
    text, repeats, lines = repeated_list(images, LINES)
    labels = [int(line.rsplit(None, 1)[1]) for line in text.splitlines()]
    (folder / "files").mkdir()
    sources = file_paths(images) * repeats
    names = [f"files/{number:06d}{Path(source).suffix}" for number, source in enumerate(sources)]
    for name, source in zip(names, sources, strict=True):
        shutil.copyfile(source, folder / name)
    _write_list(folder / "train.txt", zip(names, labels, strict=True))
    pack_images(folder / "train.txt", folder / "crop-ready", StoreOptions())
    large = [pair for pair in zip(names, labels, strict=True) if _is_large(folder / pair[0])]
    _write_list(folder / "large.txt", large)
    raw_bytes = {}
    for case, resize in RESIZE.items():
        pack_images(folder / "large.txt", folder / case / "raw", StoreOptions(store="raw", resize=resize))
        raw_bytes[case] = _write_pixels(folder / case)
    return {
        **describe_list(images),
        "repeats": repeats,
        "lines": lines,
        "raw_lines": len(large),
        "raw_bytes": raw_bytes,
        "note": f"each repetition is a file of its own; raw without images that are smaller than {SIDE}",
    }


def rates_of(named: Mapping[str, Iterable[str]], folder: Path) -> dict[str, dict[str, list[float]]]:
    """Images per second of the contestants in each case, out of alternating rounds."""
    return {
        case: alternate(
            {name: partial(_figure, "images_per_second", "rate", name, case, folder) for name in names},
            REPETITIONS,
            warm_up=0,  # each has its own
        )
        for case, names in named.items()
    }


def ratios_of(samples: Mapping[str, list[float]]) -> dict[str, float]:
    """How many times as fast as each contestant packtrain is."""
    return {name: ratio(samples[PACKTRAIN], figures) for name, figures in samples.items()}


def settings() -> dict[str, Any]:
    return {
        "batch_size": BATCH,
        "workers": WORKERS,
        "warm_up_batches": WARM_UP,
        "seconds": SECONDS,
        "paced_seconds": PACED_SECONDS,
        "repetitions": REPETITIONS,
        "order": "alternating, each in a fresh process",
        "resize": RESIZE,
    }


def contestants(named: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """Versions and options of whoever is installed."""
    return {
        name: answer
        for name in dict.fromkeys(name for names in named.values() for name in names)
        if (answer := _if_installed(partial(_run, name, "versions", _loader(name)))) is not None
    }


def missing(named: Mapping[str, Iterable[str]], rates: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Who was left out."""
    return [
        name
        for name in dict.fromkeys(n for names in named.values() for n in names)
        if not any(name in r for r in rates.values())
    ]


def show_rates(result: dict[str, Any], named: Mapping[str, Iterable[str]]) -> None:
    """Prints a table for each case."""
    for number, (case, names) in enumerate(named.items()):
        rows = []
        for name in names:
            if name in result["missing"]:
                rows.append([name, "not installed", ""])
                continue
            speed = result["median_images_per_second"][case][name]
            rows.append([name, f"{speed:,.0f}", f"{result['ratios'][case][name]:.2f}"])
        print("\n" * (number > 0), end="")
        print_table([CASES[case], "images/s", "packtrain over it"], rows)


def run_child(what: str, name: str, case: str, folder: Path) -> Any:
    """Runs a contestant in its interpreter.

    Raises:
        NotInstalled: It is not there.
    """
    return _run(
        name, what, _loader(name), "raw" if case in RESIZE else case, folder / case if case in RESIZE else folder
    )


def _run(name: str, *arguments: object) -> Any:
    python = os.environ.get(INTERPRETERS.get(name, ""), sys.executable)
    if name == TORCH_PILLOW and python == sys.executable:
        raise NotInstalled("Pillow")
    return child("loaders", *arguments, python=python)


def _figure(figure: str, what: str, name: str, case: str, folder: Path) -> float:
    return float(run_child(what, name, case, folder)[figure])


def _if_installed(call: Callable[[], Any]) -> Any | None:
    try:
        return call()
    except NotInstalled:
        return None


def _loader(name: str) -> str:
    return TORCH if name == TORCH_PILLOW else name


def _rate_targets(over: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    if pillow_build()["variant"] != "pillow-simd":
        return []
    return [
        target(f"{CASES[case]}: images/s over {name}", over[case][name], least=least)
        for case, bounds in LEAST.items()
        for name, least in bounds.items()
        if name in over[case]
    ]


def _is_large(path: Path) -> bool:
    with Image.open(path) as file:
        return min(file.size) >= SIDE


def _write_list(path: Path, pairs: Iterable[tuple[str, int]]) -> None:
    path.write_text("".join(f"{name} {label}\n" for name, label in pairs))


def _write_pixels(folder: Path) -> int:
    """The pixels of the raw dataset for who does not read packtrain; how many bytes that is."""
    dataset = open_dataset(folder / "raw")
    table, offset = [], 0
    with (folder / "pixels.bin").open("wb") as out:
        for row in range(len(dataset)):
            pixels = np.array(dataset.image(row))
            out.write(pixels.tobytes())
            table.append((offset, *pixels.shape[:2], dataset.label(row)))
            offset += pixels.nbytes
    np.save(folder / "pixels.npy", np.array(table, np.int64))
    return offset
