"""Pins: marks in a dataset that say who needs a version of it, so that nobody removes the version."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from packtrain._core.arguments import whole
from packtrain._core.document import dump_document, load_document, parse_document
from packtrain._core.errors import DatasetError, OutputConflict, PackError, UsageError
from packtrain._core.files import file_errors
from packtrain._core.manifest import MANIFEST, Manifest
from packtrain._core.version_files import (
    BASE,
    LAYERS,
    PINS,
    SEGMENTS,
    base_manifest,
    has_versions,
    is_dropped,
    require_no_links,
    version_numbers,
)
from packtrain._core.versions import VERSION, Pin, load_version
from packtrain._storage.location import Location
from packtrain._storage.remote.urls import place_of
from packtrain._storage.staging.locks import VersionLease

from .object_workplace import workplace_at
from .version_check import named_by


def pin(dataset: str | os.PathLike[str], version: int, *, by: str) -> Location:
    """Keeps a version of a dataset from being removed. Who pins it twice has one pin.

    Args:
        dataset: The folder of the dataset, or its address in an object store.
        version: Number of the version; 1 of a dataset that was never changed.
        by: Who needs it: a path, an address, or any other name.

    Returns:
        The file of the pin.

    Raises:
        UsageError: There is no such version, it was dropped, or `by` is empty.
        PacktrainError: The dataset cannot be read, or not be written to.
    """
    number = whole("version", version, 1)
    if not by.strip():
        raise UsageError("`by` is empty: say who needs the version, such as the path of a dataset")
    with workplace_at(place_of("dataset", dataset)) as place:
        folder = place.folder
        require_no_links(folder)
        if number != place.newest().number:
            if not has_versions(folder):
                raise UsageError(f"{place.address} has only version 1: it was never changed since it was packed")
            place.bring_versions()
            load_version(folder, number)
        name = f"{PINS}/{hashlib.sha256(f'{number} {by}'.encode()).hexdigest()[:16]}.json"
        document = dump_document({"version": VERSION, **asdict(Pin(number, by, int(time.time())))})
        with file_errors(folder):
            place.write(name, document)
            if has_versions(folder):
                try:
                    place.bring_versions()
                    # Whoever drops the version holds it alone: before, it sees the pin; meanwhile, it is waited for.
                    VersionLease(folder, number).close()
                except UsageError:
                    place.remove(name)
                    raise
        return place.address / name


def unpin(dataset: str | os.PathLike[str], version: int, *, by: str) -> None:
    """Takes back what `pin` did.

    Raises:
        UsageError: There is no such pin; the message names those that there are.
        OutputConflict: A link stands in the place of one of the dataset's folders.
        PacktrainError: The dataset cannot be read, or not be written to.
    """
    with workplace_at(place_of("dataset", dataset)) as place:
        require_no_links(place.folder)
        place.bring_pins()
        pins = list(pins_of(place.folder))
        found = [path for path, each in pins if (each.number, each.by) == (version, by)]
        if not found:
            there = ", ".join(f"version {each.number} by {each.by}" for _, each in pins)
            raise UsageError(
                f"{place.address}: no pin of version {version} has `by` {by!r}; there is {there or 'none'}"
            )
        with file_errors(place.folder):
            for path in found:
                place.remove(f"{PINS}/{path.name}")


def pins_of(folder: Path) -> Iterator[tuple[Path, Pin]]:
    """The pins of a dataset, with the files that they are in.

    Raises:
        OutputConflict: One is damaged or cannot be read, so that nobody knows what it keeps.
    """
    for path in sorted((folder / PINS).glob("*.json")):
        try:
            yield path, parse_document(Pin, load_document(path, newest=VERSION), path)
        except FileNotFoundError:
            # Somebody has just taken it back.
            continue
        except DatasetError as error:
            raise OutputConflict(f"{error}. It says which version somebody needs: remove it if nobody does") from error


def pin_shards(shards: Iterable[Path], by: str) -> tuple[tuple[Path, int], ...]:
    """Keeps the versions whose shards somebody is to read in place: of each dataset those that have them.

    Args:
        shards: Any shards; those that belong to no dataset are passed over.
        by: Who is to read them.

    Returns:
        The datasets, and the versions that are kept.

    Raises:
        OutputConflict: No version has some of the shards any more, so that they may be removed at any time; or nothing
            can be written to a dataset that was changed.
        DatasetError: A dataset is not sound.
    """
    by_folder: dict[Path, set[str]] = {}
    for shard in shards:
        real = Path(os.path.realpath(shard))
        by_folder.setdefault(real.parent, set()).add(real.name)
    parts = (_part_in(folder, names) for folder, names in by_folder.items())
    needed = dict.fromkeys((part[0], _newest_with(*part)) for part in parts if part is not None)
    return tuple(each for each in needed if _pinned(*each, by))


def _part_in(folder: Path, names: set[str]) -> tuple[Path, str] | None:
    """The dataset that has some of these files in this folder, and the part of it that they are in, as `named_by`."""
    around = folder.parent
    if around.name in (SEGMENTS, LAYERS) and has_versions(around.parent):
        return around.parent, f"{around.name}/{folder.name}"
    if not (folder / MANIFEST).exists():
        return None
    manifest = base_manifest(folder) if has_versions(folder) else Manifest.load(folder)
    return (folder, BASE) if names & {shard.name for shard in manifest.shards} else None


def _newest_with(folder: Path, part: str) -> int:
    if not has_versions(folder):
        return 1
    for number in reversed(version_numbers(folder)):
        if not is_dropped(folder, number) and part in named_by([load_version(folder, number)]):
            return number
    raise OutputConflict(
        f"{folder}: no version has {part} any more, so its shards may be removed at any time. Take those of a version "
        "that is there, or copy them first"
    )


def _pinned(folder: Path, number: int, by: str) -> bool:
    try:
        pin(folder, number, by=by)
    except PackError as error:
        # Of a dataset that was never changed, nothing is removed.
        if not has_versions(folder):
            return False
        raise OutputConflict(
            f"version {number} of {folder} could be dropped while its shards are read from there, and nothing can be "
            f"written that keeps it ({error}). Copy the dataset instead: `packtrain pack {folder} OUT`"
        ) from error
    return True
