"""WebDataset tars that somebody else wrote: packtrain's Loader against webdataset itself, on the same files.

webdataset's ShardWriter writes the shards. `packtrain index` reads them once, and packtrain's Loader then reads the
shards where they lie; webdataset reads them as its own documentation shows. Both decode whole baseline JPEGs as they
are in the files, make RandomResizedCrop(224) and a flip, and give uint8 batches.
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import PACKTRAIN, UNCHECKED, WEBDATASET
from benchmarks.measure import (
    NotInstalled,
    Unmeasurable,
    describe_list,
    medians,
    print_table,
    ratio,
    real_list,
    repeated_list,
    target,
)
from benchmarks.peers.common import PACKED, SIDE
from benchmarks.rounds import run, take_turns
from benchmarks.workloads import file_paths, write_files

SECONDS: Final = 4.0
STREAM: Final = "jpeg"
SHARDS: Final = "webdataset-jpeg"
"""The folder with the shards, see peers/webdataset.py."""
SIDES: Final = (PACKTRAIN, UNCHECKED, WEBDATASET)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of both sides."""
    samples, result = take_turns(SIDES, partial(prepare, real_list()), _rate, quick=quick, seconds=SECONDS)
    lead = ratio(samples[PACKTRAIN], samples[WEBDATASET])
    return {
        **result,
        "contestants": {side: run(side, "versions") for side in SIDES},
        "images_per_second": samples,
        "median_images_per_second": medians(samples),
        "ratio": lead,
        "targets": [target("packtrain over webdataset, on the same tar files", lead, least=1.6)],
    }


def show(result: dict[str, Any]) -> None:
    rates = result["median_images_per_second"]
    rows = [[side, f"{rate:,.0f}", f"{rates[PACKTRAIN] / rate:.2f}"] for side, rate in rates.items()]
    print_table([f"WebDataset tars, RandomResizedCrop({SIDE}) and flip", "images/s", "packtrain over it"], rows)


def prepare(images: Path, folder: Path, lines: int) -> dict[str, Any]:
    """Has webdataset write shards, and packtrain index them.

    Args:
        images: The list of real images.
        folder: Where to write; it must not exist.
        lines: The list is repeated to about this length.

    Returns:
        A description of the input for the result file.

    Raises:
        Unmeasurable: webdataset is not installed.
    """
    folder.mkdir()
    text, repeats, count = repeated_list(images, lines)
    labels = [int(line.rsplit(None, 1)[1]) for line in text.splitlines()]
    write_files(folder, list(zip(file_paths(images) * repeats, labels, strict=True)))
    try:
        run(WEBDATASET, "write", STREAM, folder)
    except NotInstalled:
        raise Unmeasurable("webdataset is not installed: python -m benchmarks.environments webdataset") from None
    shards = folder / SHARDS
    return {
        **describe_list(images),
        "repeats": repeats,
        "lines": count,
        "shards": len(list(shards.iterdir())),
        "shard_bytes": sum(path.stat().st_size for path in shards.iterdir()),
        "index_seconds": index(shards, folder / PACKED),
    }


def index(shards: Path, out: Path) -> float:
    """Runs `packtrain index`; returns how long it took, in seconds."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "packtrain", "index", str(shards), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"packtrain index failed:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - started


def _rate(side: str, folder: Path, seconds: float) -> float:
    return float(run(side, "rate", STREAM, folder, seconds)["images_per_second"])
