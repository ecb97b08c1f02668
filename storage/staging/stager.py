"""Stages a dataset: finds the complete copy, or waits for the process that copies it, or makes it; and repairs it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packtrain._core.arguments import checks_names
from packtrain._core.errors import StagingError, UnsupportedVersion, UsageError
from packtrain._core.files import file_errors
from packtrain._core.manifest import MANIFEST
from packtrain._core.mounts import IN_MEMORY, file_system

from ..location import location_of, object_store
from ..remote.urls import Url
from .copying import (
    copy_missing,
    has_manifest,
    is_local,
    load_origin,
    missing_files,
    wait_for_build_lock,
    write_manifest,
)
from .documents import Provenance, read_provenance, write_provenance
from .entries import find_entry, holds_dataset, linked_parts, root_in, scan
from .eviction import discard_copy
from .folder import Folder
from .locks import Lease, VersionLease, lease_on, promise, try_lock
from .options import OnStageProgress, OnWarning, StageOptions, options_from
from .origin import Origin, SourceFile
from .root import Root
from .source import SourceDataset
from .transfer import check_files, warm_files

if TYPE_CHECKING:
    from .versions import SourceVersion, VersionPart


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
        parts: Of a dataset that was changed, its segments and layers, each staged as a dataset of its own.
    """

    path: Path
    id: str
    bytes: int
    copied: int
    shards: int
    local_shards: int
    lease: Lease = field(repr=False, compare=False)
    parts: tuple[Staged, ...] = field(default=(), repr=False, compare=False)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases on all that belongs to it."""
        return (self.lease, *(part.lease for part in self.parts))


@dataclass(frozen=True)
class RepairReport:
    """Result of a repair.

    Attributes:
        files: Names of the files that were damaged and have been replaced.
        bytes: Total size of these files in bytes.
    """

    files: tuple[str, ...]
    bytes: int


@checks_names(to=StageOptions)
def stage(
    dataset: str | os.PathLike[str],
    to: StageOptions | str | os.PathLike[str] | None = None,
    *,
    version: int | None = None,
    on_progress: OnStageProgress | None = None,
    on_warning: OnWarning | None = None,
) -> Staged:
    """Makes a verified copy of a dataset on fast storage of this machine, or finds an existing one.

    Processes that want the same content share one copy: one process copies, the others wait. A call that is killed
    leaves nothing to clean up, and the next call continues where it stopped.

    Of a dataset that was changed, each segment and layer is staged once, whatever versions it belongs to.

    Args:
        dataset: The dataset's folder, or its address in an object store, such as ``"s3://bucket/imagenet"``.
        to: A folder for staged copies, such as ``"/dev/shm"``, or `StageOptions`; None for the default options.
        version: Number of the version of a dataset that was changed; None: the newest one.
        on_progress: Called several times a second.
        on_warning: Called with each warning for the user, one sentence that also says what to do.

    Returns:
        The staged copy, with a lease on it.

    Raises:
        UsageError: `to` is neither a folder nor `StageOptions`.
        NotADataset: `dataset` has no manifest.
        CorruptFile: The dataset is damaged.
        SourceChanged: A file of the dataset is not what was packed.
        NoRoom: The dataset does not fit.
        NoSpace: Other programs filled the file system during the copy.
        StagingError: The dataset cannot be copied, or not to that folder.
        RemoteError: The object store does not answer as it should; NotThere if it has no such bucket, Denied if it does
            not let these credentials read.
        MissingDependency: What reads object stores is not installed.
    """
    options = options_from(to)
    report, warn = on_progress or (lambda progress: None), on_warning or (lambda warning: None)
    location = location_of(dataset)
    # The dataset may itself be a staged copy, for example on a slower disk.
    with (lease_on(location) if isinstance(location, Path) else None) or nullcontext():
        objects = object_store() if isinstance(location, Url) else None
        try:
            source = SourceDataset.load(location, objects)
        except UnsupportedVersion:
            # Most datasets have no versions, and these imports take longer than to find that a copy is there.
            from .version_documents import is_changed
            from .versions import SourceVersion

            if not is_changed(location, objects):
                raise
            source_version = SourceVersion.load(location, version, objects)
            with held(source_version):
                return _stage_version(source_version, options, report, warn)
        if version is not None:
            raise UsageError(f"version={version}: {location} has never been changed, so it has no versions")
        return _stage(source, options, report, warn)


def _stage(source: SourceDataset, options: StageOptions, report: OnStageProgress, warn: OnWarning) -> Staged:
    root = Root.make(options.to)
    with file_errors(root.path, StagingError):
        staged = find_complete(root, source) or _build(root, source, options, report, warn)
        promise(root, source.key, options.grace)
    if options.warm and file_system(staged.path) not in IN_MEMORY:
        entry = Folder.open(staged.path)
        files = [file for file in source.files if is_local(entry, file)]
        warm_files(staged.path, files, threads=options.threads, on_progress=report)
    return staged


def held(source: SourceVersion) -> AbstractContextManager[object]:
    """Keeps a version from being dropped while it is copied from a folder."""
    place = source.location
    return nullcontext() if isinstance(place, Url) else closing(VersionLease(place, source.version.number))


def _stage_version(source: SourceVersion, options: StageOptions, report: OnStageProgress, warn: OnWarning) -> Staged:
    root = Root.make(options.to)
    # Each keeps its lease, so that none makes room for another.
    parts = {part.name: stage_part(source, part, options, report, warn) for part in source.parts()}
    with file_errors(root.path, StagingError):
        lease = Lease(root, source.key)
        entry = source.entry(root, {name: part.path for name, part in parts.items()}, options, report)
        promise(root, source.key, options.grace)
    staged = tuple(parts.values())
    return Staged(
        path=entry.path,
        id=entry.path.name,
        bytes=sum(part.bytes for part in staged),
        copied=sum(part.copied for part in staged),
        shards=sum(part.shards for part in staged),
        local_shards=sum(part.local_shards for part in staged),
        lease=lease,
        parts=staged,
    )


def stage_part(
    source: SourceVersion,
    part: VersionPart,
    options: StageOptions,
    report: OnStageProgress = lambda progress: None,
    warn: OnWarning = lambda warning: None,
) -> Staged:
    """Stages a segment or a layer of a version; raises what `stage` raises."""
    root = Root.make(options.to)
    with file_errors(root.path, StagingError):
        held = Lease(root, part.key)
    with held:
        return _stage(source.of_part(part, root), options, report, warn)


@checks_names()
def repair(
    to: str | os.PathLike[str],
    id: str | os.PathLike[str],
    *,
    threads: int | None = None,
    on_progress: OnStageProgress | None = None,
) -> RepairReport:
    """Checks a staged copy and copies damaged files again.

    Readers keep the files that they have open, and get the repaired files when they open them again.

    Args:
        to: Folder it was staged to.
        id: Id of the copy, at least four characters with which no other id or key begins, or its path.
        threads: Number of threads that check and copy; None: 8 from a disk, 16 from an object store.
        on_progress: Called several times a second.

    Raises:
        UsageError: `id` is empty or too short.
        StagingError: No copy matches `id`, or several do; or the copy does not say where it was copied from, or its
            source now holds another dataset.
        DatasetError: The source is missing or damaged.
        RemoteError: The object store that it lies in does not answer as it should.
        NoRoom: There is no room for a second copy of a damaged file.
    """
    options = StageOptions(to, threads=threads)
    root = root_in(to)
    report = on_progress or (lambda progress: None)
    with file_errors(root.path, StagingError):
        with root.ledger():
            found = find_entry([entry for entry in scan(root) if entry.finished], id)
        if found.state == "stream":
            raise StagingError(
                f"{found.id} is a cache of {found.source}: each of its chunks is checked as it comes, and again as it "
                f"is read. To fetch everything anew, run `{found.command('evict')}`"
            )
        if found.state == "version":
            parts = [repair(to, part, threads=threads, on_progress=on_progress) for part in linked_parts(found.path)]
            return RepairReport(tuple(name for part in parts for name in part.files), sum(part.bytes for part in parts))
        key = found.key
        with Lease(root, key), wait_for_build_lock(root, key, report):
            entry = root.find_entry(key)
            if entry is None:
                raise StagingError(f"{os.fspath(id)} has been evicted: stage it again")
            return _repair(root, entry, key, options, report)


def find_complete(root: Root, source: SourceDataset) -> Staged | None:
    """Finds the entry of a dataset, if all of its files are local, and takes a lease on it."""
    lease = Lease(root, source.key)
    # Searched for while the lease is held, so that an entry that is found cannot be evicted.
    entry = root.find_entry(source.key)
    if entry is None or missing_files(entry, source) or not has_manifest(entry, source):
        lease.close()
        return None
    _tidy(root, source, entry)
    return _describe(entry, source, (), lease, 0)


def _build(
    root: Root, source: SourceDataset, options: StageOptions, on_progress: OnStageProgress, on_warning: OnWarning
) -> Staged:
    """Copies what is missing, after waiting for any other process that is copying the same dataset."""
    with wait_for_build_lock(root, source.key, on_progress):
        # Taken before the entry appears, so that it cannot be evicted in between.
        lease = Lease(root, source.key)
        entry = root.find_entry(source.key)
        missing: Sequence[SourceFile] = source.files if entry is None else missing_files(entry, source)
        copied = 0
        if missing:
            if entry is not None and source.location == entry.path:
                # The dataset is the entry itself, which cannot complete itself.
                source = load_origin(entry, source.key)
            entry, copied = copy_missing(root, source, entry, missing, options, on_progress, on_warning)
            missing = missing_files(entry, source)
        elif root.find_copy(source.key) is not None:
            with root.ledger():
                discard_copy(root, source.key)
        assert entry is not None, "no file is missing, so the entry exists"
        if not has_manifest(entry, source):
            write_manifest(entry, source)
        return _describe(entry, source, missing, lease, copied)


def _tidy(root: Root, source: SourceDataset, entry: Folder) -> None:
    """Remove what a copier left that was killed just before its end; follow a source that has moved."""
    if root.find_copy(source.key) is not None and (lock := try_lock(root, source.key, "build")) is not None:
        with lock, root.ledger():
            discard_copy(root, source.key)
    if root.graves():
        with root.ledger():
            root.empty_trash()
    if source.location == entry.path:
        return
    provenance = read_provenance(entry)
    if provenance is None:
        write_provenance(entry, Provenance(source.location))
    elif (
        source.location != provenance.source
        and isinstance(provenance.source, Path)
        and not holds_dataset(provenance.source, source.key)
    ):
        # If the dataset was only renamed, its files still have their stamps. A store is not asked here: whoever only
        # wants a copy that is there must not wait for it.
        write_provenance(entry, Provenance(source.location, provenance.stamps))


def _describe(entry: Folder, source: SourceDataset, missing: Sequence[SourceFile], lease: Lease, copied: int) -> Staged:
    shards, absent = source.manifest.shards, {file.name for file in missing}
    return Staged(
        path=entry.path,
        id=entry.path.name,
        bytes=sum(file.bytes for file in source.files if file.name not in absent),
        copied=copied,
        shards=len(shards),
        local_shards=sum(shard.name not in absent for shard in shards),
        lease=lease,
    )


def _repair(root: Root, entry: Folder, key: str, options: StageOptions, report: OnStageProgress) -> RepairReport:
    source = load_origin(entry, key)
    # The links of a partial copy are the source's affair.
    local = [file for file in source.files if entry.link_target(file.name) is None]
    copies = [replace(file, elsewhere=None) for file in local]
    names = [file.name for file in check_files(Origin(entry.path), copies, threads=options.threads, on_progress=report)]
    damaged = [file for file in local if file.name in names]
    if damaged:
        copy_missing(root, source, entry, damaged, options, report, lambda warning: None)
    manifest = source.manifest.dump()
    if not entry.has_own_file(MANIFEST) or entry.read(MANIFEST, 2 * len(manifest)) != manifest:
        write_manifest(entry, source)
        names.append(MANIFEST)
    return RepairReport(tuple(names), sum(file.bytes for file in damaged))
