"""Looks at every image of a dataset, and makes a report of it."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import checks_names, function, path_of, whole
from packtrain._core.errors import UsageError
from packtrain._core.schema import IMAGE
from packtrain._core.versions import NO_SIDE, SPLIT
from packtrain._packer.engine import run_tasks
from packtrain._packer.rejects import read_rejects
from packtrain._readers.dataset.stored_rows import StoredRows
from packtrain._readers.dataset.summary import summary_of

from .alike import Numbers, groups_of_alikes, groups_of_equals
from .figures import (
    ELONGATED,
    TINY,
    AlikeGroup,
    ChannelFigures,
    DatasetReport,
    Histogram,
    Place,
    ReportProgress,
    Suspect,
)
from .looks import LOOK, Looks, Range, Seen, look_at

_MEASURED: Final = 2000
"""Number of images that are decoded at full size, for mean and standard deviation; about 5 s on one core."""
_RECORDS_AT_ONCE: Final = 512
_PLAIN: Final = 2.0
"""Standard deviation of grey values from 0 to 255, below which an image has one colour."""
_GREY_BOTTOM: Final = 0.05
_BINS: Final = 24


@checks_names()
def dataset_report(
    path: str | os.PathLike[str],
    *,
    against: str | os.PathLike[str] | None = None,
    where: str | None = None,
    num_workers: int = 1,
    on_progress: Callable[[ReportProgress], None] | None = None,
) -> DatasetReport:
    """Look at every image of a dataset: sizes, colours, duplicates, and what looks wrong.

    Images are decoded in forked processes with limits on memory and time, so that one that was made to do harm is a
    suspect in the report. docs/reports.md says how duplicates are found, and how many of them.

    Args:
        path: Folder of the dataset; of one that was changed, its newest version counts.
        against: Folder of another one, such as that for validation, whose images should not be in this one.
        where: A condition for the rows of the dataset to look at, as `ImageDataset.where` takes it; None for all.
        num_workers: Number of worker processes. The default, 1, uses only one core; the command ``packtrain report``
            uses all available cores. Workers are spawned, so with more than one the calling script needs the usual
            ``if __name__ == "__main__"``.
        on_progress: Called in the calling process as the work goes on.

    Returns:
        What was found. It does not depend on the number of workers.

    Raises:
        UsageError: An argument has the wrong type or is out of range, or a dataset has no images, or its shards lie in
            an object store, or no row is like `where`.
        NotADataset: There is no manifest.
        CorruptFile: The index is damaged. A damaged image is reported.
    """
    whole("num_workers", num_workers, 1)
    function("on_progress", on_progress)
    parts = [_Tally("path", path, where)]
    if against is not None:
        parts.append(_Tally("against", against))
        if parts[1].folder.resolve() == parts[0].folder.resolve():
            raise UsageError(f"against={os.fspath(against)!r} is the dataset itself: name another one")
    total, done = sum(len(part.rows) for part in parts), 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        if on_progress is not None:
            on_progress(ReportProgress(done, total))

    def compare(view: int, views: int) -> None:
        if on_progress is not None:
            on_progress(ReportProgress(total, total, view, views))

    advance(0)
    hashed = _may_be_equal(parts)
    tasks = [task for number, part in enumerate(parts) for task in part.tasks(number, hashed[number])]
    for seen in run_tasks(look_at, tasks, workers=min(num_workers, len(tasks)), on_progress=advance):
        parts[seen.part].add(seen)
    own = parts[0]
    groups = _compare(parts, compare)
    width, height, length = (
        own.column(name)[~own.missing].astype(np.float64) for name in ("width", "height", "length")
    )
    stores = own.stored.stores
    return DatasetReport(
        dataset=own.name,
        against=None if against is None else parts[1].name,
        where=where,
        summary=replace(summary_of(own.stored, None if where is None else own.rows), dataset=Path(own.name)),
        long_sides=_histogram(np.maximum(width, height)),
        aspect_ratios=_histogram(width / np.maximum(1, height)),
        record_bytes=_histogram(length),
        channels=_channels(own.looks[own.looks["measured"]], own.image.channels),
        reject_reasons=dict(
            Counter(reject.reason for each in stores for reject in read_rejects(each.path, each.manifest)).most_common()
        ),
        exact=groups.exact,
        near=groups.near,
        leaks=groups.leaks,
        side_leaks=groups.side_leaks,
        compared_bits=groups.bits,
        suspects=tuple(own.suspects()),
    )


class _Tally:
    """Some rows of a dataset, and what was seen of them so far, by their places among these."""

    def __init__(self, argument: str, given: str | os.PathLike[str], where: str | None = None) -> None:
        self.folder: Final = path_of(argument, given)
        self.name: Final = os.fspath(given)
        self.stored: Final = StoredRows.open(self.folder)
        field = self.stored.schema.image
        if field is None or field.store is None:
            raise UsageError(f"{self.name} has no images, and a report is about images")
        self.image: Final = field.store
        for store in self.stored.stores:
            store.index.check_all()
        self.rows: Final = np.arange(len(self.stored)) if where is None else self.stored.where(where)
        if not len(self.rows):
            raise UsageError(f"where={where!r}: no row of {self.name} is like this")
        self.looks: Final[Looks] = np.zeros(len(self.rows), LOOK)
        self.missing: Final = np.zeros(len(self.rows), bool)
        self.problems: Final[dict[int, str]] = {}
        self._names: Final = self.stored.stores[0].side_names
        self.sides: Final = (
            self.stored.column(SPLIT, self.rows) if self._names else np.full(len(self.rows), NO_SIDE, np.uint8)
        )

    def tasks(self, part: int, hashed: npt.NDArray[np.bool_]) -> Iterator[Range]:
        """The tasks for its rows, of which some are `hashed`, bool [rows]."""
        every = max(1, len(self.rows) // _MEASURED)
        start = 0
        for store, rows, _ in self.stored.located(self.rows):
            order = np.argsort(store.places()[rows], kind="stable")
            for first in range(0, len(rows), _RECORDS_AT_ONCE):
                some = order[first : first + _RECORDS_AT_ONCE]
                yield Range(part, store, rows[some], start + some, every, hashed[start + some])
            start += len(rows)

    def add(self, seen: Seen) -> None:
        """Add what was seen of a range."""
        self.looks[seen.numbers], self.missing[seen.numbers] = seen.looks, seen.missing
        self.problems.update(seen.problems)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of the index about the images."""
        return self.stored.column(name, self.rows, IMAGE)

    def place(self, number: int) -> Place:
        """Name a row."""
        row, side = int(self.rows[number]), int(self.sides[number])
        store, inner = self.stored.locate(row)
        return Place(self.name, row, store.filename(inner), None if side == NO_SIDE else self._names[side])

    @property
    def sound(self) -> npt.NDArray[np.bool_]:
        """True for rows with an image that was decoded."""
        sound = ~self.missing
        sound[list(self.problems)] = False
        return sound

    @property
    def plain(self) -> npt.NDArray[np.bool_]:
        """True for rows with an image of one colour."""
        low: npt.NDArray[np.bool_] = self.looks["contrast"] < _PLAIN
        return self.sound & low

    def suspects(self) -> Iterator[Suspect]:
        """Yields what looks wrong, kind by kind, each in the order of rows."""
        for number, problem in sorted(self.problems.items()):
            yield Suspect(self.place(number), "damaged", problem)
        plain, bottoms = self.plain, self.looks["grey_bottom"]
        for number in np.flatnonzero(self.sound & ~plain & (bottoms >= _GREY_BOTTOM)).tolist():
            yield Suspect(self.place(number), "truncated", f"the last {bottoms[number]:.0%} of its rows are grey")
        for number in np.flatnonzero(plain).tolist():
            grey = self.looks["grey"][number].mean()
            yield Suspect(self.place(number), "one colour", f"grey value {grey:.0f} of 255")
        width, height = (self.column(name).astype(np.int64) for name in ("width", "height"))
        short, long = np.minimum(width, height), np.maximum(width, height)
        for kind, found in (("tiny", short < TINY), ("elongated", long > ELONGATED * short)):
            for number in np.flatnonzero(found & ~self.missing).tolist():
                yield Suspect(self.place(number), kind, f"{width[number]} x {height[number]} pixels")
        if self.image.orientation == "ignore":
            turned = self.column("orientation")
            for number in np.flatnonzero((turned > 1) & ~self.missing).tolist():
                yield Suspect(self.place(number), "turned", f"orientation {turned[number]}")


