"""The files that hold the records: opened as they are needed, mapped or read by system calls. Does not import torch."""

from __future__ import annotations

import mmap
import os
import resource
import shlex
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import CorruptFile, UsageError
from packtrain._core.manifest import INDEX, Manifest
from packtrain._core.mounts import is_network
from packtrain._core.opening import open_regular
from packtrain._core.overriding import override
from packtrain._storage.location import remote_base

IO: Final = ("auto", "mmap", "pread")
Io = Literal["mmap", "pread"]
Integers = npt.NDArray[np.integer[Any]]
# What Linux reads ahead by default. No device cuts a request shorter than that, unless its read-ahead was turned down.
_PIECE: Final = 128 << 10


class ShardFile(Protocol):
    """An open shard: where records are read from, wherever they lie.

    Attributes:
        bytes: Its size.
        modified_ns: When it was last changed, in nanoseconds since 1970; None if that says nothing.
    """

    bytes: int
    modified_ns: int | None

    def read(self, offset: int, size: int) -> memoryview:
        """The bytes [offset, offset + size), read-only.

        Raises:
            OSError: They cannot be read.
        """

    def will_need(self, offset: int, size: int) -> None:
        """Asks the system to read these bytes into memory, without waiting for it.

        Raises:
            OSError: It refuses.
        """


class WrongShard(Exception):
    """A shard is not the file that was packed or indexed; the message says how it differs."""


class OtherTime(WrongShard):
    """A linked shard has the size that it had when it was indexed, and another time of change."""


class Shards(ABC):
    """Shards by number, which are opened as they are needed.

    Args:
        io: ``"mmap"`` or ``"pread"``.
        opened: Where those that are open are kept; None: in a dict of their own.
        share: Part of the `descriptor_budget` that they may take.

    Attributes:
        io: ``"mmap"`` or ``"pread"``.
        opened: The shards that are open. A look into it is all that reading from an open shard costs.
    """

    @property
    def waited_ns(self) -> int:
        """Nanoseconds that this process has waited for bytes to be fetched from far away."""
        return 0

    def __init__(self, io: Io, opened: dict[int, ShardFile] | None = None, share: float = 1) -> None:
        self.io: Final[Io] = io
        self.opened: Final[dict[int, ShardFile]] = {} if opened is None else opened
        self._share = share

    @abstractmethod
    def open(self, number: int) -> ShardFile:
        """Opens a shard, and lets go of another one if too many are open.

        Raises:
            CorruptFile: There is no shard of this number.
            WrongShard: It has another size than when it was written, or is linked and has changed since it was indexed.
            OSError: It cannot be opened.
        """

    def files(self, numbers: Integers, offsets: Integers) -> tuple[Integers, Integers] | None:
        """The mapped files that hold some records.

        None if files are not mapped here, or if some are still to be fetched from far away.

        Args:
            numbers: The shard of each record, [records].
            offsets: Where each begins there, in bytes, int64 [records].

        Returns:
            The number of the file of each record, for `view`; and where the record begins in it, in bytes.

        Raises:
            CorruptFile: There is no such shard or record.
        """
        return (numbers, offsets) if self.io == "mmap" else None

    def view(self, number: int) -> memoryview:
        """The bytes of a mapped file, which is opened if need be. Raises what `open` raises."""
        shard = self.opened.get(number) or self.open(number)
        view: memoryview = shard.view  # type: ignore[attr-defined]
        return view

    def expect(self, numbers: Integers, offsets: Integers) -> None:  # noqa: B027  # most shards are at hand
        """Says which records are read soon, where they have to be fetched from far away. Does not wait for them.

        Args:
            numbers: The shard of each record, [records].
            offsets: Where each begins there, in bytes, int64 [records].

        Raises:
            CorruptFile: There is no such shard or record.
        """

    def replace_damaged(self, number: int, offset: int, size: int) -> bool:
        """Puts sound bytes in the place of damaged ones, if there is somebody to ask for them.

        Args:
            number: The shard of a damaged record.
            offset: Where it begins there, in bytes.
            size: Its size in bytes.

        Returns:
            True if they were replaced, or are sound by now.

        Raises:
            PacktrainError: They should have been, but could not be.
        """
        return False

    def close_removed(self) -> None:  # noqa: B027  # most files stay
        """Closes files that have been removed, so that their space is free."""

    def _opened(self, number: int, opener: Callable[[], int], size: int) -> ShardFile:
        """Opens a file, which must have this size, and keeps it open under this number."""
        if len(self.opened) >= descriptor_budget() * self._share:
            # Another thread may open or close shards meanwhile; then it makes room, or the next call does.
            with suppress(RuntimeError, StopIteration):
                self.opened.pop(next(iter(self.opened)), None)
        shard = MappedShard(opener()) if self.io == "mmap" else OpenShard(opener())
        if shard.bytes != size:
            raise WrongShard(f"has {shard.bytes} bytes, {size} were written")
        self.opened[number] = shard
        return shard

    def close(self) -> None:
        """Closes all shards. Views that were handed out stay valid, and shards are opened again as they are needed."""
        self.opened.clear()


