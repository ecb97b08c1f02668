"""Decodes the records of fields other than images: from stored bytes to a value. Nothing in a record is executed."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from packtrain._core.npy import parse_npy_header
from packtrain._core.schema import Field

from .masks import Mask, decode_png

MOST_NESTED: Final = 256
"""The most levels of JSON objects and lists; Python's parser uses its stack for each of them."""
_NESTING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)
_MOST_HEADER: Final = 4096


def decode_value(field: Field, record: memoryview, *, bare: bool = False, size: tuple[int, int] | None = None) -> Any:
    """The value in a record of any field but an image.

    Args:
        field: The field.
        record: The bytes of the record.
        bare: True if arrays and raw masks are stored without the header of an `.npy` file, as in HDF5.
        size: (width, height) that a mask must have, in pixels; None: any, unless it is raw and `bare`.

    Returns:
        ``str`` for a text; what `decode_json` returns for JSON; ``bytes``; for an array a read-only array, a view of
        the record if the values are aligned there; for a mask [height, width], uint8 or int32.

    Raises:
        ValueError: The record holds something else.
        Exception: Whatever Pillow raises on a damaged PNG file.
    """
    match field.kind:
        case "text":
            return str(record, "utf-8")
        case "json":
            return decode_json(record, stored=True)
        case "bytes":
            return bytes(record)
        case "array":
            assert field.dtype is not None and field.shape is not None
            return _array(record, field.dtype, field.shape, bare=bare)
        case "mask":
            return _mask(field, record, bare=bare, size=size)
    raise AssertionError(f"a record of kind {field.kind} is decoded elsewhere")


def decode_json(text: memoryview | bytes, *, nan: bool = False, stored: bool = False, doubts: bool = False) -> Any:
    """Returns the value of a JSON text in UTF-8. All JSON of samples is read here, so each text has one meaning.

    Args:
        text: The text.
        nan: True to take ``NaN`` and ``Infinity``, as numbers of an array.
        stored: True for a record of a dataset. Version 1 of the format leaves open what writers refuse now: of a key
            that stands twice in an object the last value counts, and a number beyond float64 is infinite.
        doubts: True to return, with `nan`, a ValueError as the value of a key that stands twice, and in the place of a
            number beyond float64, which is for those who need only some of the values.

    Raises:
        JSONDecodeError: It is not JSON.
        ValueError: It holds NaN, or has more than one meaning: a number beyond float64, or the same key twice in an
            object; it begins with a byte order mark; or its objects and lists are nested more than
            `MOST_NESTED` deep.
    """
    characters = str(text, "utf-8")
    if characters.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark: write it without one")
    # Nearly all texts have fewer brackets than that, whatever they enclose.
    if characters.count("[") + characters.count("{") > MOST_NESTED and _depth(characters) > MOST_NESTED:
        raise ValueError(f"its objects and lists are nested more than {MOST_NESTED} deep")
    return (_DOUBTS if doubts else _NUMBERS if nan else _STORED if stored else _STRICT).decode(characters)


def parse_npy(head: memoryview, size: int) -> tuple[str, tuple[int, ...], int]:
    """Type string and shape of the C-ordered array in an `.npy` file, and where its values begin.

    Args:
        head: The first bytes of the file, or all of it.
        size: Size of the file in bytes.

    Raises:
        ValueError: It is no `.npy` file that is allowed here, or has another size than its header says.
    """
    header = parse_npy_header(head)
    dtype, shape = header.dtype.str, header.shape
    if header.bytes > _MOST_HEADER:
        raise ValueError(f"its .npy header is said to end at byte {header.bytes}")
    if dtype.startswith(">"):
        raise ValueError(f"its values are {dtype}, big-endian; write them again as {dtype.replace('>', '<')}")
    if header.fortran:
        raise ValueError("its values are in Fortran order; write it again with numpy.ascontiguousarray")
    values = header.dtype.itemsize * math.prod(shape)
    if size - header.bytes != values:
        raise ValueError(f"it has {size - header.bytes} bytes of values, where {dtype} {list(shape)} has {values}")
    return dtype, shape, header.bytes


