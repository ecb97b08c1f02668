"""Samples that a program gives: a value by the name of each field, of types that can be stored."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.pillow import is_picture
from packtrain._core.errors import UsageError
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import IMAGE, LABEL
from packtrain._formats import StoredLabel

from .facts import in_words
from .lists.labels import LARGEST_FLOAT32, is_exact, rounded_label
from .options import Columns
from .sources import Refused

Sample = Mapping[str, Any]
"""The values that a program gives, by the names of their fields.

A value is bytes, a str, a numpy array or scalar or whatever has ``__array__`` (as a tensor on the CPU), a number, or a
dict or list for JSON. ``image`` is the content of an image file, its path, or pixels: a PIL image, or a uint8 array
[height, width] or [height, width, 3]. ``label`` is a number or a vector of numbers.
"""
_INT: Final = LabelSpec("int")
PIXEL_MODES: Final = {2: "L", 3: "RGB"}
"""Mode of an array of pixels, by its number of dimensions."""


def values_of(sample: Sample, columns: Columns | None) -> dict[str, Any]:
    """Return the values of a sample by the names of their fields, as far as columns name them.

    Raises:
        Refused: The sample is no mapping, or raises where it is asked for its values.
    """
    found = mapping_of(sample)
    if columns is None:
        return found
    named = {IMAGE: columns.image, LABEL: columns.label} | {field.name: field.column for field in columns.fields}
    return {name: found.get(key) for name, key in named.items() if key is not None}


def mapping_of(sample: Any) -> dict[str, Any]:
    """Return a sample as a dict.

    Raises:
        Refused: The sample is no mapping, or raises where it is asked for its values.
    """
    if type(sample) is dict:
        return sample
    if not isinstance(sample, Mapping):
        raise Refused(f"a sample is a dict of field and value, not an object of type {type(sample).__name__}")
    try:
        return dict(sample)
    except Exception as error:
        raise Refused(f"it does not give its values: {type(error).__name__}: {error}") from error


def copied(sample: Sample) -> tuple[Sample, int]:
    """Copy a sample, which the source may change when it goes on. Also return its size in bytes, roughly."""
    copied: dict[str, Any] = {}
    size = 0
    for name, value in mapping_of(sample).items():
        if isinstance(value, bytearray | memoryview):
            value = bytes(value)
        elif hasattr(value, "__array__"):
            value = np.array(value)
        elif isinstance(value, Mapping | list | tuple):
            # What cannot be copied is refused when it is stored, with the reason.
            with suppress(Exception):
                value = deepcopy(value)
        elif is_picture(value) and value.format is None:
            # One that was opened from a file knows more than its pixels, such as its orientation.
            value = value.copy()
        size += getattr(value, "nbytes", 0) or (len(value) if isinstance(value, str | bytes) else 0)
        copied[name] = value
    return copied, size


def array_of(name: str, value: Any) -> npt.NDArray[Any]:
    """Return a value as an array, without copying it where that is possible.

    Raises:
        Refused: The value is no array.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise Refused(f"{name} is a masked array, whose mask would be lost: yield {name}.filled(...)")
    if isinstance(value, np.ndarray):
        return value
    if not (isinstance(value, bool | int | float | complex) or hasattr(value, "__array__")):
        raise Refused(f"{name} is an object of type {type(value).__name__}, not a numpy array")
    try:
        return np.asarray(value)
    except Exception as error:
        # The code of other libraries, which raises anything; torch for a tensor on the GPU.
        raise Refused(f"{name} cannot become a numpy array: {type(error).__name__}: {error}") from error


def stored_label(value: Any, labels: LabelSpec) -> StoredLabel:
    """Return a label as it is stored.

    Raises:
        Refused: The label has another type.
    """
    if labels.kind == "none":
        if value is not None:
            raise Refused("it has a label, and samples here have none")
        return None
    if type(value) is int and labels == _INT and -(1 << 63) <= value < 1 << 63:
        return value
    found = _numbers(value)
    kind, count = labels.kind, None if not found.ndim else len(found)
    if count != labels.count or (found.dtype.kind == "f" and kind == "int"):
        raise Refused(f"label is {label_type(value)}, and labels here are {labels}")
    if kind == "float":
        numbers = found.astype(np.float64)
        if not (np.abs(numbers) <= LARGEST_FLOAT32).all():
            raise Refused(f"label {value!r} is not a finite number of 32 bits")
        # Of a list, numpy has made floating-point numbers already.
        for number in value if isinstance(value, list | tuple) else np.atleast_1d(found).tolist():
            if isinstance(number, int | np.integer) and not is_exact(int(number), "<f4"):
                raise Refused(rounded_label(int(number)))
    else:
        numbers = found.astype(np.int64)
    items = numbers.tolist()
    return tuple(items) if isinstance(items, list) else items


