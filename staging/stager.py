"""Staging a dataset, told as a story: is it there already, who copies, is there room, copy, publish."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from packtrain._core.errors import StagingError
from packtrain._core.files import output_errors
from packtrain._core.mounts import IN_MEMORY, file_system

from .copying import building, fill, is_local, missing_files
from .eviction import discard, sweep
from .inventory import holds
from .locks import Lease, extend, try_lock
from .notes import read_note, write_note
from .options import Show, StageOptions, Warn, relay
from .repairing import source_of
from .root import Root, lease_on
from .source import Source, SourceFile
from .transfer import warm_files


@dataclass(frozen=True)
class Staged:
    """A staged dataset, safe from eviction as long as its lease is open.

    Attributes:
        path: Its folder; open it like any other dataset.
        id: Name of that folder.
        bytes: Size of what is local.
        copied: Bytes that were copied for it now.
        shards: Number of shards.
        local_shards: Of these, those that are local.
        lease: Closed when it is dropped.
    """

    path: Path
    id: str
    bytes: int
    copied: int
    shards: int
    local_shards: int
    lease: Lease = field(repr=False, compare=False)


def stage(
    dataset: str | os.PathLike[str],
    options: StageOptions | None = None,
    *,
    on_progress: Show | None = None,
    on_warning: Warn | None = None,
) -> Staged:
    """Makes a verified copy of a dataset on fast storage of this machine, or finds the one that is there.

    Processes that want the same content share one copy: one of them copies, the others wait. Killed at any point, it
    leaves nothing that anybody has to clean up, and the next call goes on where it stopped.

    Args:
        dataset: The dataset's folder.
        options: Where to, and how.
        on_progress: Called several times a second.
        on_warning: Called with what a person should know, and do.

    Raises:
        NotADataset: `dataset` has no manifest.
        CorruptFile: It is damaged; SourceChanged: one of its files is not what was packed.
        NoRoom: It does not fit; NoSpace: others took the room while it was being copied.
        StagingError: It cannot be copied, or not to there.
    """
    options = options or StageOptions()
    show = on_progress or (lambda progress: None)
    # What is copied may be a staged copy itself, on a slower tier.
    with lease_on(Path(dataset)) or nullcontext():
        source = Source.load(dataset)
        root = Root.below(options.to)
        root.make()
        with output_errors(root.path, StagingError):
            staged = _find(root, source) or _build(root, source, options, show, on_warning or (lambda warning: None))
            if options.grace:
                extend(root.lock(source.key, "promise"), time.time() + options.grace)
    if options.warm and file_system(staged.path) not in IN_MEMORY:
        files = [file for file in source.files if is_local(staged.path, file)]
        warm_files(staged.path, files, threads=options.threads, on_progress=relay(show, "warm"))
    return staged


def _find(root: Root, source: Source) -> Staged | None:
    """The entry, if all of it is there."""
    lease = Lease(root.lock(source.key, "lease"))
    # Looked for under the lease: what is found, stays.
    path = root.find(source.key)
    if path is None or missing_files(path, source):
        lease.close()
        return None
    _tidy(root, source, path)
    return _staged(path, source, (), lease, 0)


def _build(root: Root, source: Source, options: StageOptions, show: Show, warn: Warn) -> Staged:
    """Copies what is missing, unless somebody else does; in that case waits."""
    with building(root, source.key, show):
        # From before it appears, so that nobody evicts it in between.
        lease = Lease(root.lock(source.key, "lease"))
        path = root.find(source.key)
        missing: Sequence[SourceFile] = source.files if path is None else missing_files(path, source)
        copied = 0
        if missing:
            if path is not None:
                # A partial entry may be older than the place where its source is now.
                source = _reachable(path, source)
            path, copied = fill(root, source, path, missing, options, show, warn)
            missing = missing_files(path, source)
        elif root.copy_folder(source.key).exists():
            with root.ledger():
                discard(root, source.key)
        assert path is not None, "nothing is missing of it"
        return _staged(path, source, missing, lease, copied)


def _tidy(root: Root, source: Source, path: Path) -> None:
    """Removes what a copier left that was killed just before its end; notes where the dataset is by now."""
    if root.copy_folder(source.key).exists() and (lock := try_lock(root.lock(source.key, "build"))) is not None:
        with lock, root.ledger():
            discard(root, source.key)
    if any(root.trash.iterdir()):
        with root.ledger():
            sweep(root)
    noted = read_note(path)
    if source.path not in (path, noted) and not (noted and holds(noted, source.key)):
        write_note(path, source.path)


def _reachable(path: Path, source: Source) -> Source:
    """`source`, or, if it is the entry itself, where that was copied from."""
    return source_of(path, source.key) if source.path == path else source


def _staged(path: Path, source: Source, missing: Sequence[SourceFile], lease: Lease, copied: int) -> Staged:
    shards, absent = source.manifest.shards, {file.name for file in missing}
    return Staged(
        path=path,
        id=path.name,
        bytes=sum(file.bytes for file in source.files if file.name not in absent),
        copied=copied,
        shards=len(shards),
        local_shards=sum(shard.name not in absent for shard in shards),
        lease=lease,
    )
