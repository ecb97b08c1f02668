"""Copying what is missing of an entry: room, copy, publish. For those who hold its build lock."""

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
from packtrain._core.manifest import MANIFEST
from packtrain._core.sizes import size

from .diagnosis import warnings
from .eviction import Sums, discard, make_room
from .inventory import holds
from .locks import Lock, holders, try_lock
from .notes import allocated, read_note, write_note, write_reservation
from .options import Show, StageOptions, StageProgress, Warn, relay
from .room import Room, room
from .root import Root
from .source import Source, SourceFile, allocated_beside
from .transfer import copy_files

_POLL_SECONDS: Final = 0.1


def building(root: Root, key: str, show: Show) -> Lock:
    """Waits until nobody else copies this, and keeps others from doing so."""
    path = root.lock(key, "build")
    while (lock := try_lock(path)) is None:
        by = ", ".join(map(str, holders(path)))
        show(StageProgress("wait", 0, 0, note=f"process {by} is copying it" if by else "it is being copied"))
        time.sleep(_POLL_SECONDS)
    return lock


def fill(
    root: Root,
    source: Source,
    entry: Path | None,
    missing: Sequence[SourceFile],
    options: StageOptions,
    show: Show,
    warn: Warn,
) -> tuple[Path, int]:
    """Copies files into an entry, new or not, as far as there is room. Returns it, and the bytes that were copied."""
    folder = root.copy_folder(source.key)
    with root.ledger():
        files = _reserve(root, source, entry, missing, options)
    for warning in warnings(root.path.parent, source.path, sum(file.allocated for file in files)):
        warn(warning)
    data = folder / "data"
    data.mkdir(0o700, exist_ok=True)
    _remove_strays(data, files)
    done = copy_files(
        source.path, data, files, folder / "journal", threads=options.threads, on_progress=relay(show, "copy")
    )
    origin = _origin(source)
    if entry is None:
        _link(data, source, origin)
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
            _link(entry, source, origin)
            if read_note(entry) != origin:
                write_note(entry, origin)
        discard(root, source.key)
    return entry, done.copied


def _reserve(
    root: Root, source: Source, entry: Path | None, missing: Sequence[SourceFile], options: StageOptions
) -> list[SourceFile]:
    """Finds room for the files, or for as many as there is room for, and notes it. For those who hold the ledger."""
    folder = root.copy_folder(source.key)
    beside = 0 if entry else allocated_beside(source.manifest)
    own = allocated(folder)

    need = beside + sum(file.allocated for file in missing)
    what = f"{source.path} takes {size(need)}"

    def measure(sums: Sums, freed: int) -> Room:
        return room(
            root.path.parent,
            budget=options.budget,
            used=sums.used,
            promised=sums.promised,
            reserve=options.reserve,
            need=need - own,
            freed=freed,
        )

    try:
        found = make_room(root, source.key, need - own, measure, all_of_it=not options.partial)
    except NoRoom as error:
        hint = "" if options.partial else "; or stage what fits (--partial)"
        raise NoRoom(f"{what}, and {error}{hint}") from None
    files = list(_leading(missing, found.bytes + own - beside))
    if entry is None and len(files) < sum(file.shard is None for file in missing):
        raise NoRoom(f"{what}, and not even its index fits: {found.message}")
    folder.mkdir(0o700, exist_ok=True)
    write_reservation(folder, source.path, beside + sum(file.allocated for file in files))
    return files


def _leading(files: Sequence[SourceFile], room: int) -> Iterable[SourceFile]:
    """The first files that fit; of shards only whole ones, with all that belongs to them."""
    for _, group in groupby(files, key=lambda file: file.name if file.shard is None else file.shard):
        together = list(group)
        room -= sum(file.allocated for file in together)
        if room < 0:
            return
        yield from together


def missing_files(path: Path, source: Source) -> list[SourceFile]:
    """What is not local in an entry, or has not its size."""
    return [file for file in source.files if not is_local(path, file)]


def is_local(path: Path, file: SourceFile) -> bool:
    """Whether a file of an entry is a file of its own, of the right size, and no link to the source."""
    try:
        status = os.stat(path / file.name, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.bytes


def _origin(source: Source) -> Path:
    """Where a dataset is at home: what is copied may be a staged copy itself, which is evicted one day."""
    noted = read_note(source.path)
    return noted if noted is not None and holds(noted, source.key) else source.path


def _link(folder: Path, source: Source, origin: Path) -> None:
    """Makes what is not local a link to where it is at home, at any moment to one that readers can open."""
    remove_temporaries(folder)
    for file in source.files:
        path, target = folder / file.name, origin / file.name
        if (path.is_symlink() and path.readlink() != target) or not os.path.lexists(path):
            temporary = temporary_path(path)
            temporary.symlink_to(target)
            os.rename(temporary, path)


def _remove_strays(data: Path, files: Sequence[SourceFile]) -> None:
    """Removes what an interrupted copy has left and this one will not finish."""
    remove_temporaries(data)
    wanted = {file.name for file in files}
    for path in data.rglob("*"):
        # A link stands for a shard that was not to be copied then.
        if path.is_symlink() or (not path.is_dir() and str(path.relative_to(data)) not in wanted):
            path.unlink()


def write_manifest(folder: Path, source: Source) -> None:
    """Writes what makes a folder a dataset."""
    write_file(folder / MANIFEST, [source.manifest.dump()])
    (folder / MANIFEST).chmod(0o444)