def numbered(classes: Sequence[str]) -> dict[str, int]:
    """Return the number of each class by its name.

    Raises:
        UsageError: Two classes have the same name.
    """
    numbers = {name: label for label, name in enumerate(classes)}
    if len(numbers) < len(classes):
        name, count = Counter(classes).most_common(1)[0]
        raise UsageError(f"{count} classes are called {name!r}: give each a name of its own in `classes`")
    return numbers


def class_of(value: Any, numbers: Mapping[str, int]) -> int:
    """Return the number of a class that is given by its number or its name."""
    if isinstance(value, str):
        if value not in numbers:
            raise Refused(f"class {value!r} is not among the {len(numbers)} class names")
        return numbers[value]
    if type(value) is int and 0 <= value < len(numbers):
        return value
    number = _numbers(value)
    if number.ndim or number.dtype.kind == "f" or not 0 <= number < len(numbers):
        count = len(numbers)
        raise Refused(f"label {value!r} is outside the {count} class names, whose labels are 0 to {count - 1}")
    return int(number)


def _numbers(value: Any) -> npt.NDArray[Any]:
    if value is None:
        raise Refused("it has no label, and samples here have one")
    try:
        found = np.asarray(value)
    except Exception as error:
        raise Refused(f"label cannot become a number: {type(error).__name__}: {error}") from error
    if found.dtype.kind == "b" or (isinstance(value, list | tuple) and any(isinstance(item, bool) for item in value)):
        raise Refused("label is a bool: give 1 for true and 0 for false")
    large = found.dtype.kind == "u" and found.size and int(found.max()) >= 1 << 63
    if found.dtype.kind not in "iuf" or found.ndim > 1 or not found.size or large:
        what = f"of type {type(value).__name__}"
        raise Refused(f"label is {what}, neither a number nor a vector of numbers. Number the classes of names")
    return found


def label_type(value: Any) -> LabelSpec:
    """Return the type of a label; kind none if there is none."""
    if value is None:
        return LabelSpec("none")
    found = _numbers(value)
    return LabelSpec("float" if found.dtype.kind == "f" else "int", len(found) if found.ndim else None)


def require_image(name: str, value: Any, store: StoreOptions) -> None:
    """Refuses what is neither an image file nor pixels, or pixels where files are kept."""
    if isinstance(value, bytes | bytearray | memoryview | str | os.PathLike):
        return
    if not is_picture(value):
        pixels_of(name, value)
    if store.keeps_pixels:
        raise Refused(
            f"{name} is pixels, and store mode {store.store} keeps image files: give the bytes of the file or its "
            "path, or take store mode raw, which keeps all pixels exactly, or jpeg"
        )


def pixels_of(name: str, value: Any) -> npt.NDArray[np.uint8]:
    """Return pixels, uint8 [height, width] or [height, width, 3], in C order."""
    expected = f"{name} is an image: give the bytes of its file, a path, a PIL image, or uint8 [height, width, 3]"
    if not hasattr(value, "__array__"):
        raise Refused(f"{expected}, not an object of type {type(value).__name__}")
    array = array_of(name, value)
    if array.dtype != np.uint8 or array.ndim not in PIXEL_MODES or array.shape[2:] not in ((), (3,)) or not array.size:
        raise Refused(f"{expected} or [height, width], not {in_words(array.dtype, array.shape)}")
    return np.ascontiguousarray(array)


def json_of(value: Any) -> bytes:
    """Return a dict or a list as JSON text.

    Raises:
        Refused: It is something else, or holds what JSON cannot.
    """
    if not isinstance(value, Mapping | list | tuple):
        raise Refused(f"it is an object of type {type(value).__name__}, not a dict or a list")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(f"it cannot be written as JSON: {error}") from error
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which only an escape can be.
        return json.dumps(value).encode()
