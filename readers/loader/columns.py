"""The fields of a batch: what becomes of each field's values, and how they are written, sample by sample.

Pixels, masks, labels and arrays of one shape go into arrays of a slot. Texts, JSON, bytes and ragged arrays are
collected in lists, which `blob` sends.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate
from typing_extensions import override

from packtrain._codec.pillow import require_pillow
from packtrain._core import schema

from .arena import Arrays, Field, Layout, Varying

PRESENT: Final = "present"
"""What batches call the vectors that say which samples have a field."""
_CROP: Final = "crop"
# Number of bytes per sample up to which the consumer gets a copy.
_SMALL: Final = 64
_MASKS: Final = {"|u1": "|u1", "<u2": "<i4"}
"""Dtypes of masks as they are stored, and as samples have them: torch has few operations for uint16."""

Target = npt.NDArray[np.uint8] | None | tuple[npt.NDArray[np.uint8] | None, ...]
"""Where an image may be decoded to, or each of its views."""
_Casting = Literal["equiv", "safe", "same_kind"]
_NUMBERS: Final = (bool, int, float, complex, np.generic)
_json: Final = json.JSONEncoder(separators=(",", ":"))


def present(name: str) -> str:
    """Name of the array that says which samples have a field."""
    return f"{PRESENT}.{name}"


def view(name: str, number: int) -> str:
    """Name of the array of one view of an image, of which samples have several."""
    return f"{name}.{number}"


Column = Field | Varying | tuple[Field, ...]
"""What becomes of a field: an array, one for each view of an image, or something that lies in no array."""


def column_of(name: str, value: Any, known: schema.Field | None = None) -> Column | None:
    """What becomes of a field in a batch.

    Args:
        name: Its name.
        value: Its value in some sample.
        known: What the dataset says about it, if anything.

    Returns:
        Where its values go; None if this sample is without it, and another one must show that.

    Raises:
        TypeError: No batch can hold such values.
        ValueError: An image is a tuple without views.
    """
    if name == _CROP:
        return Field("<i8", (5,), small=True)
    kind = known.kind if known is not None else _kind_of(name, value)
    if kind in ("text", "json", "bytes"):
        return Varying(kind)
    if known is not None and known.kind == "array" and known.dtype is not None and known.shape is not None:
        sizes = tuple(size for size in known.shape if size is not None)
        ragged = len(sizes) < len(known.shape)
        return Varying("ragged", known.dtype, sizes) if ragged else _array_field(known.dtype, sizes)
    if value is None and known is not None and known.optional:
        return None
    if kind == "image":
        if isinstance(value, (tuple, list)) and not value:
            raise ValueError(f"its {name} is a tuple without views")
        return tuple(map(_image_field, value)) if isinstance(value, (tuple, list)) else _image_field(value)
    if kind == "label":
        return _label_field(value)
    values = _pixels(name, value)
    if kind == "mask" and known is not None and known.dtype is not None and values.dtype == np.uint8:
        # Others may be deeper.
        return _array_field(_MASKS[known.dtype], values.shape)
    return _array_field(values.dtype.str, values.shape)


def mask_like(image: Field, known: schema.Field) -> Field:
    """What becomes of a mask that is as large as the sample's image."""
    assert known.dtype is not None
    size = image.shape[:2] if image.channels_last else image.shape[-2:]
    return _array_field(_MASKS[known.dtype], size)


