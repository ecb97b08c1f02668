"""Copies the missing files of an entry: makes room, copies, publishes. The caller holds the entry's build lock."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from packtrain._core.errors import NoRoom, StagingError
from packtrain._core.files import is_temporary
from packtrain._core.locks import Lock
from packtrain._core.manifest import MANIFEST
from packtrain._core.opening import closing_descriptor
from packtrain._core.sizes import size

from ..remote.urls import Url
from .capacity import foreign, warnings
from .documents import Provenance, allocated_bytes, read_provenance, write_provenance, write_reservation
from .entries import holds_dataset
from .eviction import SourceChecks, discard_copy, make_room, under_ledger
from .folder import Folder
from .locks import holders, try_lock
from .options import OnStageProgress, OnWarning, StageOptions, StageProgress
from .origin import Origin, SourceFile
from .pieces import Journal
from .root import Root
from .source import SourceDataset, overhead_bytes
from .transfer import copy_files

_DATA: Final = "data"
_POLL_SECONDS: Final = 0.1
_STREAM: Final = (
    "train from the object store through a cache of a size that fits: `open_dataset(url, stage=, budget=)`. Copies of "
    "a dataset in a store are never partial (`partial`), because nothing can be linked to an object"
)


def wait_for_build_lock(root: Root, key: str, on_progress: OnStageProgress) -> Lock:
    """Waits until no other process copies this dataset, and takes the lock that keeps others from doing so."""
    while (lock := try_lock(root, key, "build")) is None:
        by = ", ".join(map(str, holders(root, key, "build")))
        note = f"process {by} is copying it" if by else "another process is copying it"
        on_progress(StageProgress("wait", 0, 0, note=note))
        time.sleep(_POLL_SECONDS)
    return lock


def copy_missing(
    root: Root,
    source: SourceDataset,
    entry: Folder | None,
    missing: Sequence[SourceFile],
    options: StageOptions,
    on_progress: OnStageProgress,
    on_warning: OnWarning,
) -> tuple[Folder, int]:
    """Copies missing files into an entry, as many as there is room for, and publishes them.

    Args:
        root: The root that the entry is in.
        source: The dataset to copy from.
        entry: The entry; None to make a new one.
        missing: The files to copy.
        options: Limits on space and threads.
        on_progress: Called several times a second.
        on_warning: Called with each warning, before copying begins.

    Returns:
        The entry, and the number of bytes copied.

    Raises:
        NoRoom: There is not enough room, even after evicting other entries.
    """
    files, strays = _reserve(root, source, entry, missing, options)
    need = sum(file.allocated for file in files)
    for warning in (*foreign(strays), *warnings(root.parent, source.location, need)):
        on_warning(warning)
    folder = root.make_copy(source.key)
    data = _data_folder(folder, files)
    with Journal(folder) as journal:
        copied, stamps = copy_files(
            source.origin, data, files, journal, threads=options.threads, on_progress=on_progress
        )
    provenance = provenance_of(source, stamps)
    if entry is None:
        _link_missing(data, source, Origin(provenance.source))
        write_manifest(data, source)
        write_provenance(data, provenance)
    with root.ledger():
        if entry is None:
            entry = root.publish(folder, _DATA, source.readable_name, source.key)
        else:
            # First, because a process that is killed here leaves files missing, and so the next one tidies up.
            before = read_provenance(entry)
            if (grown := _grown(before, provenance)) != before:
                write_provenance(entry, grown)
            for file in files:
                _make_subfolder(entry, file)
                data.rename(file.name, entry, file.name)
            for name in {file.folder for file in files}:
                (entry.folder(name) if name else entry).sync()
            _link_missing(entry, source, Origin(provenance.source))
        discard_copy(root, source.key)
    return entry, copied


def _reserve(
    root: Root, source: SourceDataset, entry: Folder | None, missing: Sequence[SourceFile], options: StageOptions
) -> tuple[list[SourceFile], list[Path]]:
    """Makes room for the missing files, or for as many as possible, and reserves it.

    Returns:
        The files that there is room for, and the strays in the root.
    """
    overhead = 0 if entry else overhead_bytes(source.manifest)
    need = overhead + sum(file.allocated for file in missing)
    what = f"{source.location} takes {size(need)}"

    def attempt(checks: SourceChecks, last: bool) -> tuple[list[SourceFile], list[Path]]:
        found = root.find_copy(source.key)
        present = 0 if found is None else allocated_bytes(found)
        whole = not (last and options.partial and can_link(source))
        try:
            room = make_room(root, source.key, need - present, options, checks, all_or_nothing=whole)
        except NoRoom as error:
            instead = "stage what fits (`partial`)" if can_link(source) else _STREAM
            raise NoRoom(f"{what}, but {error}; or {instead}") from None
        files = list(_leading(missing, room.bytes + present - overhead))
        if entry is None and len(files) < sum(file.shard is None for file in missing):
            raise NoRoom(f"{what}, but not even its index fits: {room.message}")
        write_reservation(root.make_copy(source.key), source.location, overhead + sum(file.allocated for file in files))
        return files, root.strays()

    return under_ledger(root, attempt)


def _leading(files: Sequence[SourceFile], room: int) -> Iterable[SourceFile]:
    """The first files that fit into `room` bytes; a shard is taken with all of its files or not at all."""
    for _, group in groupby(files, key=lambda file: file.name if file.shard is None else file.shard):
        together = list(group)
        room -= sum(file.allocated for file in together)
        if room < 0:
            return
        yield from together


def missing_files(entry: Folder, source: SourceDataset) -> list[SourceFile]:
    """The files that are not local in an entry, or have the wrong size."""
    return [file for file in source.files if not is_local(entry, file)]


def has_manifest(entry: Folder, source: SourceDataset) -> bool:
    """True if an entry has its manifest, with the right size: it is none of the files that a source lists."""
    return entry.file_status(MANIFEST, len(source.manifest.dump())) is not None


def is_local(entry: Folder, file: SourceFile) -> bool:
    """True if an entry has its own copy of a file, with the right size, rather than a link to the source."""
    return entry.file_status(file.name, file.bytes) is not None


def _link_missing(entry: Folder, source: SourceDataset, origin: Origin) -> None:
    """Links every file that is not local to the origin. Readers can open every file at any moment."""
    delete_temporaries(entry)
    for file in source.files:
        found, target = entry.link_target(file.name), origin.at(file)
        if isinstance(target, Path) and ((found is not None and found != target) or entry.status(file.name) is None):
            _make_subfolder(entry, file)
            entry.link(file.name, target)


def _data_folder(folder: Folder, files: Sequence[SourceFile]) -> Folder:
    """The folder in a copy for its data, without what an interrupted copy left and this copy will not finish."""
    data = folder.own_folder(_DATA)
    folders = {file.folder for file in files} - {""}
    wanted = {file.name for file in files} | folders
    kept = [name for name in folders if data.has_own_folder(name)]
    inside = [f"{name}/{last}" for name in kept for last in data.folder(name).names()]
    for name in (*data.names(), *inside):
        if name not in wanted:
            data.remove(name)
    return data


def delete_temporaries(entry: Folder) -> None:
    """Removes what a killed process left of a link or a document that it was writing."""
    for name in entry.names():
        if is_temporary(Path(name)):
            entry.remove(name)


def _make_subfolder(entry: Folder, file: SourceFile) -> None:
    """Makes sure that the subfolder of a file is a folder of this entry."""
    if file.folder:
        entry.own_folder(file.folder)


def _grown(before: Provenance | None, now: Provenance) -> Provenance:
    """The provenance of an entry that got more files: the stamps of the earlier ones remain."""
    if before is None or before.source != now.source:
        return now
    return Provenance(now.source, {**before.stamps, **now.stamps})


def write_manifest(entry: Folder, source: SourceDataset) -> None:
    """Writes the manifest, which makes the folder a dataset."""
    entry.write(MANIFEST, source.manifest.dump())
    with closing_descriptor(entry.open_file(MANIFEST, os.O_RDONLY)) as descriptor:
        os.fchmod(descriptor, 0o444)


def provenance_of(source: SourceDataset, stamps: Mapping[str, str]) -> Provenance:
    """Return the provenance of an entry that was copied from `source`.

    If `source` is itself a staged copy, its origin is where that copy came from: the copy may be evicted one day.

    Args:
        source: The dataset that was copied.
        stamps: Stamps of its files, see `Head`.
    """
    noted = read_provenance(Folder.open(source.location)) if isinstance(source.location, Path) else None
    # A store is not asked: it is before the copy is evicted.
    other = noted is not None and noted.source != source.location
    if noted and other and (isinstance(noted.source, Url) or holds_dataset(noted.source, source.key)):
        return noted
    return Provenance(source.location, stamps)


def can_link(source: SourceDataset) -> bool:
    """True if an entry that holds a part of `source` can link the rest."""
    return not source.manifest.in_store and not isinstance(provenance_of(source, {}).source, Url)


def load_origin(entry: Folder, key: str) -> SourceDataset:
    """Loads the dataset that an entry was copied from.

    Args:
        entry: The entry.
        key: The entry's key.

    Raises:
        StagingError: The entry names no origin, or its origin now holds another dataset.
        DatasetError: The origin is missing or damaged.
        RemoteError: The object store that it lies in does not answer as it should.
    """
    provenance = read_provenance(entry)
    if provenance is None:
        raise StagingError(f"{entry.path} does not say where it was copied from: evict it and stage the dataset again")
    source = SourceDataset.load(provenance.source, segment=key)
    if source.key != key:
        raise StagingError(f"{provenance.source} now holds another dataset, so {entry.path} cannot be repaired from it")
    return source
