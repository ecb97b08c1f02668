"""Writes samples one after the other to the columns of a batch."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from packtrain._core.overriding import override
from packtrain._core.schema import CROP, IMAGE, LABEL

from ..transforms.undecoded import Undecoded, black
from .arena import Arrays, Layout, SlotArray, Varying
from .columns import NUMBERS, pixels_of, present
from .encoded import SPILT, EncodedWriter

Target = npt.NDArray[np.uint8] | None | tuple[npt.NDArray[np.uint8] | None, ...]
"""Memory that an image may be decoded to, or each of its views."""
_Casting = Literal["equiv", "safe", "same_kind"]
_json: Final = json.JSONEncoder(separators=(",", ":"))


class SampleWriter:
    """Writes samples one after the other: to the arrays of a batch, and to lists.

    Args:
        layout: What a batch consists of.
        arrays: Its arrays.
        names: The fields of a sample, in order.

    Attributes:
        direct: True if samples have one image, which can be decoded in place.
        lists: For each varying field, the values so far.
        undecoded: The images so far, if they are left undecoded and `arrays` have no room for them.
        count: Number of samples so far.
    """

    def __init__(self, layout: Layout, arrays: Arrays, names: Sequence[str]) -> None:
        self.lists: Final[dict[str, list[Any]]] = {name: [] for name in layout.varying}
        encoded = EncodedWriter(arrays, self.lists.get(SPILT, []))
        self.undecoded: Final = encoded.images
        columns = {name: self._column(name, layout, arrays, encoded) for name in names}
        image = columns.get(IMAGE)
        self._image = image if isinstance(image, (_Image, _Views)) else None
        self.direct: Final = isinstance(image, _Image) and image.direct
        self._columns: list[_Column | _Optional] = [
            _Optional(column, arrays[present(name)]) if present(name) in layout.fields else column
            for name, column in columns.items()
        ]
        self.count = 0

    def target(self) -> Target:
        """Return the memory for the next image; None if it cannot be decoded in place. A tuple of these for views."""
        return None if self._image is None else self._image.target(self.count)

    def write(self, values: Sequence[Any]) -> None:
        """Adds a sample. An image that is the target itself is in its place already.

        Raises:
            TypeError: A value is of a type that the batch cannot hold.
            ValueError: A value has another shape or dtype than that of the first sample.
            OverflowError: A number is too large.
        """
        at = self.count
        for column, value in zip(self._columns, values, strict=True):
            column.write(at, value)
        self.count = at + 1

    def _column(self, name: str, layout: Layout, arrays: Arrays, encoded: EncodedWriter) -> _Column:
        if name in layout.varying:
            return _List(name, layout.varying[name], self.lists[name])
        if name not in layout.fields:
            each = [part for part in layout.fields if part.rpartition(".")[0] == name]
            return _Views(name, [_Image(f"{name}, view {n}", layout.fields[p], arrays[p]) for n, p in enumerate(each)])
        if layout.fields[name].undecoded:
            return _Undecoded(name, layout.fields[name], encoded)
        field, array = layout.fields[name], arrays[name]
        return _SPECIAL.get(name, _Values)(name, field, array)


class _Column(ABC):
    """Destination of the values of a field."""

    @abstractmethod
    def write(self, at: int, value: Any) -> None:
        """Adds the value of sample `at` of the batch, which is the next one."""

    @abstractmethod
    def fill(self, at: int) -> None:
        """The same for a sample without a value."""


class _Optional:
    """A field that samples may be without."""

    def __init__(self, column: _Column, present: npt.NDArray[Any]) -> None:
        self._column = column
        self._present = present

    def write(self, at: int, value: Any) -> None:
        self._present[at] = value is not None
        if value is None:
            self._column.fill(at)
        else:
            self._column.write(at, value)


class _Values(_Column):
    """Arrays of one shape and dtype, also masks and further images."""

    _casting: _Casting = "safe"

    def __init__(self, name: str, field: SlotArray, array: npt.NDArray[Any]) -> None:
        self._name = name
        self._field = field
        self._array = array

    @override
    def write(self, at: int, value: Any) -> None:
        if isinstance(value, NUMBERS):
            value = np.asarray(value)
        values = pixels_of(self._name, value, channels_last=self._field.channels_last)
        _require_same(self._name, values, self._field, self._casting)
        self._array[at] = values

    @override
    def fill(self, at: int) -> None:
        self._array[at] = 0


class _Image(_Values):
    """The image, which may be decoded in place."""

    _casting = "equiv"

    def __init__(self, name: str, field: SlotArray, array: npt.NDArray[Any]) -> None:
        super().__init__(name, field, array)
        self.direct: Final = field.channels_last and array.dtype == np.uint8
        self._target: npt.NDArray[np.uint8] | None = None

    def target(self, at: int) -> npt.NDArray[np.uint8] | None:
        """Return the memory for the image of sample `at`; None if it cannot be decoded in place."""
        self._target = self._array[at] if self.direct else None
        return self._target

    @override
    def write(self, at: int, value: Any) -> None:
        if value is not self._target or value is None:
            super().write(at, value)


class _Undecoded(_Column):
    """Images that are still to be decoded."""

    def __init__(self, name: str, field: SlotArray, encoded: EncodedWriter) -> None:
        height, width, _ = field.shape
        self._name = name
        self._size = width, height
        self._write = encoded.write

    @override
    def write(self, at: int, value: Undecoded) -> None:
        if value.size != self._size:
            found, expected = (" x ".join(map(str, size)) for size in (value.size, self._size))
            raise ValueError(f"its {self._name} will have {found} pixels, that of the first sample {expected}")
        self._write(at, value)

    @override
    def fill(self, at: int) -> None:
        self._write(at, black(self._size))


class _Views(_Column):
    """Several views of an image, each in an array of its own."""

    def __init__(self, name: str, views: Sequence[_Image]) -> None:
        self._name = name
        self._views = views

    def target(self, at: int) -> tuple[npt.NDArray[np.uint8] | None, ...]:
        """Return the memory for each view of sample `at`."""
        return tuple(view.target(at) for view in self._views)

    @override
    def write(self, at: int, value: Any) -> None:
        if not isinstance(value, (tuple, list)) or len(value) != len(self._views):
            found = len(value) if isinstance(value, (tuple, list)) else "no"
            raise ValueError(f"its {self._name} has {found} views, that of the first sample had {len(self._views)}")
        for view, image in zip(self._views, value, strict=True):
            view.write(at, image)

    @override
    def fill(self, at: int) -> None:
        for view in self._views:
            view.fill(at)


class _Label(_Values):
    """Numbers, or arrays of them."""

    @override
    def write(self, at: int, value: Any) -> None:
        field = self._field
        if not (type(value) is int and field.shape == () and field.dtype != "|b1"):
            value = np.asarray(value)
            # Labels are numbers: a float may lose digits, but an integer must not become another integer.
            casting: _Casting = "safe" if np.dtype(field.dtype).kind in "iu" else "same_kind"
            _require_same(self._name, value, field, casting)
        self._array[at] = value


class _Crop(_Values):
    """The part that was taken of an image or mask; nothing where that is missing."""

    @override
    def write(self, at: int, value: Any) -> None:
        if value is None:
            self.fill(at)
        else:
            super().write(at, value)


_SPECIAL: Final = {IMAGE: _Image, LABEL: _Label, CROP: _Crop}


class _List(_Column):
    """Values that are collected in a list, each converted to what `blob` sends."""

    def __init__(self, name: str, varying: Varying, values: list[Any]) -> None:
        self._name = name
        self._varying = varying
        self._convert, self._empty = _LISTS[varying.kind]
        self._append = values.append

    @override
    def write(self, at: int, value: Any) -> None:
        self._append(self._convert(self._name, self._varying, value))

    @override
    def fill(self, at: int) -> None:
        self._append(self._empty(self._varying))


def _instance(kind: type, name: str, varying: Varying, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"its {name} is an object of type {type(value).__qualname__}, not {kind.__name__}")
    return value


def _json_text(name: str, varying: Varying, value: Any) -> str:
    try:
        return _json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"its {name} is no JSON value ({error})") from error


def _array(name: str, varying: Varying, value: Any) -> npt.NDArray[Any]:
    values, (_, dtype, shape) = np.ascontiguousarray(pixels_of(name, value)), varying
    if values.dtype != dtype or values.ndim == 0 or values.shape[1:] != shape:
        raise ValueError(
            f"its {name} is {values.dtype} {list(values.shape)}, where {np.dtype(dtype)} "
            f"[any, {', '.join(map(str, shape))}] was expected".replace(", ]", "]")
        )
    return values


# The conversion of a value, and what stands for a missing one.
_LISTS: Final[Mapping[str, tuple[Callable[[str, Varying, Any], Any], Callable[[Varying], Any]]]] = {
    "text": (partial(_instance, str), lambda varying: ""),
    "json": (_json_text, lambda varying: "null"),
    "bytes": (partial(_instance, bytes), lambda varying: b""),
    "ragged": (_array, lambda varying: np.empty((0, *varying.shape), varying.dtype)),
}


def _require_same(what: str, value: npt.NDArray[Any], field: SlotArray, casting: _Casting) -> None:
    expected = np.dtype(field.dtype)
    if value.shape != field.shape or not np.can_cast(value.dtype, expected, casting):
        order = " (height, width, channels)" * field.channels_last
        raise ValueError(
            f"its {what} is {value.dtype} {list(value.shape)}{order}, that of the first sample was {expected} "
            f"{list(field.shape)}"
        )