class DatasetShards(Shards):
    """The shards of a dataset.

    Args:
        folder: The dataset's folder.
        manifest: Its manifest.
        io: ``"mmap"``, ``"pread"`` or ``"auto"``, see `RecordStore`.
        unread: True if none is read: then they may lie in an object store.
    """

    def __init__(self, folder: Path, manifest: Manifest, io: str, *, unread: bool = False) -> None:
        self._folder = folder
        self._manifest = manifest
        if not unread and remote_base(folder, manifest) is not None:
            raise UsageError(
                f"{folder} has its shards in {manifest.base}: name a folder for their local cache, and the cache's "
                f'maximum size: open_dataset("{folder}", stage="/nvme", budget="200GiB"); or make a copy: `packtrain '
                f"stage {shlex.quote(os.fspath(folder))} --to DIR`"
            )
        super().__init__("pread" if io == "pread" or (io == "auto" and self._on_network()) else "mmap")

    @override
    def open(self, number: int) -> ShardFile:
        if number >= len(self._manifest.shards):
            raise CorruptFile(
                f"{self._folder}: the index names shard {number} of {len(self._manifest.shards)}", file=INDEX
            )
        path = self._manifest.shard_path(self._folder, number)
        shard = self._opened(number, partial(open_regular, path), self._manifest.shards[number].bytes)
        if self._manifest.modified_ns(self._folder, number) not in (None, shard.modified_ns):
            del self.opened[number]
            raise OtherTime(f"({path}) was changed after it had been indexed")
        return shard

    def _on_network(self) -> bool:
        if is_network(self._folder) or not self._manifest.shards:
            return is_network(self._folder)
        # If a dataset is staged in part, its last shards are links to the source.
        last = self._manifest.shard_path(self._folder, len(self._manifest.shards) - 1)
        return (last.parent != self._folder or last.is_symlink()) and is_network(last)


class MappedShard:
    """A mapped shard; the last view of it that is dropped unmaps it.

    Args:
        descriptor: The file; what is mapped keeps a copy of the descriptor, and with it the locks that it has.

    Attributes:
        view: All of it.
    """

    # A batch may look at a hundred of them, after its pixels have driven all else from the processor's cache.
    __slots__ = ("_map", "bytes", "modified_ns", "view")

    def __init__(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            # An empty file cannot be mapped.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if status.st_size else None
        self.view: Final = memoryview(self._map or b"")
        self.bytes = len(self.view)
        self.modified_ns: int | None = status.st_mtime_ns

    def read(self, offset: int, size: int) -> memoryview:
        """The bytes [offset, offset + size), read-only."""
        return self.view[offset : offset + size]

    def will_need(self, offset: int, size: int) -> None:
        """Asks the system to read these bytes into memory."""
        if self._map is not None:
            for start, length in _pieces(offset, size):
                self._map.madvise(mmap.MADV_WILLNEED, start, length)


class OpenShard:
    """A shard read with pread. It is closed when it is dropped, and so never in the middle of another thread's read.

    Args:
        descriptor: The file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        status = os.fstat(self._descriptor)
        self.bytes = status.st_size
        self.modified_ns: int | None = status.st_mtime_ns

    def read(self, offset: int, size: int) -> memoryview:
        """The bytes [offset, offset + size), read-only."""
        data = os.pread(self._descriptor, size, offset)
        if len(data) < size:
            buffer = bytearray(data)
            while piece := os.pread(self._descriptor, size - len(buffer), offset + len(buffer)):
                buffer += piece
            if len(buffer) < size:
                raise OSError(f"it has become shorter than the {self.bytes} bytes that it had when it was opened")
            data = bytes(buffer)
        return memoryview(data)

    def will_need(self, offset: int, size: int) -> None:
        """Asks the system to read these bytes into memory."""
        for start, length in _pieces(offset, size):
            os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_WILLNEED)


def _pieces(offset: int, size: int) -> Iterator[tuple[int, int]]:
    """The pages around a range, in pieces that the kernel reads ahead in full; it truncates longer requests."""
    end = offset + size
    for start in range(offset - offset % mmap.PAGESIZE, end, _PIECE):
        yield start, min(_PIECE, end - start)


def descriptor_budget() -> int:
    """Return how many shards may be open at once: half of the descriptors that this process may have.

    Ask for it whenever one is opened: a loader's workers may have more than the process that they were forked from.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if soft == resource.RLIM_INFINITY else max(16, soft // 2)