class Writer:
    """Writes samples one after the other: to the arrays of a batch, and to lists.

    Args:
        layout: What a batch consists of.
        arrays: Its arrays.
        names: The fields of a sample, in order.

    Attributes:
        direct: True if samples have one image, which can be decoded in place.
        lists: For each varying field, the values so far.
        count: Number of samples so far.
    """

    def __init__(self, layout: Layout, arrays: Arrays, names: Sequence[str]) -> None:
        self.lists: Final[dict[str, list[Any]]] = {name: [] for name in layout.varying}
        columns = {name: self._column(name, layout, arrays) for name in names}
        image = columns.get(schema.IMAGE)
        self._image = image if isinstance(image, (_Image, _Views)) else None
        self.direct: Final = isinstance(image, _Image) and image.direct
        self._columns: list[_Column] = [
            _Optional(column, arrays[present(name)]) if present(name) in layout.fields else column
            for name, column in columns.items()
        ]
        self.count = 0

    def target(self) -> Target:
        """Where the next image may be decoded to; None if it cannot be decoded in place. A tuple of these for views."""
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

    def _column(self, name: str, layout: Layout, arrays: Arrays) -> _Column:
        if name in layout.varying:
            varying = layout.varying[name]
            return _LISTS[varying.kind](name, varying, self.lists[name])
        if name not in layout.fields:
            each = [part for part in layout.fields if part.rpartition(".")[0] == name]
            return _Views(name, [_Image(f"{name}, view {n}", layout.fields[p], arrays[p]) for n, p in enumerate(each)])
        field, array = layout.fields[name], arrays[name]
        return _SPECIAL.get(name, _Values)(name, field, array)


class _Column(ABC):
    """Where the values of a field go."""

    @abstractmethod
    def write(self, at: int, value: Any) -> None:
        """Adds the value of sample `at` of the batch, which is the next one."""

    @abstractmethod
    def fill(self, at: int) -> None:
        """The same for a sample without a value."""


class _Optional(_Column):
    """A field that samples may be without."""

    def __init__(self, column: _Column, present: npt.NDArray[Any]) -> None:
        self._column = column
        self._present = present

    @override
    def write(self, at: int, value: Any) -> None:
        self._present[at] = value is not None
        if value is None:
            self._column.fill(at)
        else:
            self._column.write(at, value)

    @override
    def fill(self, at: int) -> None:
        self.write(at, None)


class _Values(_Column):
    """Arrays of one shape and dtype, also masks and further images."""

    _casting: _Casting = "safe"

    def __init__(self, name: str, field: Field, array: npt.NDArray[Any]) -> None:
        self._name = name
        self._field = field
        self._array = array

    @override
    def write(self, at: int, value: Any) -> None:
        if isinstance(value, _NUMBERS):
            value = np.asarray(value)
        values = _pixels(self._name, value, channels_last=self._field.channels_last)
        _require_same(self._name, values, self._field, self._casting)
        self._array[at] = values

    @override
    def fill(self, at: int) -> None:
        self._array[at] = 0


class _Image(_Values):
    """The image, which may be decoded in place."""

    _casting = "equiv"

    def __init__(self, name: str, field: Field, array: npt.NDArray[Any]) -> None:
        super().__init__(name, field, array)
        self.direct: Final = field.channels_last and array.dtype == np.uint8
        self._target: npt.NDArray[np.uint8] | None = None

    def target(self, at: int) -> npt.NDArray[np.uint8] | None:
        """Where the image of sample `at` may be decoded to; None if it cannot be decoded in place."""
        self._target = self._array[at] if self.direct else None
        return self._target

    @override
    def write(self, at: int, value: Any) -> None:
        if value is not self._target or value is None:
            super().write(at, value)


class _Views(_Column):
    """Several views of an image, each in an array of its own."""

    def __init__(self, name: str, views: Sequence[_Image]) -> None:
        self._name = name
        self._views = views

    def target(self, at: int) -> tuple[npt.NDArray[np.uint8] | None, ...]:
        """Where each view of sample `at` may be decoded to."""
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


_SPECIAL: Final = {schema.IMAGE: _Image, "label": _Label, _CROP: _Crop}


class _List(_Column):
    """Values that are collected in a list."""

    def __init__(self, name: str, varying: Varying, values: list[Any]) -> None:
        self._name = name
        self._varying = varying
        self._append = values.append

    def _require(self, value: Any, kind: type) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"its {self._name} is an object of type {type(value).__qualname__}, not {kind.__name__}")


class _Text(_List):
    @override
    def write(self, at: int, value: Any) -> None:
        self._require(value, str)
        self._append(value)

    @override
    def fill(self, at: int) -> None:
        self._append("")


