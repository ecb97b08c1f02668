"""Cheaper forks: the heap of a process that has imported torch and collected thousands of tests, in huge pages."""

from __future__ import annotations

import ctypes
from pathlib import Path

HUGE = 2 << 20
COLLAPSE = 25
"""``MADV_COLLAPSE`` of Linux 6.1 and later."""


def collapse_heap() -> None:
    """Moves this process's anonymous memory to huge pages where the kernel can do that.

    A fork copies an entry of the page table for each page. In pages of 4 KiB, that of a pytest process takes 17 ms of
    processor time, and much of what the processes write to afterwards is copied page by page.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, access, _, _, _, *name = line.split(maxsplit=5)
        if access == "rw-p" and name in ([], ["[heap]"]):
            begin, end = (int(bound, 16) for bound in bounds.split("-"))
            for address in range(-(-begin // HUGE) * HUGE, end - HUGE + 1, HUGE):
                madvise(address, HUGE, COLLAPSE)
