"""Repairing an entry from the dataset that it was copied from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from packtrain._core.errors import StagingError
from packtrain._core.files import file_errors
from packtrain._core.manifest import MANIFEST

from .copying import copy_missing, wait_for_build_lock, write_manifest
from .locks import Lease
from .options import OnStageProgress, StageOptions, relay
from .origin import load_origin
from .root import Root, entry_key
from .transfer import THREADS, check_files


@dataclass(frozen=True)
class RepairReport:
    """Result of a repair.

    Attributes:
        files: Names of the files that were damaged and have been replaced.
        bytes: Total size of these files in bytes.
    """

    files: tuple[str, ...]
    bytes: int


def repair(
    entry: str | os.PathLike[str], *, threads: int = THREADS, on_progress: OnStageProgress | None = None
) -> RepairReport:
    """Checks a staged copy and copies damaged files again.

    Readers keep the files that they have open, and get the repaired files when they open them again.

    Args:
        entry: The copy's folder.
        threads: Number of threads that check and copy.
        on_progress: Called several times a second.

    Raises:
        StagingError: `entry` is not a staged copy, does not say where it was copied from, or its source now holds
            another dataset.
        DatasetError: The source is missing or damaged.
        NoRoom: There is no room for a second copy of a damaged file.
    """
    path = Path(entry).resolve()
    key = entry_key(path)
    if key is None or not path.is_dir():
        raise StagingError(f"{path} is not a staged copy: run `packtrain staged list` to see which ones there are")
    root = Root(path.parent)
    report = on_progress or (lambda progress: None)
    with (
        file_errors(path, StagingError),
        Lease(root.lock(key, "lease")),
        wait_for_build_lock(root, key, report),
    ):
        source = load_origin(path, key)
        damaged = check_files(path, source.files, threads=threads, on_progress=relay(report, "check"))
        names = [file.name for file in damaged]
        if damaged:
            copy_missing(root, source, path, damaged, StageOptions(threads=threads), report, lambda warning: None)
        if not (path / MANIFEST).is_file() or (path / MANIFEST).read_bytes() != source.manifest.dump():
            write_manifest(path, source)
            names.append(MANIFEST)
    return RepairReport(tuple(names), sum(file.bytes for file in damaged))
