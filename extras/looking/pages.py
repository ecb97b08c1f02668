"""Pages of rows: some in their order, or those whose path or class name has a text in it."""

from __future__ import annotations

import re
import time
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._core.schema import LABEL
from packtrain._readers.dataset.store import RecordStore
from packtrain._readers.dataset.stored_rows import StoredRows

Rows = npt.NDArray[np.int64]
_ROWS_AT_ONCE: Final = 1 << 16
_LABEL: Final = re.compile("0|-?[1-9][0-9]{0,17}")


class Page(NamedTuple):
    """A page.

    Attributes:
        rows: Numbers of its rows, int64 [n].
        next: Place at which the next page begins; None if this is the last one.
    """

    rows: Rows
    next: int | None


class Pages:
    """Chosen rows of a dataset, by place.

    Args:
        stored: The dataset.
        chosen: The rows, int64 [n], ascending; None: all, of which no list is made.
    """

    def __init__(self, stored: StoredRows, chosen: Rows | None = None) -> None:
        self._stored, self._chosen = stored, chosen

    def __len__(self) -> int:
        return len(self._stored) if self._chosen is None else len(self._chosen)

    def place_of(self, row: int) -> int:
        """Return the place of a row, or of the first one after it."""
        return min(row, len(self)) if self._chosen is None else int(np.searchsorted(self._chosen, row))

    def page(self, place: int, size: int) -> Page:
        """Return `size` rows from a place on."""
        stop = min(len(self), place + size)
        return Page(self._rows(place, stop), stop if stop < len(self) else None)

    def search(self, text: str, place: int, size: int, seconds: float) -> Page:
        """Return the first `size` rows from a place on that have a text in their path or class name.

        Capital letters of English count as small ones. Without class names, a label is found by its number.

        Args:
            text: The text.
            place: Where to begin.
            size: The most rows to return.
            seconds: How long to search. If that is too short, there are fewer rows, and `Page.next` is where to go on.
        """
        deadline = time.monotonic() + seconds
        found: list[Rows] = []
        while place < len(self) and size > 0 and (time.monotonic() < deadline or not found):
            stop = min(len(self), place + _ROWS_AT_ONCE)
            rows = self._rows(place, stop)
            taken = np.concatenate(
                [numbers[_has(store, text, inner)] for store, inner, numbers in self._stored.located(rows)]
            )
            if len(taken) > size:
                taken = taken[:size]
                stop = self.place_of(int(taken[-1]) + 1)
            found.append(taken)
            place, size = stop, size - len(taken)
        return Page(np.concatenate([np.empty(0, np.int64), *found]), place if place < len(self) else None)

    def _rows(self, place: int, stop: int) -> Rows:
        return np.arange(place, stop) if self._chosen is None else self._chosen[place:stop]


def _has(store: RecordStore, text: str, rows: Rows) -> npt.NDArray[np.bool_]:
    """Says which rows of a store have a text in their path or class name, bool [n]."""
    found = store.index.having("path", text.encode(errors="surrogateescape"), rows)
    labels = store.schema.labels
    if labels.kind == "int" and not labels.shape(1)[1:]:
        names = store.schema.classes
        if names is None:
            wanted = [int(text)] if _LABEL.fullmatch(text) else []
        else:
            wanted = [label for label, name in enumerate(names) if text.lower() in name.lower()]
        if wanted:
            found |= np.isin(store.column(LABEL, rows), wanted)
    return found
