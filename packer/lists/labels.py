"""The texts of labels, and what they mean."""

from __future__ import annotations

import math
import os
import re
import reprlib
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError
from packtrain._core.options import LabelSpec
from packtrain._formats import StoredLabel

LARGEST_FLOAT32: Final = float(np.finfo(np.float32).max)
_WHOLE_FLOAT32: Final = 1 << 24
"""Up to here, float32 holds every whole number."""


class BadLine(ValueError):
    """A line of a list does not say what it should; the message says why."""


class LabelParser:
    """Makes labels of texts.

    Args:
        labels: Type of the labels.
        names: Class names by label, or None.
        by_name: True if each label is the name of a class. Without `names`, the names are numbered as they come.

    Attributes:
        found: Number of each class name that was found, if there are no `names`.
        past_the_end: True if a label was found that is one more than the last one with a name.
    """

    def __init__(self, labels: LabelSpec, names: Sequence[str] | None = None, *, by_name: bool = False) -> None:
        self.found: dict[bytes, int] = {}
        self.past_the_end = False
        self._labels = labels
        self._names = names
        self._by_name = by_name
        self._numbers = None if names is None else {os.fsencode(name): label for label, name in enumerate(names)}

    def parse(self, texts: Iterable[bytes]) -> tuple[int, ...] | tuple[float, ...]:
        """Returns the values of a label from their texts.

        Raises:
            BadLine: A text is no such value.
        """
        if self._by_name:
            return tuple(map(self._number, texts))
        if self._labels.kind == "float":
            return tuple(map(_exact_float, texts))
        values = tuple(map(parse_int, texts))
        if self._names is not None and not 0 <= values[0] < len(self._names):
            count = len(self._names)
            self.past_the_end |= values[0] == count
            raise BadLine(f"label {values[0]} is outside the {count} class names, whose labels are 0 to {count - 1}")
        return values

    def require_zero(self, labels: Iterable[object], source: object) -> None:
        """Makes sure that labels do not begin at 1, with which each would get the name of the class after its own.

        Args:
            labels: The labels of all sound lines.
            source: The list, for the message.

        Raises:
            ListError: A label is one too large, and none is 0.
        """
        if not self.past_the_end or self._names is None:
            return
        found, count = set(labels), len(self._names)
        if 0 in found or 1 not in found:
            return
        fault = f"there is a label {count} and no label 0, but the {count} class names have the labels 0 to {count - 1}"
        raise ListError(
            f"{source}: labels seem to begin at 1: {fault}, so each image would get the name of another class. To have "
            "a class 0 that nothing has, write a line before the first class name; or subtract 1 from each label"
        )

    def sort_classes(self) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
        """Sorts the classes found. Returns their names, and for the number of each as it came its number in them."""
        if self.found.keys() == {b"true"}:
            # Truth has a number, whichever of the two occur.
            self.found[b"false"] = len(self.found)
        names = sorted((os.fsdecode(name), label) for name, label in self.found.items())
        labels: npt.NDArray[Any] = np.empty(len(names), "<i8")
        labels[[label for _, label in names]] = np.arange(len(names))
        return tuple(name for name, _ in names), labels

    def _number(self, name: bytes) -> int:
        if not name:
            raise BadLine("the name of the class is empty")
        if self._numbers is None:
            return self.found.setdefault(name, len(self.found))
        if name not in self._numbers:
            raise BadLine(f"class {reprlib.repr(os.fsdecode(name))} is not among the {len(self._numbers)} class names")
        return self._numbers[name]


def stored_labels(
    labels: LabelSpec, values: npt.NDArray[Any], ordinals: npt.NDArray[np.int64]
) -> Iterable[StoredLabel]:
    """Returns the labels with these ordinals, of all `values`, one after the other."""
    if labels.kind == "none":
        return repeat(None, len(ordinals))
    if labels.count is None:
        scalars: list[int | float] = values[ordinals].tolist()
        return scalars
    return map(tuple, values.reshape(-1, labels.count)[ordinals].tolist())


def suggest_values(texts: Sequence[bytes]) -> str | None:
    """Return ``--labels`` for a label of these values: int, float*4 and so on; None if one is no number."""
    if not texts or not all(map(is_number, texts)):
        return None
    kind = "int" if all(re.fullmatch(rb"[+-]?\d+", text) for text in texts) else "float"
    return kind if len(texts) == 1 else f"{kind}*{len(texts)}"


def is_number(text: bytes) -> bool:
    """True for a text that can be a label of type float."""
    try:
        parse_float(text)
    except BadLine:
        return False
    return True


def parse_int(text: bytes) -> int:
    """Reads an integer of 64 bits.

    Raises:
        BadLine: It is something else.
    """
    if not re.fullmatch(rb"[+-]?\d{1,19}", text) or not -(1 << 63) <= (value := int(text)) < 1 << 63:
        raise BadLine(f"label {reprlib.repr(os.fsdecode(text))} is not an integer{_instead(text)}")
    return value


def is_exact(number: int, dtype: npt.DTypeLike) -> bool:
    """True if a floating-point or complex type holds a whole number as it is, without rounding it."""
    try:
        with np.errstate(over="ignore"):
            held = float(np.asarray(float(number)).astype(dtype).real)
    except OverflowError:
        return False
    return math.isfinite(held) and int(held) == number


def rounded_label(number: int) -> str:
    """Says that a whole number is no label among floating-point numbers."""
    return (
        f"label {number} is a whole number that float32, the type of the labels, would round: write {number}.0 if it "
        "may be rounded, or let all labels be whole numbers"
    )


def _exact_float(text: bytes) -> float:
    value = parse_float(text)
    if abs(value) > _WHOLE_FLOAT32 and re.fullmatch(rb"[+-]?\d+", text) and not is_exact(int(text), "<f4"):
        raise BadLine(rounded_label(int(text)))
    return value


def parse_float(text: bytes) -> float:
    """Reads a finite number that float32 can hold.

    Raises:
        BadLine: It is something else.
    """
    try:
        value = float(text)
        if b"_" in text or not math.isfinite(value) or abs(value) > LARGEST_FLOAT32:
            raise ValueError
    except ValueError:
        raise BadLine(f"label {reprlib.repr(os.fsdecode(text))} is not a finite number{_instead(text)}") from None
    return value


def _instead(text: bytes) -> str:
    """Says what to write or to type in place of a label that looks like one of another type."""
    if text.lower() in (b"true", b"false"):
        return ": write 1 for true and 0 for false, or give --labels class"
    if re.fullmatch(rb"[+-]?\d+\.\d*", text):
        return ": write it without a point, or give --labels float"
    return ""
