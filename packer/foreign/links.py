"""The links of an indexed dataset: names of its shards, where they lie, their times, and how they come up to date."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from packtrain._core.errors import NotThere, OutputConflict, PackError
from packtrain._core.files import is_temporary
from packtrain._core.manifest import INDEX, LINKED_SUFFIX, MANIFEST, PLAN, REJECTS, Link, Manifest, ShardInfo
from packtrain._core.paths import is_url
from packtrain._storage.links import common_folder, path_below
from packtrain._storage.location import Location, shard_place
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url
from packtrain._storage.sequential import FileState, changed, checksum, file_state, file_states

from ..notes import PARTS
from .shard_files import unreadable

_PLAIN: Final = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,250}}{re.escape(LINKED_SUFFIX)}")
AGAIN: Final = "Index all shards again, into a new folder"


@dataclass(frozen=True)
class Comparison:
    """A task: compare the bytes of a shard, whose time has changed, with those that were indexed.

    Attributes:
        number: Number of the shard.
        place: Where it lies.
        shard: What the manifest says about it.
    """

    number: int
    place: Location
    shard: ShardInfo

    def __str__(self) -> str:
        return f"comparing {self.place}"


def shard_places(folder: Location, manifest: Manifest) -> list[Location]:
    """Return the locations of the shards of a dataset."""
    places = (shard_place(folder, manifest, number) for number in range(len(manifest.shards)))
    return [place if isinstance(place, Url) else Path(os.path.normpath(place)) for place in places]


def shard_names(places: Sequence[Location], taken: Sequence[str]) -> list[str]:
    """Unique plain names for new shards: what they are called, if that can be.

    Args:
        places: The shards.
        taken: The names of the shards before them.
    """
    used, names = {*taken}, []
    for number, place in enumerate(places, len(taken)):
        name = place.name
        if not _PLAIN.fullmatch(name) or name in used:
            stem = re.sub("[^A-Za-z0-9_-]", "_", PurePosixPath(name).stem)[:100]
            name = f"{stem}-{number:06d}{LINKED_SUFFIX}"
        while name in used:
            name = f"x{name}"
        used.add(name)
        names.append(name)
    return names


def linked_shards(shards: Sequence[tuple[Location, ShardInfo]]) -> tuple[Location, tuple[ShardInfo, ...]]:
    """The folder that all links start from, and the shards, which lie at these places, with links that start there.

    Raises:
        UsageError: Some lie on this machine and others in a store, or they lie in several buckets.
    """
    base = common_folder([place for place, _ in shards])
    return base, tuple(
        replace(shard, link=replace(shard.link or Link("", 0), path=path_below(place, base))) for place, shard in shards
    )


def with_other_times(folder: Location, manifest: Manifest, before: str | None, objects: Objects) -> list[Comparison]:
    """The shards whose time of change, or whose entity tag, is not the one in the manifest.

    Args:
        folder: Folder of the dataset.
        manifest: Its manifest.
        before: Folder that the links started from so far, as the manifest named it; None if they are not to change.
        objects: What object stores are read by.

    Raises:
        PackError: A shard cannot be found, or has another size.
    """
    found = []
    places = shard_places(folder, manifest)
    for number, (state, shard) in enumerate(zip(file_states(places, objects), manifest.shards, strict=True)):
        if isinstance(state, Exception):
            hint = ". It is in the dataset: if the shards were moved, add `--base DIR`, where DIR is the new place of "
            was = before if before is None or is_url(before) else os.path.normpath(Path(folder) / before)
            raise unreadable(places[number], state, f"{hint}{was}" if was else "") from state
        if shard.link is None or state.bytes != shard.bytes:
            raise _other_bytes(places[number])
        if (state.modified_ns, state.etag) != (shard.link.modified_ns, shard.link.etag):
            found.append(Comparison(number, places[number], shard))
    return found


def require_unchanged(out: Location, manifest: Manifest, objects: Objects) -> None:
    """Makes sure that the shards of a finished dataset are as they were when they were indexed.

    Raises:
        PackError: One is not, or cannot be looked at.
    """
    if not (others := with_other_times(out, manifest, None, objects)):
        return
    if isinstance(out, Url):
        raise _other_bytes(others[0].place)
    raise PackError(
        f"{others[0].place} has another time of change than when it was indexed. `packtrain index --update "
        f"{shlex.quote(os.fspath(out))}` compares its bytes and stores the new time"
    )


def compare(task: Comparison, report: Callable[[int], None], objects: Objects) -> tuple[int, FileState]:
    """Reads a shard. Returns its number and its present state, and reports the number of bytes read: 0 at first.

    Raises:
        PackError: It cannot be read, or its bytes are not those that were indexed.
    """
    report(0)
    try:
        state = file_state(task.place, objects)
        found = checksum(task.place, objects)
        if file_state(task.place, objects) != state:
            raise changed(task.place)
    except (OSError, NotThere) as error:
        raise unreadable(task.place, error) from error
    if found != task.shard.crc32c:
        raise _other_bytes(task.place)
    report(task.shard.bytes)
    return task.number, state


def with_times(manifest: Manifest, states: Mapping[int, FileState]) -> Manifest:
    """The manifest with the present times of these shards, by their numbers."""
    shards = list(manifest.shards)
    for number, state in states.items():
        link = shards[number].link
        assert link is not None
        shards[number] = replace(shards[number], link=Link(link.path, state.modified_ns, state.etag))
    return replace(manifest, shards=tuple(shards))


def require_outside(folder: Path, places: Sequence[Location]) -> None:
    """Refuses shards in the folder of the dataset, which an update replaces with all that is in it.

    Raises:
        OutputConflict: There is one.
    """
    for path in places:
        if isinstance(path, Path) and any(
            where.is_relative_to(folder) for where in (path, Path(os.path.realpath(path)))
        ):
            raise OutputConflict(
                f"{path} lies in the dataset's own folder, which an update replaces as a whole. Move the shard "
                "elsewhere; if this dataset is a copy made by `packtrain stage`, update the one that was staged"
            )


def require_no_strangers(folder: Path) -> None:
    """Refuses files in the folder of the dataset that are not the dataset's, which an update would remove.

    Raises:
        OutputConflict: There is one.
    """
    own = (PLAN, MANIFEST, REJECTS, INDEX, PARTS)
    strangers = sorted(path.name for path in folder.iterdir() if path.name not in own and not is_temporary(path))
    if strangers:
        raise OutputConflict(
            f"{folder} also holds {', '.join(strangers[:3])}, which is no part of the dataset. An update replaces the "
            "folder as a whole: move it elsewhere first"
        )


def _other_bytes(place: Location) -> PackError:
    return PackError(f"{place} has changed since it was indexed. {AGAIN}")
