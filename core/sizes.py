"""Numbers of bytes, and times, as people read and write them."""

from __future__ import annotations

import re
from typing import Final

from .arguments import unexpected, whole
from .typed import MOST

_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def size(count: float) -> str:
    """Formats a number of bytes for people, as in ``"1.5 GiB"``."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def parse_bytes(name: str, text: str) -> int:
    """Reads ``512MiB``, ``1.5GB`` or ``1000`` as a number of bytes. An error calls the argument `name`.

    Raises:
        UsageError: `text` is not a number of bytes.
    """
    # A float holds 15 digits exactly.
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if not found or (found[3] and not found[2]):
        raise unexpected(name, text, "a number with a unit, such as 512MiB or 2GB")
    unit = found[2].upper()
    return int(float(found[1]) * (1024 ** " KMGT".index(unit) if found[3] else _UNITS[unit]))


def byte_count(name: str, value: int | str, least: int = 1) -> int:
    """Checks a number of bytes, or reads a text that says one, see `parse_bytes`.

    Raises:
        UsageError: It is something else.
    """
    return whole(name, parse_bytes(name, value) if isinstance(value, str) else value, least, MOST)


def duration(seconds: float) -> str:
    """A time for people, as in ``"12 min"``."""
    for unit, length, least in (("days", 86400, 2 * 86400), ("h", 3600, 2 * 3600), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.0f} s"
