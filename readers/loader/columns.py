"""The columns of a batch: what becomes of each field, by the schema or by the value in some sample.

Pixels, masks, labels and arrays of one shape go into arrays of a slot. Texts, JSON, bytes and ragged arrays are
collected in lists, which `blob` sends.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from packtrain._codec.pillow import is_picture
from packtrain._core import schema
from packtrain._core.kinds import KINDS

from ..transforms.undecoded import Undecoded
from .arena import SlotArray, Varying

# Number of bytes per sample up to which the consumer gets a copy.
_SMALL: Final = 64
NUMBERS: Final = (bool, int, float, complex, np.generic)
"""Types of the values that lie in arrays as they are."""


def present(name: str) -> str:
    """Name of the array that says which samples have a field."""
    return f"{schema.PRESENT}.{name}"


def view(name: str, number: int) -> str:
    """Name of the array of one view of an image, of which samples have several."""
    return f"{name}.{number}"


Column = SlotArray | Varying | tuple[SlotArray, ...]
"""A field in a batch: an array, one for each view of an image, or something that lies in no array."""


def column_of(name: str, value: Any, known: schema.Field | None = None) -> Column | None:
    """Return the column for a field.

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
    if name == schema.CROP:
        return SlotArray("<i8", (5,), small=True)
    if isinstance(value, Undecoded):
        width, height = value.size
        return SlotArray("|u1", (height, width, 3), channels_last=True, undecoded=True)
    kind = known.kind if known is not None else _kind_of(name, value)
    if (sent := KINDS[kind].sent if kind in KINDS else None) is not None:
        return Varying(sent)
    if known is not None and known.kind == "number" and known.dtype is not None:
        return _array_field(known.dtype, ())
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
    if kind == schema.LABEL:
        return _label_field(value)
    values = pixels_of(name, value)
    if kind == "mask" and known is not None and known.dtype is not None and values.dtype == np.uint8:
        # Others may be deeper.
        return _array_field(schema.MASK_DTYPES[known.dtype], values.shape)
    return _array_field(values.dtype.str, values.shape)


def mask_like(image: SlotArray, known: schema.Field) -> SlotArray:
    """Return the column for a mask that is as large as the sample's image."""
    assert known.dtype is not None
    size = image.shape[:2] if image.channels_last else image.shape[-2:]
    return _array_field(schema.MASK_DTYPES[known.dtype], size)


def _kind_of(name: str, value: Any) -> str:
    """The kind of a field that the dataset says nothing about."""
    if name in (schema.IMAGE, schema.LABEL):
        return name
    if isinstance(value, (str, bytes)):
        return "text" if isinstance(value, str) else "bytes"
    if is_picture(value):
        return "image"
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return "array"
    # Numbers become what a label becomes.
    return schema.LABEL if isinstance(value, NUMBERS) else "json"


def _array_field(dtype: str, shape: tuple[int, ...]) -> SlotArray:
    return SlotArray(dtype, shape, small=np.dtype(dtype).itemsize * math.prod(shape) <= _SMALL)


def _image_field(image: Any) -> SlotArray:
    channels_last = is_picture(image) or (
        isinstance(image, torch.Tensor) and image.ndim == 3 and image.permute(1, 2, 0).is_contiguous()
    )
    pixels = pixels_of(schema.IMAGE, image, channels_last=channels_last)
    return SlotArray(pixels.dtype.str, pixels.shape, channels_last)


def _label_field(label: Any) -> SlotArray:
    collated = default_collate([label])
    if not isinstance(collated, torch.Tensor):
        raise TypeError(f"its label is an object of type {type(label).__qualname__}, which no tensor can hold")
    array = collated.numpy()
    return SlotArray(array.dtype.str, array.shape[1:], small=True)


def pixels_of(name: str, value: Any, *, channels_last: bool = False) -> npt.NDArray[Any]:
    """Return the result of a transform as an array.

    Args:
        name: Name of the field.
        value: A tensor, an array or a PIL image.
        channels_last: True to turn a tensor [channels, height, width] or a PIL image into [height, width, channels].
    """
    if is_picture(value):
        value = torch.from_numpy(np.array(value)).reshape(value.height, value.width, -1).permute(2, 0, 1)
    if isinstance(value, torch.Tensor):
        return (value.permute(1, 2, 0) if channels_last and value.ndim == 3 else value).detach().numpy()
    if isinstance(value, np.ndarray):
        return value
    raise TypeError(
        f"its {name} is an object of type {type(value).__qualname__}: expected a tensor, an array or a PIL image"
    )
