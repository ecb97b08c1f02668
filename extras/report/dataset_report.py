"""Looks at every image of a dataset, and makes a report of it."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import checks_names, function, path_of, whole
from packtrain._core.errors import UsageError
from packtrain._core.schema import IMAGE
from packtrain._packer.engine import run_tasks
from packtrain._packer.rejects import read_rejects
from packtrain._readers.dataset.store import RecordStore
from packtrain._readers.dataset.summary import summarise
from packtrain._storage.location import remote_base

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
    num_workers: int = 1,
    on_progress: Callable[[ReportProgress], None] | None = None,
) -> DatasetReport:
    """Look at every image of a dataset: sizes, colours, duplicates, and what looks wrong.

    Images are decoded in forked processes with limits on memory and time, so that one that was made to do harm is a
    suspect in the report. docs/reports.md says how duplicates are found, and how many of them.

    Args:
        path: Folder of the dataset.
        against: Folder of another one, such as that for validation, whose images should not be in this one.
        num_workers: Number of worker processes. The default, 1, uses only one core; the command ``packtrain report``
            uses all available cores. Workers are spawned, so with more than one the calling script needs the usual
            ``if __name__ == "__main__"``.
        on_progress: Called in the calling process as the work goes on.

    Returns:
        What was found. It does not depend on the number of workers.

    Raises:
        UsageError: An argument has the wrong type or is out of range, or a dataset has no images, or its shards lie in
            an object store.
        NotADataset: There is no manifest.
        CorruptFile: The index is damaged. A damaged image is reported.
    """
    whole("num_workers", num_workers, 1)
    function("on_progress", on_progress)
    parts = [_Part("path", path)]
    if against is not None:
        parts.append(_Part("against", against))
        if parts[1].folder.resolve() == parts[0].folder.resolve():
            raise UsageError(f"against={os.fspath(against)!r} is the dataset itself: name another one")
    total, done = sum(len(part.store) for part in parts), 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        if on_progress is not None:
            on_progress(ReportProgress(done, total))

    def compare(view: int, views: int) -> None:
        if on_progress is not None:
            on_progress(ReportProgress(total, total, view, views))

    advance(0)
    tasks = [task for number, part in enumerate(parts) for task in part.tasks(number)]
    for seen in run_tasks(look_at, tasks, workers=min(num_workers, len(tasks)), on_progress=advance):
        parts[seen.part].add(seen)
    own = parts[0]
    exact, near, leaks, bits = _compare(parts, compare)
    columns = own.store.index.field(IMAGE)
    width, height = (columns[name][~own.missing].astype(np.float64) for name in ("width", "height"))
    return DatasetReport(
        dataset=own.name,
        against=None if against is None else parts[1].name,
        summary=summarise(path),
        long_sides=_histogram(np.maximum(width, height)),
        aspect_ratios=_histogram(width / np.maximum(1, height)),
        record_bytes=_histogram(columns["length"][~own.missing].astype(np.float64)),
        channels=_channels(own.looks[own.looks["measured"]], own.store.manifest.store.channels),
        reject_reasons=dict(
            Counter(reject.reason for reject in read_rejects(own.folder, own.store.manifest)).most_common()
        ),
        exact=exact,
        near=near,
        leaks=leaks,
        compared_bits=bits,
        suspects=tuple(own.suspects()),
    )


class _Part:
    """A dataset, and what was seen of it so far."""

    def __init__(self, argument: str, given: str | os.PathLike[str]) -> None:
        self.folder: Final = path_of(argument, given)
        self.name: Final = os.fspath(given)
        self.store: Final = RecordStore(self.folder)
        manifest = self.store.manifest
        if manifest.schema.image is None:
            raise UsageError(f"{self.name} has no images, and a report is about images")
        if remote_base(self.folder, manifest) is not None:
            raise UsageError(f"the shards of {self.name} lie in an object store: copy it with `packtrain stage` first")
        self.store.index.check_all()
        self.looks: Final[Looks] = np.zeros(len(self.store), LOOK)
        self.missing: Final = np.zeros(len(self.store), bool)
        self.problems: Final[dict[int, str]] = {}

    def tasks(self, part: int) -> Iterator[Range]:
        """What there is to look at."""
        rows = len(self.store)
        for start in range(0, rows, _RECORDS_AT_ONCE):
            yield Range(part, self.folder, start, min(rows, start + _RECORDS_AT_ONCE), max(1, rows // _MEASURED))

    def add(self, seen: Seen) -> None:
        """Add what was seen of a range."""
        self.looks[seen.rows], self.missing[seen.rows] = seen.looks, seen.missing
        self.problems.update(seen.problems)

    def place(self, row: int) -> Place:
        """Name a row."""
        return Place(self.name, row, self.store.filename(row))

    @property
    def sound(self) -> npt.NDArray[np.bool_]:
        """Which rows have an image that was decoded."""
        sound = ~self.missing
        sound[list(self.problems)] = False
        return sound

    @property
    def plain(self) -> npt.NDArray[np.bool_]:
        """Which rows have an image of one colour."""
        low: npt.NDArray[np.bool_] = self.looks["contrast"] < _PLAIN
        return self.sound & low

    def suspects(self) -> Iterator[Suspect]:
        """What looks wrong, kind by kind, each in the order of rows."""
        for row, problem in sorted(self.problems.items()):
            yield Suspect(self.place(row), "damaged", problem)
        columns, plain = self.store.index.field(IMAGE), self.plain
        bottoms = self.looks["grey_bottom"]
        for row in np.flatnonzero(self.sound & ~plain & (bottoms >= _GREY_BOTTOM)).tolist():
            yield Suspect(self.place(row), "truncated", f"the last {bottoms[row]:.0%} of its rows are grey")
        for row in np.flatnonzero(plain).tolist():
            yield Suspect(self.place(row), "one colour", f"grey value {self.looks['grey'][row].mean():.0f} of 255")
        width, height = (columns[name].astype(np.int64) for name in ("width", "height"))
        short, long = np.minimum(width, height), np.maximum(width, height)
        for kind, found in (("tiny", short < TINY), ("elongated", long > ELONGATED * short)):
            for row in np.flatnonzero(found & ~self.missing).tolist():
                yield Suspect(self.place(row), kind, f"{width[row]} x {height[row]} pixels")
        if self.store.manifest.store.orientation == "ignore" and "orientation" in columns:
            turned = columns["orientation"]
            for row in np.flatnonzero((turned > 1) & ~self.missing).tolist():
                yield Suspect(self.place(row), "turned", f"orientation {turned[row]}")


def _compare(
    parts: Sequence[_Part], on_view: Callable[[int, int], None]
) -> tuple[tuple[AlikeGroup, ...], tuple[AlikeGroup, ...], tuple[AlikeGroup, ...], int | None]:
    """Find groups of the same bytes, groups that look alike, and groups with members in several parts."""
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
    bounds = list(accumulate((len(part.store) for part in parts), initial=0))

    def group(rows: Numbers) -> AlikeGroup:
        places = (
            parts[number].place(row - bounds[number])
            for row in rows.tolist()
            for number in [bisect_right(bounds, row) - 1]
        )
        return AlikeGroup(tuple(places), exact=len(np.unique(same[rows])) == 1)

    own = bounds[1]
    exact = tuple(group(rows) for rows in _members(same[:own]))
    near = tuple(each for rows in _members(alike[:own]) if not (each := group(rows)).exact)
    leaks = tuple(group(rows) for rows in _members(alike) if rows[0] < own <= rows[-1])
    return exact, near, leaks, bits


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
