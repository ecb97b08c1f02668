"""What the writing of shards does to the page cache, in which the data that is trained on should stay.

Written bytes get to the disk in small parts, so that neither the disk nor an fsync has to deal with a whole shard at
once. If the cache is small enough to stay in memory, new shards stay there, too, since the next epoch reads them. If
not, they are dropped as soon as they are on the disk: they would only displace what is read earlier. Decision 0017 has
the figures.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from packtrain._core.memory import available_memory
from packtrain._core.opening import open_regular
from packtrain._storage.staging.kernel import start_writeback

PART: Final = 8 << 20
"""Bytes after which `write_behind` is worth calling."""
_SHARE: Final = 0.5
"""Part of the memory that the shards of a cache may take for good."""
# Both functions below are advice to the kernel: a shard is as good without it, so a failure is nobody's concern.


def stays_in_memory(budget: int, available: float | None = None) -> bool:
    """True if a cache of so many bytes stays in the page cache next to everything else.

    Args:
        budget: The most bytes that the cache takes.
        available: Bytes of memory that this process can use; None: what the machine and its cgroup say.
    """
    return budget <= _SHARE * (available_memory() if available is None else available)


def write_behind(path: Path, start: int, end: int) -> None:
    """Starts writing a part of a file to the disk, without waiting for it. Does nothing if there is no file."""
    with suppress(OSError):
        descriptor = open_regular(path)
        try:
            start_writeback(descriptor, start, end - start)
        finally:
            os.close(descriptor)


def settle(path: Path) -> None:
    """Drops a file that is on the disk, after fsync, from the page cache. In tmpfs it does nothing."""
    with suppress(OSError):
        descriptor = open_regular(path)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
