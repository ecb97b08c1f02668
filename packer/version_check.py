"""Checks a dataset of versions: its documents, every segment and layer once, and what no version names."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Final

import numpy as np

from packtrain._core.errors import DatasetError, RemoteError, UsageError
from packtrain._core.files import is_temporary
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, MANIFEST, VERSIONS
from packtrain._core.opening import read_regular
from packtrain._core.version_files import (
    BASE,
    BASE_MANIFEST,
    DROPPED,
    LAYERS,
    MOST_VERSION_BYTES,
    PINS,
    SEGMENTS,
    SIDES,
    base_manifest,
    is_dropped,
    version_name,
    version_numbers,
    version_path,
)
from packtrain._core.version_schema import version_schema
from packtrain._core.versions import Layer, Segment, Version, layer_manifest, load_version, segment_manifest
from packtrain._readers.dataset.kept import dropped_rows
from packtrain._readers.dataset.sides import segment_sides
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

from .problem import Problem

PLACES: Final = (SEGMENTS, LAYERS, DROPPED, SIDES)
_OTHERS: Final = (VERSIONS, PINS, "")
"""Folders in which only files may be left that were never finished."""
_PART: Final = re.compile(r"[0-9a-f]{16}(\.npy)?")


@dataclass(frozen=True)
class CheckedPart:
    """A segment or a layer.

    Attributes:
        name: Its folder, as seen from the dataset's; `BASE` for that itself.
        segment: The segment, or the one that the layer belongs to.
        layer: The layer; None for a segment.
    """

    name: str
    segment: Segment
    layer: Layer | None = None


def live_versions(folder: Path) -> tuple[list[Version], list[Problem]]:
    """The versions that were not dropped, and what is wrong with the documents of any."""
    versions, problems = list[Version](), list[Problem]()
    before: str | None = None
    for number in version_numbers(folder):
        path = version_path(folder, number)
        name = version_name(number)
        try:
            data = read_regular(path, MOST_VERSION_BYTES)
            version = load_version(folder, number, also_dropped=True)
        except (DatasetError, OSError) as error:
            problems.append(Problem(name, str(error)))
            before = None
            continue
        if before is not None and version.parent != before:
            problems.append(Problem(name, "names another version than the one before it as its parent"))
        before = hashlib.sha256(data).hexdigest()
        if not is_dropped(folder, number):
            versions.append(version)
    return versions, problems


def parts_of(versions: list[Version]) -> list[CheckedPart]:
    """Every segment and layer of these versions, once."""
    parts: dict[str, CheckedPart] = {}
    for version in versions:
        for segment in version.segments:
            layers = [CheckedPart(f"{LAYERS}/{layer.name}", segment, layer) for layer in segment.layers]
            name = BASE if segment.name == BASE else f"{SEGMENTS}/{segment.name}"
            for part in (CheckedPart(name, segment), *layers):
                parts.setdefault(part.name, part)
    return list(parts.values())


def check_versions(folder: Path, versions: list[Version]) -> Iterator[Problem]:
    """Finds what is wrong with what versions say of their parts, apart from the content of these."""
    checked = set[str]()
    for version in versions:
        name = version_name(version.number)
        try:
            merged = version_schema(folder, version.segments)
            if (merged.labels, merged.classes) != (version.labels, version.classes):
                yield Problem(name, "labels or classes are not those of its segments")
            if [field.name for field in merged.fields] != [field.name for field in version.fields]:
                yield Problem(name, "its fields are not those of its segments")
        except (DatasetError, UsageError) as error:
            yield Problem(name, str(error))
        for segment in version.segments:
            if segment.dropped is not None and segment.dropped.name not in checked:
                checked.add(segment.dropped.name)
                try:
                    dropped_rows(folder, segment.dropped, segment.records)
                except DatasetError as error:
                    yield Problem(f"{DROPPED}/{segment.dropped.name}.npy", str(error))
            sides = None if version.split is None else version.split.of(segment.name)
            if sides is not None and sides.name not in checked:
                checked.add(sides.name)
                try:
                    segment_sides(folder, version.split, segment)
                except DatasetError as error:
                    yield Problem(f"{SIDES}/{sides.name}.npy", str(error))


def check_layer(folder: Path, part: CheckedPart) -> Iterator[Problem]:
    """Compares the order of a layer with that of its segment."""
    assert part.layer is not None, "a segment has no order but its own"
    try:
        theirs = Index.of(folder / part.name, layer_manifest(folder, part.segment, part.layer))["by_place"]
        ours = Index.of(part.segment.folder(folder), segment_manifest(folder, part.segment))["by_place"]
    except DatasetError as error:
        yield Problem(f"{part.name}/{INDEX}", str(error))
        return
    if not np.array_equal(theirs, ours):
        yield Problem(f"{part.name}/{INDEX}/by_place.npy", "its records do not lie in the order of the segment's")


def named_by(versions: list[Version]) -> set[str]:
    """The segments, layers and files of rows that versions name, as seen from the dataset's folder, and `BASE`."""
    return {part.name for part in parts_of(versions)}.union(*(version.columns for version in versions))


