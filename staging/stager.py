"""Stages a dataset: finds the complete copy, or waits for the process that copies it, or makes the copy."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from packtrain._core.errors import StagingError
from packtrain._core.files import file_errors
from packtrain._core.mounts import IN_MEMORY, file_system

from .copying import copy_missing, is_local, missing_files, wait_for_build_lock
from .eviction import discard_copy, empty_trash
from .inventory import holds_dataset
from .locks import Lease, extend, try_lock
from .notes import read_note, write_note
from .options import OnStageProgress, OnWarning, StageOptions, relay
from .origin import load_origin
from .root import Root, lease_on
from .source import Source, SourceFile
from .transfer import warm_files


@dataclass(frozen=True)
class Staged:
    """A staged dataset. It is safe from eviction as long as its lease is open.

    Attributes:
        path: Folder of the copy; open it like any other dataset.
        id: Name of that folder.
        bytes: Total size of the local files in bytes.
        copied: Bytes that this call copied; 0 if the copy was already there.
        shards: Number of shards in the dataset.
        local_shards: Number of shards that were copied; the others are links to the source.
        lease: The lease. It ends when it is closed or garbage-collected.
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
    on_progress: OnStageProgress | None = None,
    on_warning: OnWarning | None = None,
) -> Staged:
    """Makes a verified copy of a dataset on fast storage of this machine, or finds an existing one.

    Processes that want the same content share one copy: one process copies, the others wait. A call that is killed
    leaves nothing to clean up, and the next call continues where it stopped.

    Args:
        dataset: The dataset's folder.
        options: Where and how to stage; None for the defaults.
        on_progress: Called several times a second.
        on_warning: Called with each warning for the user, one sentence that also says what to do.

    Returns:
        The staged copy, with a lease on it.

    Raises:
        NotADataset: `dataset` has no manifest.
        CorruptFile: The dataset is damaged.
        SourceChanged: A file of the dataset is not what was packed.
        NoRoom: The dataset does not fit.
        NoSpace: Other programs filled the file system during the copy.
        StagingError: The dataset cannot be copied, or not to that folder.
    """
    options = options or StageOptions()
    report = on_progress or (lambda progress: None)
    # The dataset may itself be a staged copy, for example on a slower disk.
    with lease_on(Path(dataset)) or nullcontext():
        source = Source.load(dataset)
        root = Root.below(options.to)
        root.make()
        with file_errors(root.path, StagingError):
            staged = _find_complete(root, source) or _build(
                root, source, options, report, on_warning or (lambda warning: None)
            )
            if options.grace:
                extend(root.lock(source.key, "promise"), time.time() + options.grace)
    if options.warm and file_system(staged.path) not in IN_MEMORY:
        files = [file for file in source.files if is_local(staged.path, file)]
        warm_files(staged.path, files, threads=options.threads, on_progress=relay(report, "warm"))
    return staged


def _find_complete(root: Root, source: Source) -> Staged | None:
    """The entry, if all of its files are local."""
    lease = Lease(root.lock(source.key, "lease"))
    # Searched for while the lease is held, so that an entry that is found cannot be evicted.
    path = root.find(source.key)
    if path is None or missing_files(path, source):
        lease.close()
        return None
    _tidy(root, source, path)
    return _describe(path, source, (), lease, 0)


def _build(
    root: Root, source: Source, options: StageOptions, on_progress: OnStageProgress, on_warning: OnWarning
) -> Staged:
    """Copies what is missing, after waiting for any other process that is copying the same dataset."""
    with wait_for_build_lock(root, source.key, on_progress):
        # Taken before the entry appears, so that it cannot be evicted in between.
        lease = Lease(root.lock(source.key, "lease"))
        path = root.find(source.key)
        missing: Sequence[SourceFile] = source.files if path is None else missing_files(path, source)
        copied = 0
        if missing:
            if path is not None:
                # The dataset may have moved since the partial entry was made.
                source = _copyable(path, source)
            path, copied = copy_missing(root, source, path, missing, options, on_progress, on_warning)
            missing = missing_files(path, source)
        elif root.copy_folder(source.key).exists():
            with root.ledger():
                discard_copy(root, source.key)
        assert path is not None, "no file is missing, so the entry exists"
        return _describe(path, source, missing, lease, copied)


def _tidy(root: Root, source: Source, path: Path) -> None:
    """Removes what a copier left if it was killed just before its end, and updates a note whose origin has moved."""
    if root.copy_folder(source.key).exists() and (lock := try_lock(root.lock(source.key, "build"))) is not None:
        with lock, root.ledger():
            discard_copy(root, source.key)
    if any(root.trash.iterdir()):
        with root.ledger():
            empty_trash(root)
    noted = read_note(path)
    if source.path not in (path, noted) and not (noted and holds_dataset(noted, source.key)):
        write_note(path, source.path)


def _copyable(path: Path, source: Source) -> Source:
    """`source`; or, if `source` is the entry itself, the dataset that the entry was copied from."""
    return load_origin(path, source.key) if source.path == path else source


def _describe(path: Path, source: Source, missing: Sequence[SourceFile], lease: Lease, copied: int) -> Staged:
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
