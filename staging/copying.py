"""Copies the missing files of an entry: makes room, copies, publishes. The caller holds the entry's build lock."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from packtrain._core.errors import NoRoom
from packtrain._core.files import fsync_folder, remove_temporaries, temporary_path, write_file
from packtrain._core.locks import Lock
from packtrain._core.manifest import MANIFEST
from packtrain._core.sizes import size

from .diagnosis import warnings
from .eviction import Usage, discard_copy, make_room
from .locks import holders, try_lock
from .notes import allocated_bytes, read_note, write_note, write_reservation
from .options import OnStageProgress, OnWarning, StageOptions, StageProgress, relay
from .origin import origin_of
from .room import Room, room
from .root import Root
from .source import Source, SourceFile, overhead_bytes
from .transfer import copy_files

_POLL_SECONDS: Final = 0.1


def wait_for_build_lock(root: Root, key: str, on_progress: OnStageProgress) -> Lock:
    """Waits until no other process copies this dataset, and takes the lock that keeps others from doing so."""
    path = root.lock(key, "build")
    while (lock := try_lock(path)) is None:
        by = ", ".join(map(str, holders(path)))
        note = f"process {by} is copying it" if by else "another process is copying it"
        on_progress(StageProgress("wait", 0, 0, note=note))
        time.sleep(_POLL_SECONDS)
    return lock


def copy_missing(
    root: Root,
    source: Source,
    entry: Path | None,
    missing: Sequence[SourceFile],
    options: StageOptions,
    on_progress: OnStageProgress,
    on_warning: OnWarning,
) -> tuple[Path, int]:
    """Copies missing files into an entry, as many as there is room for, and publishes them.

    Args:
        root: The root that the entry is in.
        source: The dataset to copy from.
        entry: The entry's folder; None to make a new entry.
        missing: The files to copy.
        options: Limits on space and threads.
        on_progress: Called several times a second.
        on_warning: Called with each warning, before copying begins.

    Returns:
        The entry's folder, and the number of bytes copied.

    Raises:
        NoRoom: There is not enough room, even after evicting other entries.
    """
    folder = root.copy_folder(source.key)
    with root.ledger():
        files = _reserve(root, source, entry, missing, options)
    for warning in warnings(root.path.parent, source.path, sum(file.allocated for file in files)):
        on_warning(warning)
    data = folder / "data"
    data.mkdir(0o700, exist_ok=True)
    _remove_strays(data, files)
    done = copy_files(
        source.path, data, files, folder / "journal", threads=options.threads, on_progress=relay(on_progress, "copy")
    )
    origin = origin_of(source)
    if entry is None:
        _link_missing(data, source, origin)
        write_manifest(data, source)
        write_note(data, origin)
        fsync_folder(data)
    with root.ledger():
        if entry is None:
            entry = root.path / source.entry_name
            os.rename(data, entry)
            fsync_folder(root.path)
        else:
            for file in files:
                os.rename(data / file.name, entry / file.name)
            for place in {(entry / file.name).parent for file in files}:
                fsync_folder(place)
            _link_missing(entry, source, origin)
            if read_note(entry) != origin:
                write_note(entry, origin)
        discard_copy(root, source.key)
    return entry, done.copied


def _reserve(
    root: Root, source: Source, entry: Path | None, missing: Sequence[SourceFile], options: StageOptions
) -> list[SourceFile]:
    """Makes room for the missing files, or for as many as possible, and reserves it. The caller holds the ledger.

    Returns:
        The files that there is room for.
    """
    folder = root.copy_folder(source.key)
    overhead = 0 if entry else overhead_bytes(source.manifest)
    present = allocated_bytes(folder)

    need = overhead + sum(file.allocated for file in missing)
    what = f"{source.path} takes {size(need)}"

    def measure(usage: Usage, freed: int) -> Room:
        return room(
            root.path.parent,
            budget=options.budget,
            used=usage.used,
            promised=usage.promised,
            reserve=options.reserve,
            need=need - present,
            freed=freed,
        )

    try:
        found = make_room(root, source.key, need - present, measure, all_or_nothing=not options.partial)
    except NoRoom as error:
        hint = "" if options.partial else "; or stage what fits (--partial)"
        raise NoRoom(f"{what}, but {error}{hint}") from None
    files = list(_leading(missing, found.bytes + present - overhead))
    if entry is None and len(files) < sum(file.shard is None for file in missing):
        raise NoRoom(f"{what}, but not even its index fits: {found.message}")
    folder.mkdir(0o700, exist_ok=True)
    write_reservation(folder, source.path, overhead + sum(file.allocated for file in files))
    return files


def _leading(files: Sequence[SourceFile], room: int) -> Iterable[SourceFile]:
    """The first files that fit into `room` bytes; a shard is taken with all of its files or not at all."""
    for _, group in groupby(files, key=lambda file: file.name if file.shard is None else file.shard):
        together = list(group)
        room -= sum(file.allocated for file in together)
        if room < 0:
            return
        yield from together


def missing_files(path: Path, source: Source) -> list[SourceFile]:
    """The files that are not local in an entry, or have the wrong size."""
    return [file for file in source.files if not is_local(path, file)]


def is_local(path: Path, file: SourceFile) -> bool:
    """True if an entry has its own copy of a file, with the right size, rather than a link to the source."""
    try:
        status = os.stat(path / file.name, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.bytes


def _link_missing(folder: Path, source: Source, origin: Path) -> None:
    """Links every file that is not local to the origin. Readers can open every file at any moment."""
    remove_temporaries(folder)
    for file in source.files:
        path, target = folder / file.name, origin / file.name
        if (path.is_symlink() and path.readlink() != target) or not os.path.lexists(path):
            temporary = temporary_path(path)
            temporary.symlink_to(target)
            os.rename(temporary, path)


def _remove_strays(data: Path, files: Sequence[SourceFile]) -> None:
    """Removes what an interrupted copy left behind and this copy will not finish."""
    remove_temporaries(data)
    wanted = {file.name for file in files}
    for path in data.rglob("*"):
        # A link stands for a shard that the interrupted copy was not going to copy.
        if path.is_symlink() or (not path.is_dir() and str(path.relative_to(data)) not in wanted):
            path.unlink()


def write_manifest(folder: Path, source: Source) -> None:
    """Writes the manifest, which makes the folder a dataset."""
    write_file(folder / MANIFEST, [source.manifest.dump()])
    (folder / MANIFEST).chmod(0o444)
