"""The store modes side by side: images per second, bytes and packing time, for photographs and for shrunk ones.

In each setting all store modes hold the same JPEGs: the photographs as they are, or files that Pillow has shrunk
beforehand. Where these have one short side, their decoded pixels are stored too. Both recipes run on one core, by a
Loader without workers whose processor time counts, and in a Loader with workers, where the time on the clock counts.

    python -m benchmarks.stores (read | pack) STORE FOLDER SECONDS

measures one side once, in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import CONTESTANTS, PACKTRAIN
from benchmarks.loaders import WARM_UP, rate, versions
from benchmarks.measure import child, describe_list, medians, print_table, ratio, real_list, repeated_list, target
from benchmarks.memory import touch_memory
from benchmarks.packers import processor_seconds
from benchmarks.peers.common import BATCH, COEFFICIENTS, SHORT, SIDE, VERBATIM, WORKERS, Batch
from benchmarks.rounds import take_turns
from benchmarks.workloads import QUALITY, bytes_of, file_paths, write_files
from packtrain import PackOptions, StoreOptions, pack

SECONDS: Final = 1.5
LINES: Final = 2100
"""A short list is repeated to at most about this length: packing it is one of the sides of every round."""
WARM_UP_ONE_CORE: Final = 2
"""Batches before the clock starts on one core, where nothing is prefetched."""
CROP_READY, RAW = "crop-ready", "raw"
STORES: Final = (VERBATIM, CROP_READY, COEFFICIENTS)
PACKED_STORES: Final = (CROP_READY, COEFFICIENTS)
"""The store modes whose packing is timed."""
RECIPES: Final = {
    "training": f"RandomResizedCrop({SIDE}), flip",
    "evaluation": f"Resize({SHORT}), CenterCrop({SIDE})",
}
LEAST: Final = {"training": 1.5, "evaluation": 1.3}
"""By what factor a recipe should be faster over coefficients than over crop-ready records."""
MODES: Final = {"one_core": "one core", "loader": f"Loader, {WORKERS} workers"}


@dataclass(frozen=True)
class Setting:
    """The dataset to pack.

    Attributes:
        title: Its name in the tables.
        shrink: The resize rule for the files, see `ResizeRule.parse`; None keeps the photographs.
        stores: The store modes.
    """

    title: str
    shrink: str | None = None
    stores: tuple[str, ...] = STORES


SETTINGS: Final = {
    "photographs": Setting("photographs as they are"),
    "long500": Setting(f"long side 500, quality {QUALITY}", "long=500"),
    "short256": Setting(f"short side {SHORT}, quality {QUALITY}", f"short={SHORT}", (*STORES, RAW)),
}

Case = tuple[str, str, str]
"""Setting, `read` or `pack`, store mode."""


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second and packing time of all store modes in all settings; all of them take turns in each round."""
    reading = [(name, "read", store) for name, setting in SETTINGS.items() for store in setting.stores]
    packing = [(name, "pack", store) for name in SETTINGS for store in PACKED_STORES]
    samples, result = take_turns(
        [*reading, *packing], partial(prepare, real_list()), _measured, quick=quick, seconds=SECONDS
    )
    rates = {
        name: {
            f"{recipe}, {mode}": {
                store: [figures[f"{recipe}, {mode}"] for figures in samples[name, "read", store]]
                for store in setting.stores
            }
            for recipe in RECIPES
            for mode in MODES
        }
        for name, setting in SETTINGS.items()
    }
    packed = {
        what: {
            name: {store: [figures[what] for figures in samples[name, "pack", store]] for store in PACKED_STORES}
            for name in SETTINGS
        }
        for what in ("seconds", "cpu_seconds")
    }
    sizes = {name: described["bytes"] for name, described in result["input"]["settings"].items()}
    over = {name: {store: size / stored[VERBATIM] for store, size in stored.items()} for name, stored in sizes.items()}
    lead = {
        name: {case: {s: ratio(r, sides[CROP_READY]) for s, r in sides.items()} for case, sides in cases.items()}
        for name, cases in rates.items()
    }
    pack_ratios = {name: ratio(sides[COEFFICIENTS], sides[CROP_READY]) for name, sides in packed["seconds"].items()}
    return {
        **result,
        "settings": {
            **result["settings"],
            "warm_up_batches": {"one_core": WARM_UP_ONE_CORE, "loader": WARM_UP["jpeg"], "raw": WARM_UP["raw_rrc"]},
            "one_core": "Loader without workers on one core, processor time",
            "loader": f"Loader with {WORKERS} workers, time on the clock",
            "pack": f"pack() into tar with {WORKERS} workers, time on the clock",
        },
        "load_1min_after": round(os.getloadavg()[0], 2),
        "contestants": {PACKTRAIN: versions(CONTESTANTS[PACKTRAIN])},
        "bytes_over_verbatim": over,
        "images_per_second": rates,
        "median_images_per_second": {
            name: {case: medians(sides) for case, sides in cases.items()} for name, cases in rates.items()
        },
        "ratios_over_crop_ready": lead,
        "pack_seconds": packed["seconds"],
        "pack_cpu_seconds": packed["cpu_seconds"],
        "median_packed_per_second": {
            name: {store: result["input"]["lines"] / value for store, value in medians(sides).items()}
            for name, sides in packed["seconds"].items()
        },
        "pack_ratios": pack_ratios,
        "targets": [
            *(
                target(
                    f"{COEFFICIENTS} over {CROP_READY}, {RECIPES[recipe]}, {MODES[mode]}",
                    lead["photographs"][f"{recipe}, {mode}"][COEFFICIENTS],
                    least=least,
                )
                for recipe, least in LEAST.items()
                for mode in MODES
            ),
            target(f"bytes of {COEFFICIENTS} over {VERBATIM}", over["photographs"][COEFFICIENTS], most=1.15),
            target(f"packing time of {COEFFICIENTS} over {CROP_READY}", pack_ratios["photographs"], most=1.0),
        ],
    }


