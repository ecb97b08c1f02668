"""Read-ahead: records that come next are on their way into memory while others are decoded. Free of torch."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from typing import Final

WINDOW: Final = 8 << 20
"""Bytes asked for and not yet done with. Enough to keep a disk busy while one record is decoded, and little
enough that a batch of large images is not thrown out of memory again before it is used."""


class ReadAhead:
    """Asks the system for records before they are read, as long as anything has to be read from a disk at all.

    Whether that is so, the system says of its own accord: it counts for each thread what was read on its behalf, ahead
    or at last, and faults that had to wait. Where this has not grown since records were last asked for, they were all
    in memory already, and nothing is asked for until it grows. Looking at the count once per call is all that data in
    memory costs; neither a sample of pages nor the right to ask for their residency (`mincore` tells only those who may
    write a file) is needed.

    For use by one thread.

    Args:
        will_need: `RecordStore.will_need`, or that of a dataset.
        window: About as many bytes are asked for, the record at hand and at least the next one included.
    """

    def __init__(self, will_need: Callable[[int], int], window: int = WINDOW) -> None:
        self._will_need = will_need
        self._window = window
        self._read = -1

    def idle(self) -> bool:
        """Whether nothing had to be read since records were last asked for, so that `through` would ask for none."""
        return self._read == _blocks_read()

    def through(self, rows: Sequence[int]) -> Iterator[int]:
        """The rows in their order; when one comes, those behind it have been asked for.

        Nothing is raised for rows or records that are at fault: reading them does that.
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
