"""Transcoding on one core, against decoding the same files with Pillow; and what it adds to packing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.crops import file_paths, microseconds, one_thread, rates
from benchmarks.measure import (
    alternate,
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
from packtrain import PackOptions, pack
from packtrain._codec.decoders import decoder
from packtrain._codec.native import require_extension
from packtrain._core.options import StoreOptions

REPETITIONS: Final = 7
LINES: Final = 1200
DECODE: Final = "decode, Pillow"
TABLES: Final = {"transcode, optimised tables": True, "transcode, standard tables": False}
STORES: Final = ("crop-ready", "verbatim")


def measure() -> dict[str, Any]:
    one_thread()
    transcode: Callable[..., bytes] = require_extension("Transcoding").transcode
    images = real_list()
    files = transcodable([Path(path).read_bytes() for path in file_paths(images)])
    cases: dict[str, Callable[[], float]] = {
        name: partial(microseconds, partial(_call, transcode, optimise), files) for name, optimise in TABLES.items()
    }
    cases[DECODE] = partial(microseconds, partial(decoder("pillow").decode, mode="RGB"), files)
    with scratch() as folder:
        text, repeats, lines = repeated_list(images, LINES)
        (folder / "train.txt").write_text(text)
        for store in STORES:
            cases[f"pack, {store}"] = partial(_pack_once, folder, images.parent, store, lines)
        samples = alternate(cases, REPETITIONS)
        output = kind_of(folder)
    before = sum(map(len, files))
    sizes = {name: sum(len(transcode(data, optimise)) for data in files) / before for name, optimise in TABLES.items()}
    middle = medians(samples)
    speeds = rates(middle)
    optimised, standard = TABLES
    return {
        **pillow_build(),
        "input": {**describe_list(images), "transcoded": len(files), "repeats": repeats, "lines_packed": lines},
        "output": output,
        "settings": {"repetitions": REPETITIONS, "warm_up": 1, "order": "alternating", "workers": 1},
        "microseconds": samples,
        "median_microseconds": middle,
        "median_images_per_second": speeds,
        "time_over_decoding": {name: ratio(samples[name], samples[DECODE]) for name in TABLES},
        "bytes_out_over_in": sizes,
        "targets": [
            target(f"{optimised}: images/s", speeds[optimised], least=300),
            target(f"{standard}: images/s", speeds[standard], least=700),
            target(f"{optimised}: bytes out over bytes in", sizes[optimised], most=1),
        ],
    }


def show(result: dict[str, Any]) -> None:
    over, sizes = result["time_over_decoding"], result["bytes_out_over_in"]
    rows = [
        [
            name,
            f"{value:.0f}",
            f"{1e6 / value:,.0f}",
            f"{over[name]:.2f}" if name in over else "",
            f"{sizes[name]:.4f}" if name in sizes else "",
        ]
        for name, value in result["median_microseconds"].items()
    ]
    print_table(["one core", "us", "images/s", f"time over {DECODE}", "bytes out / in"], rows)


def transcodable(files: list[bytes]) -> list[bytes]:
    """The files that have a crop-ready form."""
    transcode = require_extension("Transcoding").transcode
    found = []
    for data in files:
        try:
            transcode(data)
        except ValueError:
            continue
        found.append(data)
    return found


def _call(transcode: Callable[..., bytes], optimise: bool, data: bytes) -> bytes:
    return transcode(data, optimise)


def _pack_once(folder: Path, root: Path, store: str, lines: int) -> float:
    """Microseconds per image of everything that `pack` does in one process."""
    out = folder / "out"
    started = time.perf_counter()
    pack(folder / "train.txt", out, PackOptions(root=root, store=StoreOptions(store=store)))
    seconds = time.perf_counter() - started
    shutil.rmtree(out)
    return seconds / lines * 1e6
