"""Read-ahead: the next records are read into memory while others are decoded. Does not import torch."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from typing import Final

WINDOW: Final = 8 << 20
"""Bytes that are requested but not yet used. Enough to keep a disk busy while one record is decoded, and few enough
that large images are not dropped from memory again before they are used."""


class ReadAhead:
    """Requests records from the system before they are read, as long as data has to be read from a disk.

    The system counts, for each thread, the blocks that were read for it, ahead of time or on demand, and the page
    faults that had to wait. If this count has not grown since records were last requested, they were all in memory
    already, and nothing is requested until it grows. For data in memory, the only cost is one look at the count per
    call. There is no need to sample pages or to ask whether they are in memory (`mincore` answers only for files that
    the caller may write).

    For use by one thread.

    Args:
        will_need: `FieldRecords.will_need`, or that of a dataset.
        window: Approximate number of bytes to request, including the present record and at least the next one.
    """

    def __init__(self, will_need: Callable[[int], int], window: int = WINDOW) -> None:
        self._will_need = will_need
        self._window = window
        self._read = -1

    def idle(self) -> bool:
        """True if nothing had to be read since records were last requested, so that `through` would request none."""
        return self._read == _blocks_read()

    def through(self, rows: Sequence[int]) -> Iterator[int]:
        """Yields the rows in their order. Before a row is yielded, the records of the rows after it are requested.

        Bad rows and damaged records raise nothing here; reading them does.
        """
        read, self._read = self._read, _blocks_read()
        if self._read == read:
            yield from rows
            return
        sizes: list[int] = []
        ahead = 0
        for number, row in enumerate(rows):
            # In order of use, not of place: the first is needed first, and a disk's queue sorts where that helps.
            while len(sizes) < len(rows) and (len(sizes) < number + 2 or ahead < self._window):
                sizes.append(self._will_need(rows[len(sizes)]))
                ahead += sizes[-1]
            yield row
            ahead -= sizes[number]


def _blocks_read() -> int:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    # Faults for file systems that count no blocks.
    return usage.ru_inblock + usage.ru_majflt
