"""Finds out whether the source of an entry still holds what the entry holds, so that the entry may be evicted.

A file of the source counts if it is a regular file of the right size, is not the entry's own file under another name,
and has the stamp that it had when its bytes were last found to be right. If its stamp has changed, its bytes count.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from packtrain._core.errors import DatasetError, StagingError

from .folder import Folder
from .inventory import Entry
from .locks import lease_on
from .notes import read_note, stamp_of
from .progress import OnCopyProgress
from .source import Source, SourceFile
from .transfer import check_files


class Backing:
    """What is known about the sources of entries. A context manager.

    Sources are looked at before the ledger is locked: they may be on a network file system that does not answer, and
    only this process should wait for it. A source that is itself a staged copy is leased until the end: it must not be
    evicted because this entry holds the same, while this entry is evicted because the source does.
    """

    def __init__(self) -> None:
        self._doubts: dict[tuple[str, Path | None], str | None] = {}
        self._leases = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leases.close()

    def look_at(self, entry: Entry, *, read: bool, on_progress: OnCopyProgress | None = None) -> None:
        """Looks at the source of a finished entry.

        Args:
            entry: The entry.
            read: Read and compare files that were changed since they were copied; otherwise these count as lost.
            on_progress: Called while files are read.
        """
        self._doubts[entry.id, entry.source] = self._look(entry, read, on_progress)

    def doubt(self, entry: Entry) -> str | None:
        """Why the entry may be the only copy; None if its source was seen to hold the same."""
        return self._doubts.get((entry.id, entry.source), "its source has not been looked at")

    def _look(self, entry: Entry, read: bool, on_progress: OnCopyProgress | None) -> str | None:
        if entry.source is None:
            return "nothing says where it was copied from"
        lost = f"its source {entry.source} no longer holds it"
        try:
            copy = Folder.open(entry.path, follow=False)
            note = read_note(copy)
            if note is None or os.path.samestat(os.stat(note.source), os.fstat(copy.fileno())):
                return lost
            if (lease := lease_on(note.source)) is not None:
                self._leases.enter_context(lease)
            source = Source.load(note.source)
            if source.key != entry.key:
                return lost
            changed = []
            for file in source.files:
                ours = copy.status(file.name)
                # Nothing is lost with a link, or with a file that is damaged.
                if ours is None or not _is_whole(ours, file):
                    continue
                theirs = os.stat(file.at(source.path))
                if not _is_whole(theirs, file):
                    return f"{file.at(source.path)} is not what was copied"
                if os.path.samestat(ours, theirs):
                    return f"{file.at(source.path)} is the same file as in the copy"
                if note.stamps.get(file.name) != stamp_of(theirs):
                    changed.append(file)
        except (DatasetError, StagingError, OSError) as error:
            return f"{lost} ({error})"
        if changed and not read:
            return (
                f"{changed[0].at(source.path)} was changed since it was copied; `{entry.command('evict')}` compares "
                "the contents"
            )
        if damaged := check_files(source.path, changed, on_progress=on_progress):
            return f"{damaged[0].at(source.path)} is not what was copied"
        return None


def _is_whole(status: os.stat_result, file: SourceFile) -> bool:
    """True for a regular file of the right size."""
    return stat.S_ISREG(status.st_mode) and status.st_size == file.bytes
