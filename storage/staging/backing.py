"""Finds out whether the source of an entry still holds what the entry holds, so that the entry may be evicted.

A file of the source counts if it is a regular file of the right size, is not the entry's own file under another name,
and has the stamp that it had when its bytes were last found to be right. If its stamp has changed, its bytes count.
It is the same with objects in a store, which is asked about each of them, but sends none.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from packtrain._core.errors import DatasetError, Denied, MissingDependency, NotThere, RemoteError, StagingError

from ..location import Location, object_store
from ..remote.objects import Objects
from ..remote.urls import Url
from .folder import Folder
from .inventory import Entry
from .locks import lease_on
from .notes import read_note
from .origin import SourceFile
from .pieces import OnCopyProgress
from .source import Source
from .transfer import check_files


class Backing:
    """What is known about the sources of entries. A context manager.

    Sources are looked at before the ledger is locked: they may be on a network file system that does not answer, and
    only this process should wait for it. A source that is itself a staged copy is leased until the end: it must not be
    evicted because this entry holds the same, while this entry is evicted because the source does.
    """

    def __init__(self) -> None:
        self._doubts: dict[tuple[str, Path | Url | None], str | None] = {}
        self._leases = ExitStack()
        self._objects: Objects | None = None
        self._silent: dict[str, RemoteError] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leases.close()
        if self._objects is not None:
            self._objects.close()

    def look_at(self, entry: Entry, *, read: bool, on_progress: OnCopyProgress | None = None) -> None:
        """Looks at the source of a finished entry.

        Args:
            entry: The entry.
            read: Read and compare files that were changed since they were copied; otherwise these count as lost.
            on_progress: Called while files are read.
        """
        if entry.state != "stream":
            self._doubts[entry.id, entry.source] = self._look(entry, read, on_progress)

    def doubt(self, entry: Entry) -> str | None:
        """Why the entry may be the only copy; None if its source was seen to hold the same, or if it is a cache."""
        if entry.state == "stream":
            return None
        return self._doubts.get((entry.id, entry.source), "its source has not been looked at")

    def _look(self, entry: Entry, read: bool, on_progress: OnCopyProgress | None) -> str | None:
        if entry.source is None:
            return "nothing says where it was copied from"
        lost = f"its source {entry.source} no longer holds it"
        try:
            copy = Folder.open(entry.path, follow=False)
            note = read_note(copy)
            source = None if note is None else self._load(note.source, copy)
            if note is None or source is None or source.key != entry.key:
                return lost
            # Nothing is lost with a link, or with a file that is damaged.
            held = {file: ours for file in source.files if (ours := copy.status(file.name)) and _is_whole(ours, file)}
            changed = []
            for (file, ours), theirs in zip(held.items(), source.origin.statuses(list(held)), strict=True):
                if theirs.bytes != file.bytes:
                    return f"{source.origin.at(file)} is not what was copied"
                if theirs.identity == (ours.st_dev, ours.st_ino):
                    return f"{source.origin.at(file)} is the same file as in the copy"
                if not theirs.stamp or note.stamps.get(file.name) != theirs.stamp:
                    changed.append(file)
        except (DatasetError, StagingError, NotThere, OSError) as error:
            return f"{lost} ({error})"
        except (RemoteError, MissingDependency) as error:
            return f"its source {entry.source} cannot be looked at ({error})"
        if changed and not read:
            return (
                f"{source.origin.at(changed[0])} was changed since it was copied; `{entry.command('evict')}` compares "
                "the contents"
            )
        if damaged := check_files(source.origin, changed, on_progress=on_progress):
            return f"{source.origin.at(damaged[0])} is not what was copied"
        return None

    def _load(self, location: Location, copy: Folder) -> Source | None:
        """Loads the source of a copy; None if it is the copy itself."""
        if isinstance(location, Url):
            return self._load_from_store(location)
        if os.path.samestat(os.stat(location), os.fstat(copy.fileno())):
            return None
        if (lease := lease_on(location)) is not None:
            self._leases.enter_context(lease)
        return Source.load(location)

    def _load_from_store(self, url: Url) -> Source:
        # A store that did not answer once is not waited for again.
        if (failed := self._silent.get(url.base)) is not None:
            raise failed
        if self._objects is None:
            self._objects = object_store()
        try:
            return Source.load(url, self._objects)
        except (NotThere, Denied):
            raise
        except RemoteError as error:
            self._silent[url.base] = error
            raise


def _is_whole(status: os.stat_result, file: SourceFile) -> bool:
    """True for a regular file of the right size."""
    return stat.S_ISREG(status.st_mode) and status.st_size == file.bytes
