"""Numbers of rows on the command line."""

from __future__ import annotations

import re
from itertools import chain
from typing import Final

from packtrain._core.arguments import unexpected
from packtrain._core.errors import UsageError

_RANGE: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def row_numbers(text: str) -> list[int]:
    """The rows of `--rows`, such as ``5,10-20``, ends included, in this order.

    Raises:
        UsageError: It is something else.
    """
    return list(chain(*_ranges(text)))


def rows_of(text: str, total: int, most: int) -> list[int]:
    """The same, for rows of which only so many can be shown.

    Args:
        text: What was typed.
        total: Number of rows that there are.
        most: Number of rows that may be named.

    Raises:
        UsageError: It is something else, too many, or there is no such row.
    """
    ranges = _ranges(text)
    if sum(map(len, ranges)) > most:
        raise UsageError(f"--rows: {sum(map(len, ranges)):,} rows, but at most {most:,} can be shown")
    last = max(each[-1] for each in ranges)
    if last >= total:
        raise UsageError(f"--rows: there is no row {last:,}: the last one is {total - 1:,}")
    return list(chain(*ranges))


def _ranges(text: str) -> list[range]:
    found = [_RANGE.fullmatch(part.strip()) for part in text.split(",")]
    ranges = [range(int(each[1]), int(each[2] or each[1]) + 1) for each in found if each is not None]
    if len(ranges) < len(found) or not all(ranges):
        raise unexpected("--rows", text, "numbers of rows and ranges, as in 5,10-20")
    return ranges
