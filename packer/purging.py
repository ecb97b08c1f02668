"""Takes rows out of a dataset so that their bytes are gone: drops them, writes their segments again, drops versions."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import checks_names, flag, function, whole
from packtrain._core.errors import DatasetError, OutputConflict, UsageError
from packtrain._core.files import file_errors
from packtrain._core.version_files import DROPPED, SEGMENTS, has_versions, is_dropped, version_numbers
from packtrain._core.versions import Change, Segment, Version, load_version
from packtrain._storage.remote.urls import place_of

from .changing import ChangeReport, by_segment, counted, require_own_shards, rows_to_drop, without_rows, would_be
from .joining import Progress, rewrite, segment_bytes
from .object_workplace import workplace_at
from .removing import drop_versions, remove_unneeded, sole_user
from .split import carried_names
from .version_check import named_by
from .workplace import Workplace


@checks_names()
def purge(
    dataset: str | os.PathLike[str],
    rows: Iterable[int] | None = None,
    *,
    where: str | None = None,
    num_workers: int = 1,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> ChangeReport:
    """Leaves rows out, and removes their bytes from where the dataset lies, with every version that has them.

    The rows are dropped in a new version; the segments that have dropped rows are written again without them, in
    another one; and all versions are dropped that name a segment which this one does not name. Copies elsewhere stay.
    Where there are no locks, as in an object store, files go a week later, by `packtrain.drop_version`.

    Args:
        dataset: The folder of the dataset, or its address in an object store.
        rows: Rows of the newest version, given as to `packtrain.drop_rows`. With neither `rows` nor `where`, the rows
            that were dropped already, or that a call was about which was stopped.
        where: In place of rows, a condition that holds for them, as `ImageDataset.where` takes it.
        num_workers: Number of worker processes, as in `packtrain.pack`.
        dry_run: True to write and remove nothing, and report what would be.
        on_progress: Called as by `packtrain.pack`, for each segment.

    Raises:
        UsageError: A row is outside the dataset, none would be left, or there is nothing to remove; or the dataset is
            an index of shards that lie elsewhere.
        OutputConflict: A version that would be dropped is open in a process, or another dataset needs it; the message
            says who. Nothing was changed then, unless it says so.
        PacktrainError: What `packtrain.pack` raises.
    """
    workers = whole("num_workers", num_workers, 1)
    function("on_progress", on_progress)
    flag("dry_run", dry_run)
    with workplace_at(place_of("dataset", dataset)) as place, file_errors(place.folder):
        newest = place.newest()
        with _unless_changed(place, newest):
            place.bring_manifests(newest)
            require_own_shards(place, newest.segments)
            named = rows is not None or where is not None
            numbers = rows_to_drop(place, newest, rows, where) if named else np.empty(0, np.int64)
            chosen = dict(by_segment(place, newest, numbers))
        affected = [each for each in newest.segments if each.dropped is not None or each.name in chosen]
        kept = tuple(each for each in newest.segments if each not in affected)
        if affected and not dry_run:
            place.begin()
        old = [1] if affected else []
        if has_versions(place.folder):
            place.bring_versions()
            old = _versions_beyond(place.folder, newest.number, {each.name for each in kept})
            with sole_user(place, old):
                pass
        if not affected and not old:
            raise UsageError(f"{place.address}: there is nothing to remove: say which rows, by `rows` or `where`")
        left = [each for each in affected if each.rows > len(chosen.get(each.name, ()))]
        # Before anything is written: it may be refused.
        again = Change("purge", f"wrote {len(left):,} segment(s) again")
        with _unless_changed(place, newest):
            rewrite(place, newest, [[each] for each in left], again, workers=workers, dry_run=True, on_progress=None)
        if dry_run:
            report = _would_be(place, newest, left, chosen)
            # What goes once there is another version, which names what is kept.
            removal = remove_unneeded(place, old, dry_run=True, kept=named_by([replace(newest, segments=kept)]))
            return replace(report, removal=removal)
        if chosen:
            change = Change("drop-rows", f"dropped {counted(len(numbers))}")
            place.publish(partial(without_rows, place, chosen, change))
        try:
            return _finished(place, workers, on_progress, len(numbers))
        except OutputConflict as error:
            if not chosen:
                raise
            raise OutputConflict(
                f"{error}: `packtrain purge {place.address}`, without rows. They are dropped, but their bytes are "
                "still there"
            ) from error


def _would_be(
    place: Workplace, newest: Version, left: Sequence[Segment], chosen: Mapping[str, npt.NDArray[np.int64]]
) -> ChangeReport:
    """Report what would be written: the segments that are `left`, without dropped and chosen rows."""
    count = sum(map(len, chosen.values()))
    return would_be(
        place,
        newest,
        newest.records - count,
        *[f"{DROPPED}/*.npy" for each in left if each.name in chosen],
        *[f"{SEGMENTS}/*"] * len(left),
        *carried_names(newest, len(left)),
        dropped=count,
        bytes=sum(segment_bytes(place.folder, each) for each in left),
        versions=bool(chosen) + bool(left),
    )


@contextmanager
def _unless_changed(place: Workplace, newest: Version) -> Iterator[None]:
    """Tells files that somebody else has removed, who purges the same dataset, from damage.

    Raises:
        OutputConflict: A file of `newest` is gone, and there is a newer version.
    """
    try:
        yield
    except (DatasetError, FileNotFoundError) as error:
        if place.newest().number == newest.number:
            raise
        raise OutputConflict(
            f"{place.address} was changed by somebody else meanwhile ({error}). Run the command again"
        ) from error


def _finished(place: Workplace, workers: int, on_progress: Progress | None, dropped: int) -> ChangeReport:
    """Removes the bytes of the rows that were dropped."""
    newest = place.newest()
    affected = [[each] for each in newest.segments if each.dropped is not None]
    if affected:
        gone = sum(each.records - each.rows for (each,) in affected)
        change = Change("purge", f"wrote {len(affected):,} segment(s) again without {counted(gone)}")
        with _unless_changed(place, newest):
            rewrite(place, newest, affected, change, workers=workers, dry_run=False, on_progress=on_progress)
    newest = place.newest()
    place.bring_versions()
    old = _versions_beyond(place.folder, newest.number, {each.name for each in newest.segments})
    removal = drop_versions(place, old, dry_run=False)
    return ChangeReport(place.address, newest.number, newest.records, dropped=dropped, removal=removal)


def _versions_beyond(folder: Path, last: int, names: Collection[str]) -> list[int]:
    """The numbers of the versions up to this one that name another segment than these."""
    numbers = (number for number in version_numbers(folder) if number <= last and not is_dropped(folder, number))
    # Somebody else may drop one before it is read.
    versions = (load_version(folder, number, also_dropped=True) for number in numbers)
    return [each.number for each in versions if not {segment.name for segment in each.segments} <= {*names}]
