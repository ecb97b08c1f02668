"""What is in a dataset, from its manifest and index only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, Manifest
from packtrain._core.paths import local_path


@dataclass(frozen=True)
class Spread:
    """Smallest, median and largest value of a quantity."""

    min: int
    median: int
    max: int


@dataclass(frozen=True)
class Summary:
    """What is in a dataset.

    Attributes:
        dataset: The folder.
        manifest: Manifest of the dataset: format, store mode, counts, shards, what wrote it.
        index_bytes: Size of the index in bytes.
        label_counts: Number of rows by label for scalar integer labels; None for other labels.
        record_bytes: Sizes of the records in bytes.
        width: Widths of images in pixels, as stored.
        height: Heights of images in pixels, as stored.
        commonest_sizes: The five most common sizes, each as (width, height, number of rows).
        orientations: Number of rows by EXIF orientation of the source, without 1 (upright or unknown).
    """

    dataset: Path
    manifest: Manifest
    index_bytes: int
    label_counts: dict[int, int] | None
    record_bytes: Spread
    width: Spread
    height: Spread
    commonest_sizes: tuple[tuple[int, int, int], ...]
    orientations: dict[int, int]


def summarise(path: str | os.PathLike[str]) -> Summary:
    """Summarises the dataset in `path`.

    Raises:
        DatasetError: It is not a sound dataset.
    """
    folder = local_path(path)
    manifest = Manifest.load(folder)
    index = Index(folder / INDEX, manifest.columns, manifest.records)
    index.check_all()
    sizes = index["width"].astype(np.int64) << 32 | index["height"]
    labels = str(manifest.labels) == "int"
    commonest = sorted(_counts(sizes).items(), key=lambda item: -item[1])[:5]
    return Summary(
        dataset=folder,
        manifest=manifest,
        index_bytes=sum(column.bytes for column in manifest.columns),
        label_counts=_counts(index["label"]) if labels else None,
        record_bytes=_spread(index["length"]),
        width=_spread(index["width"]),
        height=_spread(index["height"]),
        commonest_sizes=tuple((size >> 32, size & 0xFFFFFFFF, count) for size, count in commonest),
        orientations={value: count for value, count in _counts(index["orientation"]).items() if value != 1},
    )


def _spread(values: npt.NDArray[Any]) -> Spread:
    return Spread(int(values.min()), int(np.median(values)), int(values.max()))


def _counts(values: npt.NDArray[Any]) -> dict[int, int]:
    unique, counts = np.unique(values, return_counts=True)
    return dict(zip(unique.tolist(), counts.tolist(), strict=True))
