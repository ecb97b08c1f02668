"""The workloads at which loaders are compared: which images, how they are stored, and which contestants read them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from benchmarks.contestants import (
    CHECKED_FIRST,
    COPIES,
    DALI,
    DALI_WHOLE,
    FFCV,
    LITDATA,
    OF_COEFFICIENTS,
    PACKTRAIN,
    SLIPSTREAM,
    SLIPSTREAM_PLANES,
    SPDL,
    STREAMING,
    TORCH,
    TORCH_PILLOW,
    TURBOLOADER,
    TWO_QUEUES,
    UNCHECKED,
    WEBDATASET,
)
from benchmarks.measure import describe_list, repeated_list
from benchmarks.peers.common import COEFFICIENTS, ORIGINALS, PACKED, SIDE
from packtrain import PackOptions, StoreOptions, open_dataset, pack
from packtrain._core.options import ResizeRule

LINES: Final = 4000
"""A short list is repeated to about this length, so that no cache of the processor holds all images."""
COLD_LINES: Final = 8000
QUICK_LINES: Final = 600
QUALITY: Final = 90

_PINNED: Final = tuple(f"{name}, pin_memory" for name in (PACKTRAIN, TORCH, TORCH_PILLOW))
_OF_FILES: Final = (TORCH, TORCH_PILLOW, *_PINNED[1:], TWO_QUEUES)
_OF_RECORDS: Final = (WEBDATASET, STREAMING, LITDATA)
_JPEG: Final = (PACKTRAIN, _PINNED[0], *_OF_FILES, *_OF_RECORDS, DALI, DALI_WHOLE, FFCV, SPDL)
_RAW: Final = (PACKTRAIN, UNCHECKED, TORCH, *_OF_RECORDS, FFCV)


@dataclass(frozen=True)
class Workload:
    """One comparison.

    Attributes:
        title: The heading of its table.
        stream: The function of the peers' modules that makes the batches.
        store: How packtrain stores the images; the peers get raw pixels as packtrain stored them.
        contestants: The names of the contestants.
        least: By what factor a contestant should be faster than another one.
        shrink: The resize rule for the loose files, see `ResizeRule.parse`; None keeps their size.
        crops: True if a crop of 224 x 224 is taken without a resize, so that smaller images are left out.
        cold: True if each round is a single pass over files that are on a disk and not in memory.
    """

    title: str
    stream: str
    store: StoreOptions = field(default_factory=StoreOptions)
    contestants: tuple[str, ...] = _JPEG
    least: Mapping[tuple[str, str], float] = field(default_factory=dict)
    shrink: str | None = None
    crops: bool = False
    cold: bool = False

    @property
    def raw(self) -> bool:
        return self.store.store == "raw"

    @property
    def lines(self) -> int:
        return COLD_LINES if self.cold else LINES


WORKLOADS: Final = {
    "jpeg": Workload(
        f"JPEG, RandomResizedCrop({SIDE}), flip",
        "jpeg",
        contestants=(PACKTRAIN, OF_COEFFICIENTS, UNCHECKED, *_JPEG[1:], SLIPSTREAM, SLIPSTREAM_PLANES, TURBOLOADER),
        least={
            (OF_COEFFICIENTS, FFCV): 3.0,
            (OF_COEFFICIENTS, DALI): 4.0,
            (OF_COEFFICIENTS, SLIPSTREAM_PLANES): 2.3,
            **{(PACKTRAIN, name): 2.0 for name in (*_OF_RECORDS, DALI, DALI_WHOLE, FFCV)},
        },
    ),
    "jpeg500": Workload(
        f"JPEG, long=500, quality {QUALITY}, RandomResizedCrop({SIDE}), flip",
        "jpeg",
        StoreOptions(store="jpeg", resize="long=500", quality=QUALITY),
        contestants=(PACKTRAIN, UNCHECKED, *_JPEG[1:]),
        least={(PACKTRAIN, FFCV): 1.5},
        shrink="long=500",
    ),
    "raw256-rrc": Workload(
        f"raw, short=256, RandomResizedCrop({SIDE}), flip",
        "raw_rrc",
        StoreOptions(store="raw", resize="short=256"),
        _RAW,
        {(PACKTRAIN, FFCV): 1.8},
    ),
    "raw-crop": Workload(
        f"raw, short=256, RandomCrop({SIDE})",
        "raw",
        StoreOptions(store="raw", resize="short=256"),
        (*_RAW, CHECKED_FIRST, COPIES),
        {(CHECKED_FIRST, FFCV): 1.05, (PACKTRAIN, FFCV): 0.9},
        crops=True,
    ),
    "raw-square": Workload(
        f"raw, 256x256, RandomCrop({SIDE})",
        "raw",
        StoreOptions(store="raw", resize="256x256"),
        (*_RAW, COPIES),
        crops=True,
    ),
    "cold": Workload(f"JPEG from a disk, RandomResizedCrop({SIDE}), flip", "jpeg", cold=True),
}


def prepare(workload: Workload, images: Path, folder: Path, lines: int) -> dict[str, Any]:
    """Writes what the contestants read.

    For JPEGs: ``train.txt``, the loose files that it names, and packtrain's dataset of these files. If the loose files
    are shrunk, packtrain packs the originals, which ``originals.txt`` names. For raw pixels: packtrain's dataset, all
    its pixels in ``pixels.bin``, and a row (offset, height, width, label) for each image in ``pixels.npy``.

    Args:
        workload: The comparison.
        images: The list of real images.
        folder: Where to write; it must not exist.
        lines: The list is repeated to about this length.

    Returns:
        A description of the input for the result file.
    """
    folder.mkdir()
    text, repeats, count = repeated_list(images, lines)
    labels = [int(line.rsplit(None, 1)[1]) for line in text.splitlines()]
    sources = list(zip(file_paths(images) * repeats, labels, strict=True))
    note = "each repetition is a file of its own"
    if workload.crops:
        large = {path for path in file_paths(images) if _is_large(path)}
        sources = [pair for pair in sources if pair[0] in large]
        note = f"without images that are smaller than {SIDE}"
    described = {**describe_list(images), "repeats": repeats, "lines": count, "used": len(sources), "note": note}
    if not workload.raw:
        described["file_bytes"] = write_files(folder, sources, workload.shrink)
    if workload.raw or workload.shrink:
        _write_list(folder / ORIGINALS, sources)
    listed = folder / (ORIGINALS if workload.raw or workload.shrink else "train.txt")
    pack(listed, folder / PACKED, PackOptions(store=workload.store, seed=None))
    described["packed_bytes"] = bytes_of(folder / PACKED)
    if OF_COEFFICIENTS in workload.contestants:
        pack(listed, folder / COEFFICIENTS, PackOptions(store=StoreOptions(COEFFICIENTS), seed=None))
        described["coefficients_bytes"] = bytes_of(folder / COEFFICIENTS)
    if workload.raw:
        described["pixel_bytes"] = _write_pixels(folder)
    return described


def bytes_of(folder: Path) -> int:
    """The size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def file_paths(images: Path) -> list[str]:
    """The files that a list names."""
    return [str(images.parent / line.rsplit(None, 1)[0]) for line in images.read_text().splitlines()]


