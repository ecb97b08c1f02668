"""Remembers which records have been found sound, for `check="first"`. Does not import torch."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import flag, unexpected
from packtrain._core.errors import UsageError

Check = bool | Literal["first"]
"""When records are compared with their checksums: always, never, or when a run first reads them."""

_BITS: Final = (1 << np.arange(8)).astype(np.uint8)


def checked_check(check: object) -> Check:
    """The argument `check`.

    Raises:
        UsageError: It is something else than True, False or ``"first"``.
    """
    if isinstance(check, str) and check == "first":
        return "first"
    try:
        return flag("check", check)
    except UsageError:
        raise unexpected("check", check, 'True, False or "first"') from None


class SoundRows:
    """The rows whose records have been found sound: a bit each, in memory that is shared with processes started later.

    Bits are set and never cleared. If two processes or threads set bits of one byte at once, one of them may be lost;
    that record is then compared once more. So no lock is needed. Pages come into being as bits in them are set.

    It is sent to a process only while that process is started: only then does the memory go with it.

    Args:
        rows: Number of rows.
        descriptor: The memory of another process; None makes a new one.

    Attributes:
        bits: Bit ``row % 8`` of byte ``row // 8`` is 1 if the record of `row` has been found sound.
    """

    def __init__(self, rows: int, descriptor: int | None = None) -> None:
        self._rows = rows
        size = max(1, -(-rows // 8))
        if descriptor is None:
            descriptor = os.memfd_create("packtrain-sound", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self.bits: Final = memoryview(mmap.mmap(descriptor, size))
        self._bytes = np.frombuffer(self.bits, np.uint8)

    def of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tells for each of some rows whether it has been found sound, bool [any]."""
        found: npt.NDArray[np.bool_] = (self._bytes[rows >> 3] & _BITS[rows & 7]) != 0
        return found

    def add(self, rows: npt.NDArray[np.int64]) -> None:
        """Notes that the records of some rows, int64 [any], have been found sound."""
        np.bitwise_or.at(self._bytes, rows >> 3, _BITS[rows & 7])

    def __reduce__(self) -> tuple[Callable[..., SoundRows], tuple[int, Any]]:
        return _received, (self._rows, reduction.DupFd(self._descriptor))


def _received(rows: int, descriptor: Any) -> SoundRows:
    return SoundRows(rows, descriptor.detach())


def starting_process() -> bool:
    """True while what is pickled goes to a process that is being started."""
    return get_spawning_popen() is not None
