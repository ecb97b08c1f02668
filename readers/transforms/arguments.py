"""The parameters of transforms, as torchvision takes them: checked, and brought to one form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast, get_args

from packtrain._codec.geometry import FILTERS, PadMode
from packtrain._core.arguments import choice, items, number, unexpected, whole
from packtrain._core.errors import UsageError

FLOAT32: Final = 3.4028234663852886e38
"""The largest number of single precision, in which images are blended."""
Version = Literal[1, 2]
"""Whose arithmetic: that of ``torchvision.transforms`` (1) or ``torchvision.transforms.v2`` (2)."""


def version(value: Version) -> Version:
    """One of torchvision's versions."""
    if value not in (1, 2):
        raise unexpected("version", value, "1 or 2")
    return value


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
    low, high = numbers(name, value, expected, (2,))
    if not (low <= high < math.inf and high > 0 and (low > 0 or (zero and low == 0))):
        raise unexpected(name, value, expected)
    return low, high


def jitter(name: str, value: float | Sequence[float] | None, centre: float, most: float) -> tuple[float, float] | None:
    """The range of a factor, for its distance from `centre` or for (least, greatest); None if it is always `centre`."""
    least = -most if centre == 0 else 0.0
    expected = f"a number, 0 or more, or (least, greatest), from {least:g} to {most:g}"
    if value is None:
        return None
    if isinstance(value, Iterable):
        low, high = numbers(name, value, expected, (2,))
    else:
        spread = number(name, value, 0, math.inf, expected)
        low, high = centre - spread, centre + spread
        low = max(low, 0.0) if centre else low
    if not least <= low <= high <= most:
        raise unexpected(name, value, expected)
    return None if low == high == centre else (low, high)


def numbers(
    name: str,
    value: Any,
    expected: str = "a number, or one for each channel",
    counts: Sequence[int] = (),
    most: float = math.inf,
    *,
    least: float | None = None,
) -> tuple[float, ...]:
    """One number or several, as floats from `least` (None: -`most`) to `most`; as many as one of `counts`, if any."""
    each = items(name, value, expected) if isinstance(value, Iterable) else [value]
    try:
        found = tuple(number(name, one, -most if least is None else least, most, expected) for one in each)
    except UsageError:
        found = ()
    if not found or (counts and len(found) not in counts):
        raise unexpected(name, value, expected)
    return found


def degrees(name: str, value: float | Sequence[float], pairs: Sequence[int]) -> tuple[float, ...]:
    """(least, greatest) in degrees, once or as often as one of `pairs` says; a single number reaches to both sides."""
    count = " or ".join("(least, greatest)" if each == 1 else f"{each} such pairs in one list" for each in pairs)
    expected = f"an angle in degrees, 0 or more, or {count}"
    if not isinstance(value, Iterable):
        most = number(name, value, 0, 1e300, expected)
        return 0.0 - most, most
    # Added to 0, so that no angle is -0.
    angles = tuple(0.0 + angle for angle in numbers(name, value, expected, [2 * each for each in pairs], 1e300))
    if any(angles[at] > angles[at + 1] for at in (0, -2)):
        raise unexpected(name, value, expected)
    return angles


def warp_interpolation(value: Any) -> str:
    """An interpolation that warps have: nearest, bilinear or bicubic."""
    name = interpolation(value)
    if FILTERS[name] not in (0, 2, 3):
        raise unexpected("interpolation", value, "nearest, bilinear or bicubic")
    return name


def warp_fill(value: float | Sequence[float] | None) -> tuple[int, ...]:
    """The colour outside of a warped image: one value from 0 to 255, or one for each of three channels."""
    found = fill(value)
    colour = found if isinstance(found, tuple) else (found,)
    if len(colour) not in (1, 3) or not all(0 <= each <= 255 for each in colour):
        raise unexpected("fill", value, "a value from 0 to 255, or three of them")
    return colour


def for_unit_range(mean: Sequence[float], std: Sequence[float], why: str) -> None:
    """Checks that mean and standard deviation are not those of bytes, with which all pixels would be nearly the same.

    Args:
        mean: Mean of each channel, or one for all.
        std: Standard deviation, likewise.
        why: Says what has scaled the images to [0, 1].

    Raises:
        UsageError: One is above 1.
    """
    given = {"mean": mean, "std": std}
    if all(number <= 1 for numbers in given.values() for number in numbers):
        return
    right = {name: [each / 255 for each in numbers] if max(numbers) > 1 else numbers for name, numbers in given.items()}
    advice = "give numbers up to 1" if max(*right["mean"], *right["std"]) > 1 else f"pass {_shown(right)}"
    raise UsageError(f"{_shown(given)}: {why}: {advice}")


def _shown(arguments: Mapping[str, Sequence[float]]) -> str:
    """Keyword arguments as they are typed: a number, or a tuple of them."""
    each = {name: ", ".join(f"{number:.6g}" for number in numbers) for name, numbers in arguments.items()}
    return ", ".join(f"{name}=({text})" if "," in text else f"{name}={text}" for name, text in each.items())


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
