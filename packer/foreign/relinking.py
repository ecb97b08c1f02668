"""Brings the links of an indexed dataset up to date: where its shards lie, and their times."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packtrain._core.errors import OutputConflict, PackError
from packtrain._core.files import checksum_file, is_temporary
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, REJECTS, Manifest, ShardInfo
from packtrain._core.problems import reason

AGAIN: Final = "Index all shards again, into a new folder"


@dataclass(frozen=True)
class Comparison:
    """A task: compare the bytes of a shard, whose time has changed, with those that were indexed.

    Attributes:
        number: Number of the shard.
        path: Where it lies.
        shard: What the manifest says about it.
    """

    number: int
    path: Path
    shard: ShardInfo

    def __str__(self) -> str:
        return f"comparing {self.path}"


@dataclass(frozen=True)
class Compared:
    """A shard whose bytes are those that were indexed.

    Attributes:
        number: Number of the shard.
        modified_ns: Time of its last change, in nanoseconds since 1970.
    """

    number: int
    modified_ns: int


def shard_paths(folder: Path, manifest: Manifest) -> list[Path]:
    """Where the shards of a dataset lie."""
    return [Path(os.path.normpath(manifest.shard_path(folder, number))) for number in range(len(manifest.shards))]


def base_name(base: Path, folder: Path) -> str:
    """How the manifest names the folder of the shards: relative if both lie together, so that they move together."""
    together = folder.parent == base or folder.parent in base.parents
    return os.path.relpath(base, folder) if together else os.fspath(base)


def with_other_times(folder: Path, manifest: Manifest, before: str | None) -> list[Comparison]:
    """The shards whose time of change is not the one in the manifest.

    Args:
        folder: Folder of the dataset.
        manifest: Its manifest.
        before: Folder that the links started from so far, as the manifest named it.

    Raises:
        PackError: A shard cannot be found, or has another size.
    """
    found = []
    for number, (path, shard) in enumerate(zip(shard_paths(folder, manifest), manifest.shards, strict=True)):
        try:
            status = os.stat(path)
        except OSError as error:
            raise PackError(
                f"{path}, which is in the dataset, cannot be read: {reason(error)}. If the shards were moved, add "
                f"`--base DIR`: the folder that is now what {os.path.normpath(folder / (before or ''))} was"
            ) from error
        if shard.link is None or status.st_size != shard.bytes:
            raise _changed(path)
        if status.st_mtime_ns != shard.link.modified_ns:
            found.append(Comparison(number, path, shard))
    return found


def compare(task: Comparison, report: Callable[[int], None]) -> Compared:
    """Reads a shard, and returns its present time. Reports the number of bytes read.

    Raises:
        PackError: It cannot be read, or its bytes are not those that were indexed.
    """
    try:
        modified = os.stat(task.path).st_mtime_ns
        same = checksum_file(task.path) == task.shard.crc32c
        if os.stat(task.path).st_mtime_ns != modified:
            raise PackError(
                f"{task.path} was changed while it was read. Run the command again when nobody writes to it"
            )
    except OSError as error:
        raise PackError(f"{task.path} cannot be read: {reason(error)}") from error
    if not same:
        raise _changed(task.path)
    report(task.shard.bytes)
    return Compared(task.number, modified)


def with_times(manifest: Manifest, compared: Sequence[Compared]) -> Manifest:
    """The manifest with the present times of these shards."""
    shards = list(manifest.shards)
    for shard in compared:
        link = shards[shard.number].link
        assert link is not None
        shards[shard.number] = replace(shards[shard.number], link=replace(link, modified_ns=shard.modified_ns))
    return replace(manifest, shards=tuple(shards))


def require_outside(folder: Path, paths: Sequence[Path]) -> None:
    """Refuses shards in the folder of the dataset, which an update replaces with all that is in it.

    Raises:
        OutputConflict: There is one.
    """
    for path in paths:
        if any(where.is_relative_to(folder) for where in (path, Path(os.path.realpath(path)))):
            raise OutputConflict(
                f"{path} lies in the dataset's own folder, which an update replaces as a whole. Move the shard "
                "elsewhere; if this dataset is a copy made by `packtrain stage`, update the one that was staged"
            )


def require_no_strangers(folder: Path) -> None:
    """Refuses files in the folder of the dataset that are not the dataset's, which an update would remove.

    Raises:
        OutputConflict: There is one.
    """
    own = (PLAN, MANIFEST, REJECTS, INDEX)
    strangers = sorted(path.name for path in folder.iterdir() if path.name not in own and not is_temporary(path))
    if strangers:
        raise OutputConflict(
            f"{folder} also holds {', '.join(strangers[:3])}, which is no part of the dataset. An update replaces the "
            "folder as a whole: move it elsewhere first"
        )


def _changed(path: Path) -> PackError:
    return PackError(f"{path} has changed since it was indexed. {AGAIN}")