def unnamed(folder: Path, named: Collection[str]) -> list[str]:
    """The parts that lie beside those that are `named`, and are called like one."""
    found = [
        str(PurePath(place, entry))
        for place in (*PLACES, *_OTHERS)
        if (folder / place).is_dir()
        for entry in sorted(os.listdir(folder / place))
    ]
    return [each for each in found if each not in named and is_part(each)]


def is_part(name: str) -> bool:
    """True for the name of a segment, a layer or a column, as seen from the dataset's folder, or what is left of one.

    All else is somebody else's. In a staged copy the segment of the folder itself lies beside these.
    """
    place, _, entry = name.rpartition("/")
    if place in PLACES and _PART.fullmatch(entry):
        return True
    return place in (*PLACES, *_OTHERS) and is_temporary(Path(entry))


def orphans(folder: Path, versions: list[Version]) -> list[str]:
    """The parts that none of these versions names: left by writers that were stopped, or written at this moment."""
    return unnamed(folder, named_by(versions))


def orphans_at(url: Url, objects: Objects, folder: Path) -> list[str]:
    """The same of a dataset at an address, whose documents are in a folder; none where nobody may list it."""
    versions, _ = live_versions(folder)
    named, parts = named_by(versions), set[str]()
    if url.writable:
        with suppress(RemoteError):
            parts = {"/".join(found.name.split("/")[:2]) for found in objects.list(url)}
    return sorted(part for part in parts - named if is_part(part))


@contextmanager
def seen_alone(folder: Path, part: CheckedPart, *, with_shards: bool = True) -> Iterator[Path]:
    """Gives a folder in which a segment or layer is a dataset like any other.

    That of the segment in the dataset's own folder is made of links, because its manifest has another name there. With
    `with_shards`, links lead to the shards that lie in other folders of this machine as well.
    """
    place = part.segment.folder(folder)
    if part.name != BASE or place != folder:
        yield place if part.layer is None else folder / part.name
        return
    with tempfile.TemporaryDirectory(prefix="packtrain-segment-") as name:
        for entry in os.listdir(folder):
            if entry not in (MANIFEST, VERSIONS, SEGMENTS, LAYERS, DROPPED, SIDES, PINS):
                Path(name, MANIFEST if entry == BASE_MANIFEST else entry).symlink_to(folder.absolute() / entry)
        if with_shards:
            # Whoever checks the manifest says what is wrong with it.
            with suppress(DatasetError):
                manifest = base_manifest(folder)
                for number, shard in enumerate(manifest.shards):
                    path, link = manifest.shard_path(folder.absolute(), number), Path(name, shard.name)
                    # A relative path leads elsewhere from here.
                    if path.exists() and not os.path.lexists(link):
                        link.symlink_to(path)
        yield Path(name)


def inside(part: CheckedPart, problem: Problem) -> Problem:
    """A problem of a part, seen from the dataset."""
    if part.name == BASE:
        return replace(problem, file=BASE_MANIFEST) if problem.file == MANIFEST else problem
    return replace(problem, file=f"{part.name}/{problem.file}")
