"""Splits a dataset into train, val and test, or into folds, as a new version that says which side each row is on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import checks_names, flag, items, unexpected, whole
from packtrain._core.errors import UsageError
from packtrain._core.printable import printable
from packtrain._core.schema import Field
from packtrain._core.version_files import SIDES
from packtrain._core.versions import MOST_FOLDS, NO_SIDE, WHOLE, Change, Segment, SegmentSides, Split, Version
from packtrain._readers.dataset.indexed import IndexedValues
from packtrain._readers.dataset.kept import is_kept
from packtrain._readers.dataset.sides import Sides, segment_sides
from packtrain._readers.dataset.store import RecordStore
from packtrain._readers.dataset.stored_rows import StoredRows
from packtrain._readers.dataset.versioned import newest_stores
from packtrain._storage.remote.urls import place_of

from .changing import ChangeReport, would_be
from .key_hashes import key_hashes
from .layers import write_column
from .object_workplace import workplace_at
from .regex_keys import REGEX, regex_hashes
from .sides import Hashes, JoinedSides, sides_of
from .workplace import Workplace

_PATH: Final = "path"
_DEFAULTS: Final = Split(val=0, test=0, folds=0, seed=0, by=(_PATH,), stratified=True)


@checks_names()
def split(
    dataset: str | os.PathLike[str],
    *,
    val: str | float | None = None,
    test: str | float | None = None,
    folds: int | None = None,
    seed: int | None = None,
    by: str | Sequence[str] | None = None,
    stratified: bool | None = None,
    replace_existing: bool = False,
    dry_run: bool = False,
) -> ChangeReport:
    """Splits a dataset into ``train``, ``val`` and ``test``, or into folds, as a new version.

    Which side a row is on follows from its key, its class, the seed and the shares alone, and stays the same for ever.
    Rows that are on a side stay there. After samples were appended, `split` without options puts these on a side, as
    the options say that the dataset was first split with.

    Args:
        dataset: The folder of the dataset, or its address in an object store.
        val: Share of the rows for ``val``, such as ``"10%"`` or 0.1. The rest is ``train``.
        test: Share of the rows for ``test``.
        folds: In place of shares, how many folds there are to be, of about the same size: ``fold-0`` and so on.
        seed: Another one gives another split, from 0, below 2**64. None: 0.
        by: Rows with the same key are on the same side. ``"path"``, the path of the row, is the key if it is None;
            ``"path:REGEX"`` is what the first group of a regular expression finds in it, or all that it finds if it has
            no group; the name of a field of texts, strings or whole numbers is its value. With several, rows that have
            any key in common.
        stratified: False to split all rows together, and not each class by itself. None: True. Without labels that are
            classes, all rows are one class.
        replace_existing: True to split anew, and forget which side rows are on.
        dry_run: True to write nothing, and report what would be written.

    Returns:
        The new version, or the newest one if all its rows are on a side. `sides` counts the rows on each.

    Raises:
        UsageError: The options do not fit together, or are others than those that the dataset was split with; or a row
            joins groups that are on different sides.
        PacktrainError: The dataset cannot be read, or not be written to.
    """
    given = {
        "val": _share("val", val),
        "test": _share("test", test),
        "folds": None if folds is None else whole("folds", folds, 2, MOST_FOLDS),
        "seed": None if seed is None else whole("seed", seed, 0, (1 << 64) - 1),
        "by": None if by is None else (by,) if isinstance(by, str) else tuple(items("by", by, "names of keys")),
        "stratified": None if stratified is None else flag("stratified", stratified),
    }
    wanted = _Wanted(
        {name: value for name, value in given.items() if value is not None}, flag("replace_existing", replace_existing)
    )
    flag("dry_run", dry_run)
    with workplace_at(place_of("dataset", dataset)) as place:
        before = newest = place.newest()
        found = _Found.of(place, newest, wanted)
        if dry_run:
            if not found.changed:
                return ChangeReport(place.address, newest.number, newest.records, sides=found.counts, dry_run=True)
            report = would_be(place, newest, newest.records, *[f"{SIDES}/*.npy"] * len(found.changed))
            return replace(report, sides=found.counts)

        def divided(newest: Version) -> Version:
            """The version that follows `newest`, each row of which is on a side; `newest` if that is so already."""
            nonlocal before, found
            if newest != before:
                before, found = newest, _Found.of(place, newest, wanted)
            return found.version_after(place.folder, newest) if found.changed else newest

        place.begin()
        version = place.publish(divided)
    return ChangeReport(place.address, version.number, version.records, sides=found.counts)


@dataclass(frozen=True)
class _Wanted:
    """The options that were given.

    Attributes:
        given: The options that were given, as `Split` has them.
        anew: True to forget the sides that there are.
    """

    given: dict[str, Any]
    anew: bool

    def of(self, version: Version) -> Split:
        """The split that a version is to have, with the sides that there are.

        Raises:
            UsageError: It does not say how, or otherwise than the version is split.
        """
        known = None if self.anew else version.split
        if known is not None:
            for name, value in self.given.items():
                if value != (there := getattr(known, name)):
                    raise UsageError(
                        f"`{name}` was {_shown(name, there)} when the dataset was split: leave it out to put new rows "
                        "on a side, or add --replace to split all rows anew"
                    )
            return known
        wanted = replace(_DEFAULTS, **self.given)
        if not (wanted.val or wanted.test or wanted.folds):
            raise UsageError("say how to split: `val`, such as 10%, `test`, or `folds`")
        if wanted.folds and (wanted.val or wanted.test):
            raise UsageError("`folds` and shares do not go together: leave out `val` and `test`")
        if wanted.val + wanted.test >= WHOLE:
            raise UsageError("`val` and `test` leave nothing for train: together they must be less than 100%")
        if not wanted.by:
            raise UsageError("`by` names no key: leave it out to split by path")
        return wanted


def _share(name: str, value: object) -> int | None:
    """A share in millionths."""
    if value is None:
        return None
    expected = "a share between 0 and 1, such as 10% or 0.1, of at most six decimals"
    text = str(value).strip()
    try:
        number = Decimal(text.removesuffix("%")) * (WHOLE // 100 if text.endswith("%") else WHOLE)
    except InvalidOperation:
        raise unexpected(name, value, expected) from None
    if isinstance(value, bool) or not number.is_finite() or not 0 < number < WHOLE or number != int(number):
        raise unexpected(name, value, expected)
    return int(number)


def _shown(name: str, value: Any) -> str:
    if name in ("val", "test"):
        return f"{Decimal(value) * 100 / WHOLE:f}%"
    return " ".join(value) if name == "by" else str(value)


@dataclass(frozen=True)
class _Found:
    """The side that each row is to be on.

    Attributes:
        split: How the version is split, with the sides that there are.
        changed: The new sides of the rows of segments, by their names.
        counts: Number of rows on each side, by its name.
    """

    split: Split
    changed: dict[str, Sides]
    counts: dict[str, int]

    @classmethod
    def of(cls, place: Workplace, version: Version, wanted: _Wanted) -> _Found:
        """The sides in the version after this one."""
        split, folder = wanted.of(version), place.folder
        records = [name for name in split.by if name in version.schema.names and not version.schema[name].indexed]
        for name in records:
            place.require_shards(f"`by` {name}")
        place.bring_indexes(version)
        stores = newest_stores(folder, version, index_only=not records)
        rows = [_kept(folder, segment) for segment in version.segments]
        before = [segment_sides(folder, split, segment) for segment in version.segments]
        recorded = np.concatenate([sides[kept] for sides, kept in zip(before, rows, strict=True)])
        keys = [
            np.concatenate(
                [_hashes(store, key, kept, split.seed, number) for store, kept in zip(stores, rows, strict=True)]
            )
            for number, key in enumerate(split.by)
        ]
        try:
            sides = sides_of(keys, _classes(version, stores, rows, split), recorded, split)
        except JoinedSides as error:
            stored = StoredRows.of_segments(folder, version.segments, stores)
            raise _joined(stored, split, recorded, error) from None
        changed, start = {}, 0
        for segment, kept, old in zip(version.segments, rows, before, strict=True):
            new = old.copy()
            new[kept] = sides[start : start + segment.rows]
            start += segment.rows
            if split.of(segment.name) is None or not np.array_equal(new, old):
                changed[segment.name] = new
        counts = np.bincount(sides, minlength=len(split.names)).tolist()
        return cls(
            split,
            changed,
            {name: count for name, count in zip(split.names, counts, strict=True) if _is_side(split, name)},
        )

    def version_after(self, folder: Path, newest: Version) -> Version:
        """The version that follows `newest`, with the new sides."""
        written = [_written(folder, name, sides) for name, sides in self.changed.items()]
        kept = (each for each in self.split.rows if each.segment not in self.changed)
        counts = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        changed = newest.after(Change("split", f"split by {' and '.join(self.split.by)}: {counts}"), newest.segments)
        return replace(changed, split=replace(self.split, rows=(*kept, *written)))


def _is_side(split: Split, name: str) -> bool:
    return not ((name == "val" and not split.val) or (name == "test" and not split.test))


def carried_names(before: Version, count: int) -> list[str]:
    """The names of what `carried_sides` would write for so many new segments; ``*`` stands for what is drawn."""
    return [] if before.split is None else [f"{SIDES}/*.npy"] * count


def carried_sides(folder: Path, before: Version, made: Iterable[tuple[Sequence[Segment], Segment]]) -> Split | None:
    """The split of a version in which new segments take the place of others: rows stay on their sides."""
    if (split := before.split) is None:
        return None
    rows = {each.segment: each for each in split.rows}
    for run, new in made:
        sides = [segment_sides(folder, split, segment)[_kept(folder, segment)] for segment in run]
        for segment in run:
            rows.pop(segment.name, None)
        if ((together := np.concatenate(sides)) != NO_SIDE).any():
            rows[new.name] = _written(folder, new.name, together)
    return replace(split, rows=tuple(rows.values()))


def _written(folder: Path, segment: str, sides: Sides) -> SegmentSides:
    column = write_column(folder, SIDES, sides)
    return SegmentSides(column.name, column.bytes, column.crc32c, segment)


def _kept(folder: Path, segment: Segment) -> Any:
    """The index of the rows of a segment that the version has: a slice of all, or a boolean for each."""
    return slice(None) if segment.dropped is None else is_kept(folder, segment)


def _classes(
    version: Version, stores: Sequence[RecordStore], rows: Sequence[Any], split: Split
) -> npt.NDArray[np.int64]:
    """The class of each row, from 0, in the order of the labels; all 0 if they count together."""
    if not split.stratified or str(version.labels) != "int":
        return np.zeros(version.records, np.int64)
    labels = np.concatenate([store.all_labels()[kept] for store, kept in zip(stores, rows, strict=True)])
    least, most = int(labels.min()), int(labels.max())
    if most - least >= version.records:
        return np.unique(labels, return_inverse=True)[1].astype(np.int64)
    labels -= least
    there = np.bincount(labels) > 0
    numbers: npt.NDArray[np.int64] = labels if there.all() else (np.cumsum(there) - 1)[labels]
    return numbers


def _hashes(store: RecordStore, key: str, kept: Any, seed: int, number: int) -> Hashes:
    """The hash of the key of each row of a segment that is kept."""
    if key == _PATH:
        # Both take about as long, and what is hashed of a damaged index is thrown away.
        with ThreadPoolExecutor(1) as pool:
            hashed = pool.submit(key_hashes, store.index["path_offsets"], store.index["path_bytes"], seed, number)
            store.index.check_all()
        of_all: Hashes = hashed.result()[kept]
        return of_all
    store.index.check_all()
    rows = np.arange(len(store))[kept].tolist()
    if key.startswith(REGEX):
        return regex_hashes(store, key.removeprefix(REGEX), rows, seed, number)
    contents = list(_values(store, key, rows))
    ends = np.cumsum([0, *map(len, contents)])
    return key_hashes(ends, np.frombuffer(b"".join(contents), np.uint8), seed, number)


def _values(store: RecordStore, name: str, rows: Sequence[int]) -> Iterator[bytes]:
    """The values of a field of some rows, as texts; the path of a row that is without it."""
    usable = [field.name for field in store.schema.fields if _is_key(field)]
    if name not in usable:
        what = (
            f"it is of the kind {store.schema[name].kind}" if name in store.schema.names else "there is no such field"
        )
        raise UsageError(
            f"`by` {name}: {what}. Keys are path, path:REGEX, and texts, strings and whole numbers, of which there are "
            f"{', '.join(usable) or 'none'}"
        )
    records = store.field(name)
    for row in rows:
        if isinstance(records, IndexedValues):
            value = records.value(row)
            found = None if value is None else str(value).encode()
        else:
            record = records.read(row)
            found = None if record is None else bytes(record)
        yield os.fsencode(store.filename(row)) if found is None else found


def _is_key(field: Field) -> bool:
    return field.kind in ("text", "string") or (field.kind, field.dtype) == ("number", "<i8")


def _joined(stored: StoredRows, split: Split, recorded: Sides, error: JoinedSides) -> UsageError:
    def shown(row: int) -> str:
        store, inner = stored.locate(row)
        side = f" on {split.names[recorded[row]]}" if recorded[row] != NO_SIDE else ""
        return f"row {row} ({printable(store.filename(inner))}){side}"

    one, other, joining = error.rows
    what = f"{shown(joining)} belongs to" if joining >= 0 else "there are"
    return UsageError(
        f"{stored.name}: {what} groups on different sides: {shown(one)}, and {shown(other)}. Drop one of them, or "
        "add --replace to split all rows anew"
    )
