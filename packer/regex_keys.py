"""Keys of rows that a regular expression finds in their paths.

The expression may be that of a dataset, which somebody else has made, and some take longer than anybody waits. So it is
searched for in a process of its own, with limits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import UsageError
from packtrain._readers.dataset.records import native
from packtrain._readers.dataset.store import RecordStore

from .key_hashes import key_hashes
from .sandbox import Died, Limits, Send, run_sandboxed

REGEX: Final = "path:"
_AT_ONCE: Final = 1 << 15
_MEMORY: Final = 1 << 30
_SECONDS: Final = 60
_ROWS_PER_SECOND: Final = 10_000


@dataclass(frozen=True)
class _Searched:
    """The result for some rows.

    Attributes:
        hashes: Those of their keys, in hexadecimal digits.
        problem: Why there are none; "" if there are.
    """

    hashes: str
    problem: str


def regex_hashes(store: RecordStore, regex: str, rows: Sequence[int], seed: int, number: int) -> npt.NDArray[np.uint64]:
    """The hash of what a regular expression finds in the path of each row, as `key_hashes` gives it, uint64 [n].

    Args:
        store: The records, whose index has been checked.
        regex: The regular expression.
        rows: The rows.
        seed: See `key_hashes`.
        number: See `key_hashes`.

    Raises:
        UsageError: It is no regular expression, finds nothing in a path, or takes too long.
    """
    limits, found = Limits(_MEMORY, _SECONDS + len(rows) // _ROWS_PER_SECOND), bytearray()
    try:
        for message in run_sandboxed(partial(_search, store, regex, rows, seed, number), _Searched, limits):
            if message.problem:
                raise UsageError(f"`by` {REGEX}{regex}: {message.problem}")
            found += bytes.fromhex(message.hashes)
    except Died as error:
        raise UsageError(
            f"`by` {REGEX}{regex}: the process that searched the paths for it {error}. Split by a simpler one, with "
            "--replace if the dataset is split"
        ) from error
    return np.frombuffer(found, np.uint64)


def _search(store: RecordStore, regex: str, rows: Sequence[int], seed: int, number: int, send: Send) -> None:
    try:
        search = re.compile(os.fsencode(regex)).search
    except (re.error, OverflowError, RecursionError, UnicodeEncodeError) as error:
        send({"hashes": "", "problem": f"this is no regular expression ({error})"})
        return
    # Memoryviews, which give plain numbers and bytes in a third of the time that numpy takes.
    texts, offsets = store.index["path_bytes"].data, native(store.index["path_offsets"]).data
    for start in range(0, len(rows), _AT_ONCE):
        parts = []
        for row in rows[start : start + _AT_ONCE]:
            found = search(bytes(texts[offsets[row] : offsets[row + 1]]))
            part = None if found is None else found[1] if found.re.groups else found[0]
            if part is None:
                send({"hashes": "", "problem": f"it finds nothing in the path of {store.describe(row)}"})
                return
            parts.append(part)
        ends = np.cumsum([0, *map(len, parts)])
        hashes = key_hashes(ends, np.frombuffer(b"".join(parts), np.uint8), seed, number)
        send({"hashes": hashes.tobytes().hex(), "problem": ""})
