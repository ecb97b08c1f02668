"""The folder of a cache: names of its files, the bytes of present chunks, and the socket of its fetcher.

    NAME-<key>.stream/
        dataset/            manifest, plan, rejects and index: a dataset without its shards
        table-*.npy         where records lie in chunks (`chunks`)
        table.json          the checksums of these
        chunks/00000042     the file of a chunk, complete and checked
        chunks/.00000042.wrong  the same, but a few of its records are wrong in the object store
        chunks/.*           a chunk that is being written, or one that went while somebody still has it mapped
        orders/*.npy        the chunks of orders that do not go through all of the dataset (`order_files`)
        present             a byte for each chunk: 1 if it is there, 2 if some of its records are wrong
        boot                the start of the machine in which the last fetcher began
        origin.json         the address of the dataset, without credentials
        reservation.json    the budget
        fetcher.lock        held by the one fetcher
        fetcher.start       held while somebody starts one
        fetcher.sock        its socket
        fetcher.log         what it had to say

Everything in the entry belongs to its user, as the root around it does, and nobody else may open it.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from packtrain._core.errors import CorruptFile, StagingError
from packtrain._core.opening import closing_descriptor, open_regular
from packtrain._core.problems import reading
from packtrain._core.processes import boot_id

from ..staging.documents import allocated_bytes, in_blocks
from ..staging.folder import Folder

CHUNKS: Final = "chunks"
ORDERS: Final = "orders"
PRESENT: Final = "present"
WHOLE: Final = 1
WRONG: Final = 2
WRONG_SUFFIX: Final = ".wrong"
BOOT: Final = "boot"
LOCK: Final = "fetcher.lock"
START: Final = "fetcher.start"
SOCKET: Final = "fetcher.sock"
LOG: Final = "fetcher.log"
OPEN_AGAIN: Final = "Open the dataset again, which mends it"
MOST_LOG: Final = 1 << 20
"""A log that is larger is begun anew."""
_MOST_BOOT: Final = 100
_PEER: Final = struct.Struct("3i")


def chunk_path(entry: Path, chunk: int, state: int = WHOLE) -> Path:
    """The file of a chunk whose byte in `Present` is `state`."""
    return entry / CHUNKS / (f".{chunk:08d}{WRONG_SUFFIX}" if state == WRONG else f"{chunk:08d}")


def is_of_this_boot(entry: Folder) -> bool:
    """True if the machine has not started again since the last fetcher of a cache began."""
    boot = boot_id()
    try:
        return bool(boot) and entry.read(BOOT, _MOST_BOOT).decode(errors="replace") == boot
    except OSError:
        return False


def overhead_of(entry: Path, chunks: int) -> int:
    """Bytes that an entry takes apart from chunks and orders, with some room for the folder of chunks and the log."""
    folder = Folder.open(entry)
    apart = [name for name in (CHUNKS, ORDERS) if folder.has_own_folder(name)]
    taken = allocated_bytes(folder) - sum(allocated_bytes(folder.folder(name)) for name in apart)
    return taken + in_blocks(128 * chunks) + MOST_LOG


class Present:
    """The bytes that say which chunks are there, mapped.

    Args:
        entry: Folder of the cache.
        chunks: Number of chunks.
        write: True for the one process that changes them.

    Attributes:
        bytes: The bytes: 0 for a chunk that is not there, `WHOLE`, or `WRONG` if some of its records are.

    Raises:
        CorruptFile: They are not as many as there are chunks.
        UnreadableFile: They cannot be read.
    """

    def __init__(self, entry: Path, chunks: int, *, write: bool = False) -> None:
        path = self._path = entry / PRESENT
        with reading(path):
            opened = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW) if write else open_regular(path)
        with closing_descriptor(opened) as descriptor:
            self._status = os.fstat(descriptor)
            if self._status.st_size != chunks:
                raise CorruptFile(f"{path} is damaged: it does not have {chunks} bytes. {OPEN_AGAIN}", file=PRESENT)
            access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
            self.bytes = memoryview(mmap.mmap(descriptor, chunks, access=access) if chunks else bytearray())

    @staticmethod
    def mend(entry: Path, chunks: int) -> None:
        """Makes the file anew if it is damaged: no chunk is there then until a fetcher has looked."""
        folder = Folder.open(entry)
        status = folder.status(PRESENT)
        if not folder.has_own_file(PRESENT) or status is None or status.st_size != chunks:
            folder.write(PRESENT, bytes(chunks))

    def check(self) -> None:
        """Makes sure that the cache is still the one that was opened.

        Raises:
            StagingError: Somebody has removed it, or put another in its place.
        """
        with suppress(OSError):
            if os.path.samestat(self._path.lstat(), self._status):
                return
        raise StagingError(f"somebody has removed {self._path.parent} or {PRESENT} in it: open the dataset again")


def address_in(entry: Folder) -> str:
    """The address of the fetcher's socket as long as `entry` is open, whose path may be longer than 107 bytes."""
    return f"/proc/self/fd/{entry.fileno()}/{SOCKET}"


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process id and user id of the other end of a connection."""
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid
