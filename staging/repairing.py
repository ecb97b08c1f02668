"""Mending an entry from the dataset that it was copied from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from packtrain._core.errors import StagingError
from packtrain._core.files import output_errors
from packtrain._core.manifest import MANIFEST

from .copying import building, fill, write_manifest
from .locks import Lease
from .notes import read_note
from .options import Show, StageOptions, relay
from .root import Root, entry_key
from .source import Source
from .transfer import THREADS, check_files


@dataclass(frozen=True)
class RepairReport:
    """What came of a repair.

    Attributes:
        files: Names of the files that were damaged, and are sound now.
        bytes: Their size.
    """

    files: tuple[str, ...]
    bytes: int


def repair(entry: str | os.PathLike[str], *, threads: int = THREADS, on_progress: Show | None = None) -> RepairReport:
    """Copies those files of an entry once more whose content is not what was packed.

    Readers keep what they have open, and see the sound files when they open them anew.

    Args:
        entry: The entry's folder.
        threads: Threads that check and copy.
        on_progress: Called several times a second.

    Raises:
        StagingError: It is no entry, or nothing says where it came from.
        DatasetError: The source is damaged itself, or holds something else by now.
        NoRoom: There is no room for the second copy of a file.
    """
    path = Path(entry).resolve()
    key = entry_key(path)
    if key is None or not path.is_dir():
        raise StagingError(f"{path} is not an entry that `packtrain stage` made: see `packtrain staged list`")
    root = Root(path.parent)
    show = on_progress or (lambda progress: None)
    with output_errors(path, StagingError), Lease(root.lock(key, "lease")), building(root, key, show):
        source = source_of(path, key)
        wrong = check_files(path, source.files, threads=threads, on_progress=relay(show, "check"))
        names = [file.name for file in wrong]
        if wrong:
            fill(root, source, path, wrong, StageOptions(threads=threads), show, lambda warning: None)
        if not (path / MANIFEST).is_file() or (path / MANIFEST).read_bytes() != source.manifest.dump():
            write_manifest(path, source)
            names.append(MANIFEST)
    return RepairReport(tuple(names), sum(file.bytes for file in wrong))


def source_of(path: Path, key: str) -> Source:
    """Where an entry can be copied from once more."""
    noted = read_note(path)
    if noted is None:
        raise StagingError(f"nothing in {path} says where it came from: evict it, and stage the dataset again")
    source = Source.load(noted)
    if source.key != key:
        raise StagingError(f"{noted} holds another dataset by now: {path} cannot be mended from it")
    return source
