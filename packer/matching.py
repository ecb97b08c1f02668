"""Finds the rows of a dataset that the rows of a list are about, by their paths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError
from packtrain._core.index import Index
from packtrain._core.printable import printable
from packtrain._core.versions import Segment, Version, segment_manifest
from packtrain._readers.dataset.kept import is_kept

from .listing import Listing, all_entries

MISSING: Final = -1
_NAMED: Final = 3


def require_sound(table: Listing, listed: Path) -> None:
    """Raises ListError if a row of a list could not be read: none may be left out."""
    if table.rejects:
        first = table.rejects[0]
        raise ListError(f"{listed}: line {first.line}: {first.reason}")


def matched(
    folder: Path, version: Version, table: Listing, listed: Path, *, optional: bool
) -> dict[str, npt.NDArray[np.int64]]:
    """For each segment, the ordinal of the list's row for each of its rows, `MISSING` where there is none.

    Args:
        folder: The dataset.
        version: Its version.
        table: The list, whose paths are the keys, byte for byte.
        listed: Path of the list, for messages.
        optional: True if the list may be without some rows of the dataset.

    Raises:
        ListError: A key is there twice, in the list or in the dataset, names no row, or is missing though it must not.
    """
    ordinals = _ordinals_by_key(table, listed)
    matches: dict[str, npt.NDArray[np.int64]] = {}
    uses, of_dropped = np.zeros(len(table), np.int64), np.zeros(len(table), bool)
    missing = list[str]()
    for segment in version.segments:
        keys = _keys(folder, segment)
        found = np.fromiter((ordinals.get(key, MISSING) for key in keys), np.int64, segment.records)
        kept = is_kept(folder, segment)
        there = found != MISSING
        uses += np.bincount(found[kept & there], minlength=len(table))
        of_dropped[found[~kept & there]] = True
        if not optional:
            missing += [_shown(keys[row]) for row in np.flatnonzero(kept & ~there)[:_NAMED].tolist()]
        matches[segment.name] = found
    if (uses > 1).any():
        raise ListError(f"{folder}: several samples have the same path, such as {_some(table, uses > 1)}")
    if (unknown := (uses == 0) & ~of_dropped).any():
        raise ListError(
            f"{listed}: {np.count_nonzero(unknown):,} keys name no sample of {folder}, such as {_some(table, unknown)}"
        )
    if missing:
        raise ListError(
            f"{listed} has nothing for some samples of {folder}, such as {', '.join(missing[:_NAMED])}: with "
            "--optional, samples may be without a field"
        )
    return matches


def _ordinals_by_key(table: Listing, listed: Path) -> Mapping[bytes, int]:
    found: dict[bytes, int] = {}
    for ordinal, entry in enumerate(all_entries(table)):
        key = os.fsencode(entry.path)
        if found.setdefault(key, ordinal) != ordinal:
            first = table.line_numbers(np.array([found[key]]))[0]
            raise ListError(f"{listed}: line {entry.line} has the same key as line {first}: {_shown(key)}")
    return found


def _keys(folder: Path, segment: Segment) -> Sequence[bytes]:
    """The paths of all rows of a segment."""
    index = Index.of(segment.folder(folder), segment_manifest(folder, segment))
    index.check_content()
    offsets, texts = index["path_offsets"].tolist(), index["path_bytes"].tobytes()
    return [texts[start:stop] for start, stop in pairwise(offsets)]


def _some(table: Listing, chosen: npt.NDArray[np.bool_]) -> str:
    """The first keys of the rows that are chosen."""
    return ", ".join(_shown(os.fsencode(entry.path)) for entry in table.entries(np.flatnonzero(chosen)[:_NAMED]))


def _shown(key: bytes) -> str:
    return repr(printable(os.fsdecode(key)))