def _may_be_equal(parts: Sequence[_Tally]) -> list[npt.NDArray[np.bool_]]:
    """Says which images of each part may have the bytes of another one, by sizes and checksums: bool [rows] each.

    Hashing all would take a fifth of the time.
    """
    keys = [part.column("length").astype(np.uint64) << np.uint64(32) | part.column("crc32c") for part in parts]
    _, numbers, counts = np.unique(np.concatenate(keys), return_inverse=True, return_counts=True)
    bounds = list(accumulate(len(part.rows) for part in parts[:-1]))
    return np.split(counts[numbers] > 1, bounds)


class _Groups(NamedTuple):
    """Groups of images, as `DatasetReport` has them."""

    exact: tuple[AlikeGroup, ...]
    near: tuple[AlikeGroup, ...]
    leaks: tuple[AlikeGroup, ...]
    side_leaks: tuple[AlikeGroup, ...]
    bits: int | None


def _compare(parts: Sequence[_Tally], on_view: Callable[[int, int], None]) -> _Groups:
    """Find groups of the same bytes, groups that look alike, and groups with members in several parts or sides."""
    looks = np.concatenate([part.looks for part in parts])
    read = np.flatnonzero(looks["digest"].any(axis=1))
    same = np.arange(len(looks))
    same[read] = read[groups_of_equals(looks["digest"][read])]
    # One of each group of equals; images of one colour all look alike.
    sound = np.concatenate([part.sound & ~part.plain for part in parts])
    chosen = np.flatnonzero(sound & (same == np.arange(len(looks))))
    alike = np.arange(len(looks))
    found, bits = groups_of_alikes(looks["grey"][chosen], on_view)
    alike[chosen] = chosen[found]
    alike = alike[same]
    bounds = list(accumulate((len(part.rows) for part in parts), initial=0))

    def group(members: Numbers) -> AlikeGroup:
        places = (
            parts[part].place(number - bounds[part])
            for number in members.tolist()
            for part in [bisect_right(bounds, number) - 1]
        )
        return AlikeGroup(tuple(places), exact=len(np.unique(same[members])) == 1)

    own, sides = bounds[1], parts[0].sides
    of_own = _members(alike[:own])
    return _Groups(
        exact=tuple(group(members) for members in _members(same[:own])),
        near=tuple(each for members in of_own if not (each := group(members)).exact),
        leaks=tuple(group(members) for members in _members(alike) if members[0] < own <= members[-1]),
        side_leaks=tuple(group(members) for members in of_own if len({*sides[members].tolist()} - {NO_SIDE}) > 1),
        bits=bits,
    )


def _members(groups: Numbers) -> list[Numbers]:
    """The members of each group of two or more, in ascending order."""
    order = np.argsort(groups, kind="stable")
    pieces = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    return [piece for piece in pieces if len(piece) > 1]


def _histogram(values: npt.NDArray[np.float64]) -> Histogram | None:
    """Count values between edges that are equally far apart in their logarithm."""
    values = values[values > 0]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    edges = np.geomspace(low, high, _BINS + 1) if high > low else np.array([low, high])
    # Rounding must not leave out the extremes.
    edges[0], edges[-1] = low, high
    counts, _ = np.histogram(values, edges) if high > low else ([len(values)], None)
    return Histogram(tuple(map(float, edges)), tuple(map(int, counts)))


def _channels(looks: Looks, channels: int) -> ChannelFigures | None:
    if not len(looks):
        return None
    mean, square = (looks[name].mean(axis=0)[:channels] for name in ("mean", "square"))
    std = np.sqrt(np.maximum(0, square - mean**2))
    return ChannelFigures(tuple(mean.tolist()), tuple(std.tolist()), len(looks))
