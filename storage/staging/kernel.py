"""Linux calls for copying that Python lacks: reflinks, allocation, and reads that leave the page cache unchanged."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packtrain._core.opening import closing_descriptor, open_regular

if TYPE_CHECKING:
    import numpy as np

    Pages = np.ndarray[tuple[int], np.dtype[np.bool_]]


_FICLONE: Final = 0x40049409
_SYNC_FILE_RANGE_WRITE: Final = 2
_REFUSED: Final = frozenset(
    [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOTTY, errno.EXDEV, errno.EPERM, errno.EBADF, errno.ETXTBSY]
)
"""Error codes by which file systems say that they do not support an operation."""
_libc = ctypes.CDLL(None, use_errno=True)


def clone(source: int, target: int) -> bool:
    """Makes the file `target` share the blocks of the file `source`. Returns False if that is not supported."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        raise
    return True


def allocate(descriptor: int, offset: int, length: int) -> None:
    """Allocates space for a range of a file, if the file system supports it.

    Unlike `os.posix_fallocate`, it never falls back to writing.
    """
    try:
        _call("fallocate", descriptor, 0, ctypes.c_int64(offset), ctypes.c_int64(length))
    except OSError as error:
        if error.errno not in _REFUSED:
            raise


def start_writeback(descriptor: int, offset: int, length: int) -> None:
    """Starts writing a range to the disk without waiting for it, so that a later fsync has less to do."""
    with suppress(OSError):
        _call("sync_file_range", descriptor, ctypes.c_int64(offset), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)


def drop_from_memory(path: Path) -> None:
    """Advises the kernel to forget the content of a file, as far as it is on the medium. It may decline."""
    with suppress(OSError), closing_descriptor(open_regular(path)) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def cached_pages(descriptor: int, offset: int, length: int) -> Pages | None:
    """Finds out which pages of a range are in the page cache.

    Args:
        descriptor: Descriptor of an open file.
        offset: First byte of the range, a multiple of the page size.
        length: Length of the range in bytes.

    Returns:
        bool [pages]: True for each page that is cached; None if the kernel does not tell.
    """
    import numpy as np  # slow: takes longer than all of `packtrain stage` when there is nothing to copy

    # For another user's files without write permission, mincore reports every page as cached.
    if os.fstat(descriptor).st_uid != os.geteuid() and not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        return None
    pages = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
    try:
        mapping = mmap.mmap(descriptor, length, prot=mmap.PROT_READ, offset=offset)
        address, vector = np.frombuffer(mapping, np.uint8).ctypes.data, pages.ctypes.data
        _call("mincore", ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_void_p(vector))
    except (OSError, ValueError):
        return None
    return (pages & 1).astype(np.bool_)


class Reader:
    """Reads a range of a file, front to back, and leaves the page cache as it was.

    If nothing of the range is cached, direct I/O bypasses the cache, which takes half the processor time. If some of it
    is cached, or the file system does not support direct I/O, the range is read through the cache, and pages that were
    not there before are dropped again.

    Args:
        descriptor: Descriptor of the file; the caller closes it.
        offset: First byte of the range, a multiple of the page size.
        length: Length of the range in bytes.
    """

    def __init__(self, descriptor: int, offset: int, length: int) -> None:
        self._descriptor = descriptor
        self._offset = offset
        self._cached = cached_pages(descriptor, offset, length)
        self._direct = (self._cached is None or not self._cached.any()) and self._set_direct(True)
        # No read-ahead: the buffers are large, several threads read at once, and pages read ahead past the end of the
        # range would stay in the cache.
        with suppress(OSError):
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_RANDOM)

    def read(self, view: memoryview, offset: int) -> int:
        """Fills `view` from the file.

        Args:
            view: Memory to fill; it begins at a page boundary.
            offset: Offset in the file, a multiple of the page size.

        Returns:
            Number of bytes read; less than ``len(view)`` only at the end of the file.
        """
        filled = 0
        while filled < len(view) and (count := self._read(view[filled:], offset + filled)):
            filled += count
        return filled

    def close(self) -> None:
        """Drops the pages from the page cache that were not in it before."""
        if self._cached is None:
            return
        for start, stop in _runs(~self._cached):
            at, length = self._offset + start * mmap.PAGESIZE, (stop - start) * mmap.PAGESIZE
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, at, length, os.POSIX_FADV_DONTNEED)

    def _read(self, view: memoryview, offset: int) -> int:
        if self._direct:
            try:
                if whole := len(view) - len(view) % mmap.PAGESIZE:
                    return os.preadv(self._descriptor, [view[:whole]], offset)
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
            # Either the end of the file, or a file system with stricter alignment rules.
            self._direct = self._set_direct(False)
        return os.preadv(self._descriptor, [view], offset)

    def _set_direct(self, wanted: bool) -> bool:
        """Switches direct I/O on or off. Returns whether it is on now."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags)
        except OSError:
            return False
        return wanted


def _runs(flags: Pages) -> Iterator[tuple[int, int]]:
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _call(name: str, *arguments: object) -> None:
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)
    while function(*arguments) != 0:
        if (code := ctypes.get_errno()) != errno.EINTR:
            raise OSError(code, os.strerror(code), name)
