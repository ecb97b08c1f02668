"""The figures of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from packtrain._readers.dataset.summary import Summary

TINY: Final = 32
"""A side of fewer pixels is suspicious."""
ELONGATED: Final = 4.0
"""So is one that is more than this many times as long as the other."""
SUSPICIONS: Final = {
    "damaged": "cannot be read or decoded",
    "truncated": "end in a grey area, as JPEGs do that were cut off",
    "one colour": "have one colour",
    "tiny": f"have a side of less than {TINY} pixels",
    "elongated": f"are more than {ELONGATED:g} times as long as wide, or as wide as long",
    "turned": "have an EXIF orientation, which this dataset ignores",
}


@dataclass(frozen=True)
class ReportProgress:
    """Progress of `dataset_report`.

    Attributes:
        done: Number of images looked at so far.
        total: Number of images in both datasets.
        view: Once all were looked at, the number of the view in which they are compared, from 1; 0 before.
        views: Number of views.
    """

    done: int
    total: int
    view: int = 0
    views: int = 0


@dataclass(frozen=True)
class Place:
    """A row of a dataset.

    Attributes:
        dataset: The dataset, as it was given.
        row: The row.
        path: Its path in the list.
        side: The side that it is on, if the dataset was split; else None.
    """

    dataset: str
    row: int
    path: str
    side: str | None = None


@dataclass(frozen=True)
class AlikeGroup:
    """Images that are the same, or look alike.

    Attributes:
        places: Where they are.
        exact: True if all have the same bytes.
    """

    places: tuple[Place, ...]
    exact: bool


@dataclass(frozen=True)
class Suspect:
    """An image that looks wrong.

    Attributes:
        place: Where it is.
        kind: A key of `SUSPICIONS`.
        what: What is wrong, in a few words.
    """

    place: Place
    kind: str
    what: str


@dataclass(frozen=True)
class Histogram:
    """Counts of values between edges.

    Attributes:
        edges: The edges, one more than there are counts, in ascending order.
        counts: How many values lie between each edge and the next.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ChannelFigures:
    """Mean and standard deviation of the pixels of each channel, in [0, 1]; each image counts the same.

    Attributes:
        mean: For each channel.
        std: For each channel.
        images: Number of images that were measured.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: int


@dataclass(frozen=True)
class DatasetReport:
    """The contents of a dataset.

    Attributes:
        dataset: The dataset, as it was given.
        against: The other dataset, or None.
        where: The condition for the rows that were looked at; None if all were.
        summary: Counts, bytes, labels and sizes, as `packtrain info` has them.
        long_sides: The longer sides of images, in pixels.
        aspect_ratios: Widths over heights.
        record_bytes: Sizes of the stored images, in bytes.
        channels: Mean and standard deviation; None if no image could be measured.
        reject_reasons: Number of refused lines for each reason, the most frequent first.
        exact: Images of this dataset with the same bytes, in groups.
        near: Images of this dataset that look alike, and are not all the same, in groups.
        leaks: Groups of images with members in both datasets.
        side_leaks: Groups of images of this dataset with members on different sides of a split.
        compared_bits: All pairs of images whose hashes differ in at most this many bits were compared, and in part
            those up to 10 bits. None if so many images look alike that they were not compared, or not all.
        suspects: Images that look wrong, by kind.
    """

    dataset: str
    against: str | None
    where: str | None
    summary: Summary
    long_sides: Histogram | None
    aspect_ratios: Histogram | None
    record_bytes: Histogram | None
    channels: ChannelFigures | None
    reject_reasons: dict[str, int]
    exact: tuple[AlikeGroup, ...]
    near: tuple[AlikeGroup, ...]
    leaks: tuple[AlikeGroup, ...]
    side_leaks: tuple[AlikeGroup, ...]
    compared_bits: int | None
    suspects: tuple[Suspect, ...]
