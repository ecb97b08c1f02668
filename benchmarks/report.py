"""`packtrain report`: which planted copies it finds, how long it takes, and how long 100,000 different images take it.

The copies are crops, re-encodings, other sizes and mirror images of real photographs, each kind in a dataset of its own
that is compared with the photographs.

The dataset that is timed has 100,000 photographs. They are those of the list, repeated, and no two have the same bytes:
each repeat has other numbers in its quantisation tables, for the finest detail.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageOps

from benchmarks.measure import describe_list, kind_of, print_table, real_list, scratch, target
from packtrain import PackOptions, dataset_report, pack
from packtrain._extras.report.alike import groups_of_alikes
from packtrain._extras.report.hashing import SIDE, small_grey

IMAGES: Final = 100_000
WORKERS: Final = 2
PHOTOGRAPHS: Final = "photographs"
SEED: Final = 0
TABLES, SCAN = 0xDB, 0xDA
"""Markers of JPEG: quantisation tables, and the start of a scan."""
Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def cropped(share: float) -> Change:
    """Keeps this share of each side, anywhere."""

    def change(image: Image.Image, random: np.random.Generator) -> Image.Image:
        width, height = (round(side * share) for side in image.size)
        left, top = (int(random.integers(0, side + 1)) for side in (image.width - width, image.height - height))
        return image.crop((left, top, left + width, top + height))

    return change


def shrunk(short: int) -> Change:
    """Gives the shorter side this length."""

    def change(image: Image.Image, random: np.random.Generator) -> Image.Image:
        scale = short / min(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        return image.resize((width, height), Image.Resampling.BILINEAR)

    return change


def same(image: Image.Image, random: np.random.Generator) -> Image.Image:
    return image


def mirrored(image: Image.Image, random: np.random.Generator) -> Image.Image:
    return ImageOps.mirror(image)


def mirrored_crop(image: Image.Image, random: np.random.Generator) -> Image.Image:
    return mirrored(cropped(0.95)(image, random), random)


COPIES: Final[dict[str, tuple[Change, int]]] = {
    **{f"encoded again, quality {quality}": (same, quality) for quality in (50, 75, 95)},
    "short side 256": (shrunk(256), 90),
    "short side 128": (shrunk(128), 90),
    "224 x 224": (lambda image, random: image.resize((224, 224)), 90),
    "mirrored": (mirrored, 90),
    **{f"crop of {share:.0%} of each side": (cropped(share), 90) for share in (0.97, 0.95, 0.9, 0.85, 0.8)},
    "crop of 95% of each side, mirrored": (mirrored_crop, 90),
}


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Recall and precision by kind of copy, and seconds."""
    listed, images = real_list(), 300 if quick else IMAGES
    files = [listed.parent / line.rsplit(None, 1)[0] for line in listed.read_text().splitlines()][
        : 20 if quick else None
    ]
    with scratch() as folder:
        originals = _packed(folder / PHOTOGRAPHS, [path.read_bytes() for path in files])
        found = {}
        for number, (name, (change, quality)) in enumerate(COPIES.items()):
            random = np.random.default_rng((SEED, number))
            copies = []
            for path in files:
                buffer = io.BytesIO()
                change(Image.open(path).convert("RGB"), random).save(buffer, "JPEG", quality=quality)
                copies.append(buffer.getvalue())
            found[name] = _found(originals, _packed(folder / f"copies {number}", copies))
    with scratch(on_disk=True) as folder:
        pack(range(images), folder / "out", function=partial(photograph, files), num_workers=WORKERS)
        words = [sys.executable, "-m", "packtrain", "report", str(folder / "out"), "--out", str(folder / "report.html")]
        start = time.monotonic()
        subprocess.run([*words, "--workers", str(WORKERS)], check=True, capture_output=True)
        seconds, kind = time.monotonic() - start, kind_of(folder)
    greys = _different(files, images)
    start = time.monotonic()
    groups, bits = groups_of_alikes(greys, lambda view, views: None)
    comparing = time.monotonic() - start
    return {
        "input": describe_list(listed) | {"lines": images, "output": kind},
        "found": found,
        "seconds": seconds,
        "milliseconds_of_a_core_per_image": 1000 * seconds * WORKERS / images,
        "comparing": {"images": len(greys), "groups": len(set(groups.tolist())), "bits": bits, "seconds": comparing},
        # The photographs that are timed are few different images. Comparing as many different ones comes on top.
        "targets": [target("seconds for 100,000 photographs", seconds + comparing, most=120)],
    }


def photograph(files: Sequence[Path], number: int) -> dict[str, bytes | int]:
    """A sample of the dataset that is timed: a photograph with quantisation tables of its own."""
    repeat, file = divmod(number, len(files))
    data = bytearray(files[file].read_bytes())
    at = 2
    while data[at + 1] != SCAN:
        if data[at + 1] == TABLES and data[at + 4] < 16:
            # The last two of its first table, of 8 bits: 1 to 255 each.
            for place, change in ((at + 68, repeat), (at + 67, repeat // 255)):
                data[place] = (data[place] - 1 + change) % 255 + 1
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return {"image": bytes(data), "label": file}


def show(result: dict[str, Any]) -> None:
    rows = [[name, f"{each['recall']:.1%}", f"{each['precision']:.1%}"] for name, each in result["found"].items()]
    print_table(["copies", "recall", "precision"], rows)
    comparing = result["comparing"]
    print(f"{result['input']['lines']:,} photographs: {result['seconds']:.0f} s")
    print(f"comparing {comparing['images']:,} different images: {comparing['seconds']:.0f} s")


def _packed(folder: Path, images: list[bytes]) -> Path:
    folder.mkdir()
    for number, data in enumerate(images):
        (folder / f"{number}.jpg").write_bytes(data)
    (folder / "train.txt").write_text("".join(f"{number}.jpg {number}\n" for number in range(len(images))))
    pack(folder / "train.txt", folder / "out", PackOptions(seed=None), num_workers=WORKERS)
    return folder / "out"


def _found(originals: Path, copies: Path) -> dict[str, Any]:
    """Says which pairs of a photograph and a copy are in a group; a pair of the same number belongs there."""
    report = dataset_report(originals, against=copies, num_workers=WORKERS)
    pairs = {
        (one.row, other.row)
        for group in report.leaks
        for one in group.places
        for other in group.places
        if one.dataset == str(originals) and other.dataset == str(copies)
    }
    right, rows = sum(one == other for one, other in pairs), report.summary.manifest.records
    return {"copies": rows, "pairs": len(pairs), "recall": right / rows, "precision": right / max(1, len(pairs))}


def _different(files: list[Path], count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Grey versions of parts of photographs, some turned: many different images with the statistics of photographs."""
    random = np.random.default_rng(SEED)
    photographs = []
    for path in files:
        image = Image.open(path).convert("RGB")
        photographs.append(np.asarray(shrunk(128)(image, random)))
    greys = np.empty((count, SIDE, SIDE), np.uint8)
    for number in range(count):
        pixels = photographs[number % len(photographs)]
        height, width = (int(side * random.uniform(0.3, 0.7)) for side in pixels.shape[:2])
        top, left = (
            int(random.integers(0, side - part)) for side, part in zip(pixels.shape, (height, width), strict=False)
        )
        greys[number] = np.rot90(small_grey(pixels[top : top + height, left : left + width]), int(random.integers(4)))
    return greys