def _array(record: memoryview, dtype: str, shape: tuple[int | None, ...], *, bare: bool) -> npt.NDArray[Any]:
    if bare:
        found, start = _bare_shape(len(record), dtype, shape), 0
    else:
        stored, found, start = parse_npy(record, len(record))
        fits = len(found) == len(shape) and all(want in (None, size) for want, size in zip(shape, found, strict=True))
        if stored != dtype or not fits:
            raise ValueError(f"it is an array {stored} {list(found)}, where the field has {_shown(dtype, shape)}")
    values = np.ndarray(found, dtype, record, start)
    if values.flags.aligned:
        return values
    values = values.copy()
    values.flags.writeable = False
    return values


def _bare_shape(size: int, dtype: str, shape: tuple[int | None, ...]) -> tuple[int, ...]:
    rest = tuple(side for side in shape if side is not None)
    step = np.dtype(dtype).itemsize * math.prod(rest)
    if len(rest) == len(shape):
        fits, found = size == step, rest
    else:
        # Entries without a byte do not tell how many there are.
        count, left = divmod(size, step) if step else (0, size)
        fits, found = not left, (count, *rest)
    if not fits:
        raise ValueError(f"it has {size} bytes, which is no array {_shown(dtype, shape)}")
    return found


def _mask(field: Field, record: memoryview, *, bare: bool, size: tuple[int, int] | None) -> Mask:
    assert field.dtype is not None
    if field.encoding == "png":
        mask = decode_png(record)
        if field.dtype == "|u1" and mask.dtype != np.uint8:
            raise ValueError("its values have 16 bits, where the field has 8")
        mask = mask if field.dtype == "|u1" else mask.astype(np.int32, copy=False)
    else:
        values = _array(record, field.dtype, (None, None) if size is None else size[::-1], bare=bare)
        mask = values if field.dtype == "|u1" else values.astype(np.int32)
    if size is not None and mask.shape != size[::-1]:
        raise ValueError(f"it has {mask.shape[1]} x {mask.shape[0]} pixels, not {size[0]} x {size[1]}")
    return mask


def _shown(dtype: str, shape: tuple[int | None, ...]) -> str:
    return f"{dtype} [{', '.join('any' if side is None else str(side) for side in shape)}]"


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON: write null")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        shown = digits if len(digits) <= 24 else f"{digits[:24]}..."
        raise ValueError(f"{shown} is beyond the numbers that float64 has: write it as a text")
    return number


def _with_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {reprlib.repr(twice)} twice: leave one of them out")
    return found


def _or_doubt(read: Callable[[str], float]) -> Callable[[str], float | ValueError]:
    def reading(digits: str) -> float | ValueError:
        try:
            return read(digits)
        except ValueError as doubt:
            return doubt

    return reading


def _with_doubts(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    try:
        return _with_distinct_keys(pairs)
    except ValueError as doubt:
        counts = Counter(key for key, _ in pairs)
        return {key: doubt if counts[key] > 1 else value for key, value in pairs}


_NUMBERS: Final = json.JSONDecoder(parse_float=_finite, object_pairs_hook=_with_distinct_keys)
_DOUBTS: Final = json.JSONDecoder(
    parse_float=_or_doubt(_finite), parse_int=_or_doubt(int), object_pairs_hook=_with_doubts
)
_STORED: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_STRICT: Final = json.JSONDecoder(
    parse_float=_finite, parse_constant=_refuse_constant, object_pairs_hook=_with_distinct_keys
)


def _depth(text: str) -> int:
    """Return how deep the objects and lists of a JSON text are nested."""
    depth = deepest = 0
    for bracket in _NESTING.findall(text):
        if bracket in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in "]}":
            depth -= 1
    return deepest
