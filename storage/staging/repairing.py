"""Repairing an entry from the dataset that it was copied from."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from packtrain._core.arguments import checks_names
from packtrain._core.errors import StagingError
from packtrain._core.files import file_errors
from packtrain._core.manifest import MANIFEST

from .copying import copy_missing, load_origin, wait_for_build_lock, write_manifest
from .folder import Folder
from .inventory import find_entry, nothing_there, scan
from .locks import Lease
from .options import OnStageProgress, StageOptions, relay
from .origin import Origin
from .root import Root
from .transfer import check_files


@dataclass(frozen=True)
class RepairReport:
    """Result of a repair.

    Attributes:
        files: Names of the files that were damaged and have been replaced.
        bytes: Total size of these files in bytes.
    """

    files: tuple[str, ...]
    bytes: int


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
    root = Root.find(to)
    if root is None:
        raise nothing_there(to)
    report = on_progress or (lambda progress: None)
    with file_errors(root.path, StagingError):
        with root.ledger():
            found = find_entry([entry for entry in scan(root) if entry.finished], id)
        if found.state == "stream":
            raise StagingError(
                f"{found.id} is a cache of {found.source}: each of its chunks is checked as it comes, and again as it "
                f"is read. To fetch everything anew, run `{found.command('evict')}`"
            )
        key = found.key
        with Lease(root, key), wait_for_build_lock(root, key, report):
            entry = root.find_entry(key)
            if entry is None:
                raise StagingError(f"{os.fspath(id)} has been evicted: stage it again")
            return _repair(root, entry, key, options, report)


def _repair(root: Root, entry: Folder, key: str, options: StageOptions, report: OnStageProgress) -> RepairReport:
    source = load_origin(entry, key)
    # The links of a partial copy are the source's affair.
    local = [file for file in source.files if entry.link_target(file.name) is None]
    copies = [replace(file, elsewhere=None) for file in local]
    names = [
        file.name
        for file in check_files(Origin(entry.path), copies, threads=options.threads, on_progress=relay(report, "check"))
    ]
    damaged = [file for file in local if file.name in names]
    if damaged:
        copy_missing(root, source, entry, damaged, options, report, lambda warning: None)
    manifest = source.manifest.dump()
    if not entry.has_own_file(MANIFEST) or entry.read(MANIFEST, 2 * len(manifest)) != manifest:
        write_manifest(entry, source)
        names.append(MANIFEST)
    return RepairReport(tuple(names), sum(file.bytes for file in damaged))