class _Bytes(_List):
    @override
    def write(self, at: int, value: Any) -> None:
        self._require(value, bytes)
        self._append(value)

    @override
    def fill(self, at: int) -> None:
        self._append(b"")


class _Json(_List):
    @override
    def write(self, at: int, value: Any) -> None:
        try:
            self._append(_json.encode(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"its {self._name} is no JSON value ({error})") from error

    @override
    def fill(self, at: int) -> None:
        self._append("null")


class _Ragged(_List):
    @override
    def write(self, at: int, value: Any) -> None:
        values, (_, dtype, shape) = np.ascontiguousarray(_pixels(self._name, value)), self._varying
        if values.dtype != dtype or values.ndim == 0 or values.shape[1:] != shape:
            raise ValueError(
                f"its {self._name} is {values.dtype} {list(values.shape)}, where {np.dtype(dtype)} "
                f"[any, {', '.join(map(str, shape))}] was expected".replace(", ]", "]")
            )
        self._append(values)

    @override
    def fill(self, at: int) -> None:
        _, dtype, shape = self._varying
        self._append(np.empty((0, *shape), dtype))


_LISTS: Final[Mapping[str, Callable[[str, Varying, list[Any]], _Column]]] = {
    "text": _Text,
    "json": _Json,
    "bytes": _Bytes,
    "ragged": _Ragged,
}


def _kind_of(name: str, value: Any) -> str:
    """The kind of a field that the dataset says nothing about."""
    if name in (schema.IMAGE, "label"):
        return name
    if isinstance(value, (str, bytes)):
        return "text" if isinstance(value, str) else "bytes"
    if isinstance(value, require_pillow().Image):
        return "image"
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return "array"
    # Numbers become what a label becomes.
    return "label" if isinstance(value, _NUMBERS) else "json"


def _array_field(dtype: str, shape: tuple[int, ...]) -> Field:
    return Field(dtype, shape, small=np.dtype(dtype).itemsize * math.prod(shape) <= _SMALL)


def _image_field(image: Any) -> Field:
    channels_last = isinstance(image, require_pillow().Image) or (
        isinstance(image, torch.Tensor) and image.ndim == 3 and image.permute(1, 2, 0).is_contiguous()
    )
    pixels = _pixels(schema.IMAGE, image, channels_last=channels_last)
    return Field(pixels.dtype.str, pixels.shape, channels_last)


def _label_field(label: Any) -> Field:
    collated = default_collate([label])
    if not isinstance(collated, torch.Tensor):
        raise TypeError(f"its label is an object of type {type(label).__qualname__}, which no tensor can hold")
    array = collated.numpy()
    return Field(array.dtype.str, array.shape[1:], small=True)


def _pixels(name: str, value: Any, *, channels_last: bool = False) -> npt.NDArray[Any]:
    """What a transform returned, as an array.

    Args:
        name: Name of the field.
        value: A tensor, an array or a PIL image.
        channels_last: True to turn a tensor [channels, height, width] or a PIL image into [height, width, channels].
    """
    if isinstance(value, require_pillow().Image):
        value = torch.from_numpy(np.array(value)).reshape(value.height, value.width, -1).permute(2, 0, 1)
    if isinstance(value, torch.Tensor):
        return (value.permute(1, 2, 0) if channels_last and value.ndim == 3 else value).detach().numpy()
    if isinstance(value, np.ndarray):
        return value
    raise TypeError(
        f"its {name} is an object of type {type(value).__qualname__}: expected a tensor, an array or a PIL image"
    )


def _require_same(what: str, value: npt.NDArray[Any], field: Field, casting: _Casting) -> None:
    expected = np.dtype(field.dtype)
    if value.shape != field.shape or not np.can_cast(value.dtype, expected, casting):
        order = " (height, width, channels)" * field.channels_last
        raise ValueError(
            f"its {what} is {value.dtype} {list(value.shape)}{order}, that of the first sample was {expected} "
            f"{list(field.shape)}"
        )
