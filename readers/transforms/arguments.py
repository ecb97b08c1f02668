"""The parameters of transforms, as torchvision takes them: checked, and brought to one form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast, get_args

from packtrain._codec.geometry import FILTERS, PadMode
from packtrain._core.arguments import choice, items, number, unexpected, whole
from packtrain._core.errors import UsageError


def integers(name: str, value: int | Sequence[int], lengths: Sequence[int], *, least: int) -> tuple[int, ...]:
    """Checks for whole numbers, each at least `least`; their count must be one of `lengths`."""
    try:
        numbers = tuple(whole(name, number, least) for number in (value if isinstance(value, Iterable) else (value,)))
    except UsageError:
        numbers = ()
    if len(numbers) not in lengths:
        plural = "s" if lengths[-1] > 1 else ""
        raise unexpected(name, value, f"{' or '.join(map(str, lengths))} whole number{plural} >= {least}")
    return numbers


def size(value: int | Sequence[int]) -> tuple[int, int]:
    """Checks a size and returns it as (height, width)."""
    sides = integers("size", value, (1, 2), least=1)
    return sides[0], sides[-1]


def bounds(name: str, value: Sequence[float], *, zero: bool) -> tuple[float, float]:
    """(least, greatest), both positive; the least may be 0 if `zero`."""
    expected = "(least, greatest), both positive"
    try:
        low, high = map(float, items(name, value, expected))
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not (low <= high < math.inf and high > 0 and (low > 0 or (zero and low == 0))):
        raise unexpected(name, value, expected)
    return low, high


def probability(name: str, value: float) -> float:
    """A number from 0 to 1."""
    return number(name, value, 0, 1, "a probability, from 0 to 1")


def interpolation(value: Any) -> str:
    """One of the names in `FILTERS`, for a name, a member of an enumeration of names or of Pillow's, or its value."""
    name = getattr(value, "value", value)
    if type(name) is int:
        name = next((known for known, number in FILTERS.items() if number == name), None)
    return choice("interpolation", value if name is None else name, FILTERS)


def antialias(value: bool | None) -> bool | None:
    """Checks that antialiasing is not switched off."""
    if value not in (True, None):
        raise UsageError(
            f"antialias={value!r}: the pixels are those of PIL images, which are always antialiased; leave it out"
        )
    return value


def fill(value: float | Sequence[float] | None) -> int | tuple[int, ...]:
    """One value for all channels, or one for each, as whole numbers."""
    try:
        if not isinstance(value, str):
            return tuple(map(int, value)) if isinstance(value, Iterable) else int(value or 0)
    except (TypeError, ValueError, OverflowError):
        pass
    raise unexpected("fill", value, "a number, or one for each channel")


def pad_mode(value: str) -> PadMode:
    """One of the modes of `Pad`."""
    return cast(PadMode, choice("padding_mode", value, get_args(PadMode)))