def _is_large(path: str) -> bool:
    with Image.open(path) as file:
        return min(file.size) >= SIDE


def write_files(folder: Path, sources: Sequence[tuple[str, int]], shrink: str | None = None) -> int:
    """Writes a loose file for each source (path and label), and their list; returns the size of all files in bytes."""
    (folder / "files").mkdir()
    pairs, shrunk, size = [], dict[str, Path](), 0
    for number, (source, label) in enumerate(sources):
        name = f"files/{number:06d}{Path(source).suffix}"
        if shrink is None:
            shutil.copyfile(source, folder / name)
        elif source in shrunk:
            shutil.copyfile(shrunk[source], folder / name)
        else:
            shrunk[source] = folder / name
            _shrink(source, folder / name, ResizeRule.parse(shrink))
        pairs.append((name, label))
        size += (folder / name).stat().st_size
    _write_list(folder / "train.txt", pairs)
    return size


def _shrink(source: str, out: Path, resize: ResizeRule) -> None:
    with Image.open(source) as file:
        image = file.convert("RGB")
    size = resize.output_size(*image.size)
    if size != image.size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    image.save(out, "JPEG", quality=QUALITY)


def _write_list(path: Path, pairs: Iterable[tuple[str, int]]) -> None:
    path.write_text("".join(f"{name} {label}\n" for name, label in pairs))


def _write_pixels(folder: Path) -> int:
    """Writes the pixels of the raw dataset for the peers, which do not read packtrain's; returns their bytes."""
    dataset = open_dataset(folder / PACKED)
    table, offset = [], 0
    with (folder / "pixels.bin").open("wb") as out:
        for row in range(len(dataset)):
            pixels = np.array(dataset.image(row))
            out.write(pixels.tobytes())
            table.append((offset, *pixels.shape[:2], dataset.label(row)))
            offset += pixels.nbytes
    np.save(folder / "pixels.npy", np.array(table, np.int64))
    return offset
