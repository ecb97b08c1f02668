"""Memory that a loader has freed goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h, and the bytes that they are set to.
_TRIM, _MAPPED = -1, -3
_KEPT: Final = 8 << 20
_LARGE: Final = 1 << 20
_VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def limit() -> None:
    """Limits what the C library's allocator keeps of what DALI's threads free, for the whole process.

    Left alone, it raises its limits when large blocks are freed, until it keeps up to 64 MB for each thread. So memory
    grows from epoch to epoch until each of DALI's threads has that much. A program that is started with limits of its
    own keeps these.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not any(name in os.environ for name in _VARIABLES):
        mallopt(_TRIM, _KEPT)
        mallopt(_MAPPED, _LARGE)


def give_back(*, dali: bool) -> None:
    """Gives what has been freed back to the system.

    Args:
        dali: True to empty DALI's pools, too.
    """
    # A pipeline of DALI's and what feeds it refer to each other.
    gc.collect()
    if dali:
        from nvidia.dali.backend import ReleaseUnusedMemory

        ReleaseUnusedMemory()
    # What batches of odd sizes have left would be copied into workers that are forked.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