def show(result: dict[str, Any]) -> None:
    for name, setting in SETTINGS.items():
        rates, lead = result["median_images_per_second"][name], result["ratios_over_crop_ready"][name]
        rows = [
            [
                store,
                f"{result['bytes_over_verbatim'][name][store]:.2f}",
                *(f"{sides[store]:,.0f} ({lead[case][store]:.2f})" for case, sides in rates.items()),
            ]
            for store in setting.stores
        ]
        header = [f"{recipe}, {MODES[mode]}" for recipe in RECIPES for mode in MODES]
        print_table([f"{setting.title}; images/s (times {CROP_READY})", "bytes", *header], rows)
        print()
    rows = [
        [
            SETTINGS[name].title,
            *(f"{rates[store]:,.0f}" for store in PACKED_STORES),
            f"{result['pack_ratios'][name]:.2f}",
        ]
        for name, rates in result["median_packed_per_second"].items()
    ]
    print_table([f"packing, {WORKERS} workers: images/s", *PACKED_STORES, "time over crop-ready"], rows)


def prepare(images: Path, folder: Path, lines: int) -> dict[str, Any]:
    """Writes the files of each setting, and a dataset in each of its store modes.

    Args:
        images: The list of real images.
        folder: Where to write; it must not exist.
        lines: The list is repeated to about this length, or to `LINES` if that is less.

    Returns:
        A description of the input for the result file.
    """
    folder.mkdir()
    text, repeats, count = repeated_list(images, min(lines, LINES))
    labels = [int(line.rsplit(None, 1)[1]) for line in text.splitlines()]
    sources = list(zip(file_paths(images) * repeats, labels, strict=True))
    described = {}
    for name, setting in SETTINGS.items():
        inside = folder / name
        inside.mkdir()
        size = write_files(inside, sources, setting.shrink)
        for store in setting.stores:
            pack(inside / "train.txt", inside / store, PackOptions(store=StoreOptions(store=store), seed=None))
        described[name] = {
            "shrink": setting.shrink,
            "file_bytes": size,
            "bytes": {store: bytes_of(inside / store) for store in setting.stores},
        }
    note = "each repetition is a file of its own"
    return {**describe_list(images), "repeats": repeats, "lines": count, "note": note, "settings": described}


def stream(folder: Path, store: str, recipe: str, workers: int) -> Iterator[Batch]:
    """An endless stream of the batches of a recipe from what `prepare` wrote for a setting."""
    from benchmarks.peers import packtrain

    if recipe == "training":
        dataset = packtrain.jpeg_dataset(folder, packed=store)
    else:
        dataset = packtrain.repeated(packtrain.evaluation_dataset(folder, store))
    return packtrain.batches(dataset, num_workers=workers)


def one_core(batches: Iterator[Batch], least_seconds: float) -> dict[str, float]:
    """Images per second of processor time of this process, which has no workers."""
    for _ in islice(batches, WARM_UP_ONE_CORE):
        pass
    started = time.process_time()
    for count, _held in enumerate(batches, 1):
        seconds = time.process_time() - started
        if seconds >= least_seconds:
            return {"images_per_second": count * BATCH / seconds, "seconds": seconds}
    raise RuntimeError("the epoch was shorter than the measurement")


def reading(store: str, folder: Path, seconds: float) -> dict[str, float]:
    """Images per second of each recipe, on one core and by workers."""
    import torch

    torch.set_num_threads(1)
    found, cores = {}, os.sched_getaffinity(0)
    warm_up = WARM_UP["raw_rrc" if store == RAW else "jpeg"]
    measures: dict[str, tuple[int, Callable[[Iterator[Batch]], dict[str, float]]]] = {
        "one_core": (0, lambda batches: one_core(batches, seconds)),
        "loader": (WORKERS, lambda batches: rate(batches, warm_up, seconds)),
    }
    for mode, (workers, measured) in measures.items():
        os.sched_setaffinity(0, {max(cores)} if mode == "one_core" else cores)
        for recipe in RECIPES:
            batches: Any = stream(folder, store, recipe, workers)
            with closing(batches):
                found[f"{recipe}, {mode}"] = measured(batches)["images_per_second"]
    return found


def packing(store: str, folder: Path) -> dict[str, float]:
    """Seconds of packing the files of a setting, and processor time of all processes that do."""
    importlib.import_module("packtrain._formats.tar.writer")
    listed, out = folder / "train.txt", folder / "out"
    touch_memory(folder / "touch", bytes_of(folder / store))
    started, used = time.perf_counter(), processor_seconds()
    try:
        pack(listed, out, PackOptions(store=StoreOptions(store=store)), num_workers=WORKERS)
        return {"seconds": time.perf_counter() - started, "cpu_seconds": processor_seconds() - used}
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _measured(case: Case, folder: Path, seconds: float) -> dict[str, float]:
    setting, what, store = case
    found: dict[str, float] = child("stores", what, store, folder / setting, seconds)
    return found


def main() -> None:
    what, store, folder, seconds = sys.argv[1:]
    found = packing(store, Path(folder)) if what == "pack" else reading(store, Path(folder), float(seconds))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
