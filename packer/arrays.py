"""Arrays: from `.npy` files, or from numbers and lists of numbers in JSON, to values in C order, little-endian."""

from __future__ import annotations

import io
import json
import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import UsageError
from packtrain._core.schema import Field, check_array

from .sources import Refused

Array = npt.NDArray[Any]
NPY: Final = b"\x93NUMPY"
_HEADER_READERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
LONGEST_HEADER: Final = 10_000
"""Longer headers are refused, as by numpy: their text goes to Python's own parser."""


class ArrayForm(NamedTuple):
    """What an array is, apart from its values.

    Attributes:
        dtype: Type of its values, little-endian.
        shape: Its shape.
        is_open: True for an empty JSON list, which says nothing of type and further sizes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_open: bool = False


def array_form(data: bytes, *, by_path: bool) -> ArrayForm:
    """Returns the form of an array.

    Args:
        data: An `.npy` file, of which the first `LONGEST_HEADER` bytes are enough, or JSON text.
        by_path: True if `data` comes from a file, which is to be an `.npy` file.

    Raises:
        Refused: It is no array that can be stored.
    """
    if by_path or data.startswith(NPY):
        dtype, shape, *_ = _npy_header(data)
        return ArrayForm(dtype.newbyteorder("<"), shape)
    values = _from_json(data)
    return ArrayForm(values.dtype, values.shape, is_open=values.shape == (0,))


def store_array(data: bytes, field: Field, *, by_path: bool) -> tuple[bytes, tuple[int, ...]]:
    """Converts an array to what is stored.

    Args:
        data: An `.npy` file or JSON text.
        field: The field that the array belongs to.
        by_path: True if `data` comes from a file, which is to be an `.npy` file.

    Returns:
        The values, in C order and little-endian, and their shape.

    Raises:
        Refused: It is no array that can be stored, or it does not fit the field.
    """
    assert field.dtype is not None
    assert field.shape is not None
    wanted = np.dtype(field.dtype)
    if by_path or data.startswith(NPY):
        values = _from_npy(data)
        if not fits(values.dtype, wanted):
            raise Refused(_misfit(field, f"its type and shape are {_little(values.dtype)} {_in_words(values.shape)}"))
        values = values.astype(wanted, copy=False)
    else:
        values = _from_json(data)
        if values.shape == (0,) and field.shape[:1] == (None,):
            values = values.reshape(0, *(size or 0 for size in field.shape[1:]))
        values = _as_wanted(values, wanted, field)
    if not _has_shape(values.shape, field.shape):
        raise Refused(_misfit(field, f"its type and shape are {wanted.str} {_in_words(values.shape)}"))
    return values.tobytes(), values.shape


def fits(dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """True if every value of one type is also one of the other."""
    if dtype.kind in "iu" and wanted.kind in "fc":
        # numpy takes 64-bit integers for safe in float64, which has 53 bits for them.
        parts = 2 if wanted.kind == "c" else 1
        return dtype.itemsize < wanted.itemsize // parts
    return bool(np.can_cast(dtype, wanted, "safe"))


def _npy_header(data: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Returns dtype, shape, whether the order is Fortran's, and where the values begin."""
    if not data.startswith(NPY):
        raise Refused(f"not an .npy file; it begins with {data[:16]!r}. Write arrays with numpy.save")
    file = io.BytesIO(data[: LONGEST_HEADER + 32])
    try:
        reader = _HEADER_READERS[np.lib.format.read_magic(file)]
        shape, fortran, dtype = reader(file, max_header_size=LONGEST_HEADER)
    except Exception as error:
        # Python's parser, of which numpy makes use, raises many kinds of errors.
        raise Refused(f"its .npy header cannot be read ({type(error).__name__}), or holds fields of records") from error
    if dtype.hasobject:
        raise Refused("it holds Python objects, which only pickle could read: save numbers instead")
    if any(size < 0 for size in shape):
        raise Refused(f"its .npy header says shape {_in_words(shape)}")
    _check("array", _little(dtype), shape)
    return dtype, shape, fortran, file.tell()


def _from_npy(data: bytes) -> Array:
    dtype, shape, fortran, start = _npy_header(data)
    expected = math.prod(shape) * dtype.itemsize
    if len(data) - start != expected:
        raise Refused(f"it has {len(data) - start} bytes of values, and its .npy header says {expected}")
    values = np.frombuffer(data, dtype, offset=start) if expected else np.empty(0, dtype)
    return values.reshape(shape, order="F" if fortran else "C")


def _from_json(data: bytes) -> Array:
    try:
        values = np.array(json.loads(data.decode()))
    except (ValueError, RecursionError) as error:
        raise Refused(f"not numbers in JSON, as in [[1, 2], [3, 4]]: {error or 'too deep'}; {_start(data)}") from error
    if values.dtype.kind not in "biuf":
        raise Refused(f"not numbers in JSON, as in [[1, 2], [3, 4]]; {_start(data)}")
    _check("array", _little(values.dtype), values.shape)
    return values


def _as_wanted(values: Array, wanted: np.dtype[Any], field: Field) -> Array:
    """JSON numbers have no type of their own, so they take the field's if they are in its range."""
    if not values.size:
        return values.astype(wanted)
    kinds = {"b": "b", "i": "biu", "u": "biu"}.get(wanted.kind, "biuf")
    if values.dtype.kind not in kinds:
        raise Refused(_misfit(field, f"its type and shape are {_little(values.dtype)} {_in_words(values.shape)}"))
    if wanted.kind in "iu":
        least, most = np.iinfo(wanted).min, np.iinfo(wanted).max
        if int(values.min()) < least or int(values.max()) > most:
            raise Refused(_misfit(field, f"its values go from {values.min()} to {values.max()}"))
    with np.errstate(over="ignore"):
        converted = values.astype(wanted)
    if wanted.kind in "fc" and not np.array_equal(np.isfinite(converted), np.isfinite(values)):
        raise Refused(_misfit(field, "one of its values is too large"))
    return converted


def _check(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    try:
        check_array(name, dtype, shape)
    except UsageError as error:
        raise Refused(str(error).partition(": ")[2]) from error


def _has_shape(found: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(found) == len(wanted) and all(size in (None, there) for there, size in zip(found, wanted, strict=True))


def _misfit(field: Field, what: str) -> str:
    assert field.shape is not None
    return (
        f"{what}, and the field's are {field.dtype} {_in_words(field.shape)}. To store other ones, say which with "
        f"--array {field.name}, in another folder"
    )


def _little(dtype: np.dtype[Any]) -> str:
    return dtype.newbyteorder("<").str


def _in_words(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("N" if size is None else str(size) for size in shape) + "]"


def _start(data: bytes) -> str:
    return f"it begins with {data[:24]!r}"
