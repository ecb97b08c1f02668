"""The files of a cache's chunks: written, shown to readers, taken away.

Only complete, checked files have the names of chunks; whatever else a fetcher that was killed has left is removed by
the next one.

Nobody waits until a chunk is on the medium: it is shown first and synced later, and then nobody may write to its file
any more, which says so. ``boot`` names the start of the machine in which the last fetcher began. If that is not the
present one, the files that were not synced may be anything, and are removed.

A reader holds a shared `flock` on the file of each chunk as long as it is mapped. A chunk that goes first loses its
byte in ``present``, then its name. If somebody still has it mapped, its bytes count until the lock is free: clients let
go of such maps as soon as they see the byte.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from packtrain._core.errors import CorruptFile
from packtrain._core.files import is_temporary, write_file
from packtrain._core.locks import lock_holders
from packtrain._core.opening import closing_descriptor, open_regular, read_regular
from packtrain._core.problems import error_kind
from packtrain._core.processes import boot_id

from ..staging.documents import in_blocks
from ..staging.folder import Folder
from .chunks import ChunkTable
from .layout import BOOT, CHUNKS, WRONG_SUFFIX, Present, chunk_path, is_of_this_boot

_GONE: Final = ".gone-"
_SYNCED: Final = 0o400
"""The mode of a file that is on the medium. The file system brings it there after the data, since these were synced."""


class _Gone(NamedTuple):
    """A chunk that went while somebody had it mapped: bytes that its file takes, and when it went."""

    bytes: int
    since: float


class ChunkFiles:
    """The files of the chunks of one cache. Only its fetcher has this.

    Args:
        entry: Folder of the cache.
        table: Its chunks.

    Raises:
        CorruptFile: The cache is damaged.
        UnreadableFile: It cannot be read.
    """

    def __init__(self, entry: Path, table: ChunkTable) -> None:
        self._entry: Final = entry
        self._table: Final = table
        self._known: Final = Present(entry, len(table), write=True)
        self._present: Final = self._known.bytes
        self._gone: Final = dict[str, _Gone]()

    def check(self) -> None:
        """Makes sure that the cache is still the one that was opened.

        Raises:
            StagingError: Somebody has removed it, or put another in its place.
        """
        self._known.check()

    def take_stock(self) -> list[int]:
        """Removes what a fetcher before this one has begun. Returns the chunks that are there."""
        found = set[int]()
        folder, entry = self._folder(), Folder.open(self._entry)
        boot = boot_id()
        survived = is_of_this_boot(entry)
        for name in folder.names():
            path = folder.path / name
            if is_temporary(path):
                folder.remove(name)
            elif name.startswith(".") and _GONE in name:
                self._gone[name] = _Gone(in_blocks(path.lstat().st_size), 0.0)
            elif name.startswith(".") and name.endswith(WRONG_SUFFIX):
                # Which of its records are wrong, the one before knew.
                folder.remove(name)
            elif (
                name.isdecimal() and (chunk := int(name)) < len(self._table) and path == chunk_path(self._entry, chunk)
            ):
                if self.has(chunk) and (survived or self._is_synced(chunk)):
                    found.add(chunk)
                else:
                    folder.remove(name)
        if not survived:
            entry.write(BOOT, boot.encode())
        # Only bytes that are not right change: clients look at the others meanwhile.
        for chunk in range(len(self._table)):
            if self._present[chunk] != (chunk in found):
                self._present[chunk] = chunk in found
        self.delete_gone()
        return sorted(found)

    def has(self, chunk: int) -> bool:
        """True if there is a file of a chunk, of the right size."""
        try:
            status = self._path(chunk).lstat()
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == int(self._table.bytes[chunk])

    def read(self, chunk: int) -> memoryview | None:
        """The content of a chunk's file; None if it cannot be read, or has another size."""
        try:
            data = read_regular(self._path(chunk), int(self._table.bytes[chunk]), follow=False)
        except OSError:
            return None
        return memoryview(data) if len(data) == self._table.bytes[chunk] else None

    def write(self, chunk: int, data: memoryview, state: int) -> None:
        """Writes the file of a chunk that is `WHOLE` or `WRONG`. Any thread may do it; nobody sees it before `show`.

        Raises:
            OSError: It cannot be written.
        """
        final = chunk_path(self._entry, chunk, state)
        write = partial(write_file, final, [data], durable=False, mode=0o600)
        try:
            write()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            # Somebody has removed the folder, or put another one in the place of the file.
            self._folder().remove(final.name)
            write()

    def sync(self, chunk: int) -> None:
        """Brings the file of a chunk to the medium, if it still has one. Any thread may do it.

        Raises:
            OSError: The medium does not take it: the file may be damaged.
        """
        if self._is_synced(chunk):
            return
        try:
            opened = open_regular(self._path(chunk), follow=False)
        except FileNotFoundError:
            return
        with closing_descriptor(opened) as descriptor:
            os.fsync(descriptor)
            os.fchmod(descriptor, _SYNCED)

    def show(self, chunk: int, state: int) -> None:
        """Tells readers that a chunk is there, `WHOLE` or `WRONG`."""
        self._present[chunk] = state

    def remove(self, chunk: int) -> None:
        """Takes a chunk away from readers. Its file goes when nobody has it mapped any more."""
        path = self._path(chunk)
        self._present[chunk] = 0
        name = f".{chunk:08d}{_GONE}{time.monotonic_ns():x}"
        with suppress(FileNotFoundError, NotADirectoryError):
            os.rename(path, path.with_name(name))
            self._gone[name] = _Gone(int(self._table.allocated[chunk]), time.monotonic())
            self._delete_gone(name)

    def delete_gone(self) -> None:
        """Deletes the files of chunks that went and that nobody has mapped any more."""
        for name in tuple(self._gone):
            self._delete_gone(name)

    def gone_bytes(self, since: float = -1.0) -> int:
        """Bytes of the files that somebody still has mapped, of all chunks that went, or of those after `since`."""
        return sum(gone.bytes for gone in self._gone.values() if gone.since > since)

    def holders(self) -> list[int]:
        """The processes that have chunks mapped that went, as far as the kernel tells."""
        files = [self._entry / CHUNKS / name for name in self._gone]
        return sorted({pid for path in files if path.exists() for pid in lock_holders(path.stat())})

    def _path(self, chunk: int) -> Path:
        return chunk_path(self._entry, chunk, self._present[chunk])

    def _is_synced(self, chunk: int) -> bool:
        try:
            return stat.S_IMODE(self._path(chunk).lstat().st_mode) == _SYNCED
        except OSError:
            return False

    def _folder(self) -> Folder:
        """The folder of the files, made anew if somebody has removed it."""
        return Folder.open(self._entry).own_folder(CHUNKS)

    def _delete_gone(self, name: str) -> None:
        path = self._entry / CHUNKS / name
        try:
            descriptor = open_regular(path, follow=False)
        except OSError as error:
            if error_kind(error) is CorruptFile:
                # Nothing, or no file: somebody has changed it.
                self._folder().remove(name)
                self._gone.pop(name, None)
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(descriptor)
        path.unlink(missing_ok=True)
        self._gone.pop(name, None)
