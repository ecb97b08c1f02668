"""Arrays: from `.npy` files, or from numbers and lists of numbers in JSON, to values in C order, little-endian."""

from __future__ import annotations

import io
import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._codec.values import decode_json
from packtrain._core.errors import UsageError
from packtrain._core.npy import LONGEST_HEADER, parse_npy_header
from packtrain._core.schema import Field, check_array

from .facts import fits_shape, in_words
from .lists.labels import is_exact
from .sources import LARGEST_FILE, Refused

Array = npt.NDArray[Any]
NPY: Final = b"\x93NUMPY"
_HEADER_READERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class ArrayForm(NamedTuple):
    """Type and shape of an array.

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
    values = _values(_from_json(data), data)
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
    culprit: Any = None
    if by_path or data.startswith(NPY):
        values = _from_npy(data)
        sound = fits(values.dtype, wanted)
    else:
        numbers = _from_json(data)
        values = _values(numbers, data)
        if (rounded := _first_rounded(numbers, values, wanted)) is not None:
            raise Refused(
                f"it holds the whole number {rounded}, which {wanted.name} would round: write {rounded}.0 if it may be "
                "rounded, or pack into another folder with a type that holds it"
            )
        if values.shape == (0,) and field.shape[:1] == (None,):
            values = values.reshape(0, *(size or 0 for size in field.shape[1:]))
        culprit = _first_misfit(values, wanted)
        sound = culprit is None
    if not sound or not fits_shape(values.shape, field.shape):
        raise Refused(_misfit(field, values.dtype.newbyteorder("="), values.shape, culprit))
    return values.astype(wanted, copy=False).tobytes(), values.shape


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
    try:
        dtype, fortran, shape, start = parse_npy_header(data)
    except ValueError:
        dtype, fortran, shape, start = _odd_header(data)
    if dtype.hasobject:
        raise Refused("it holds Python objects, which only pickle could read: save numbers instead")
    if any(type(size) is not int or size < 0 for size in shape):
        raise Refused(f"its .npy header says shape {shape}")
    if math.prod(max(size, 1) for size in shape) * dtype.itemsize > LARGEST_FILE:
        raise Refused(f"its .npy header says shape {shape}, which is larger than {LARGEST_FILE} bytes")
    _check(dtype, shape)
    return dtype, shape, fortran, start


def _odd_header(data: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """A header as few write it, or of values that cannot be stored, as numpy reads it."""
    file = io.BytesIO(data[: LONGEST_HEADER + 32])
    try:
        reader = _HEADER_READERS[np.lib.format.read_magic(file)]
        shape, fortran, dtype = reader(file, max_header_size=LONGEST_HEADER)
    except Exception as error:
        # Python's parser, of which numpy makes use, raises many kinds of errors.
        raise Refused(f"its .npy header cannot be read ({type(error).__name__}), or holds fields of records") from error
    return dtype, fortran, shape, file.tell()


def _from_npy(data: bytes) -> Array:
    dtype, shape, fortran, start = _npy_header(data)
    expected = math.prod(shape) * dtype.itemsize
    if len(data) - start != expected:
        raise Refused(f"it has {len(data) - start} bytes of values, and its .npy header says {expected}")
    values = np.frombuffer(data, dtype, offset=start) if expected else np.empty(0, dtype)
    return values.reshape(shape, order="F" if fortran else "C")


def _from_json(data: bytes) -> Any:
    try:
        return decode_json(data, nan=True)
    except ValueError as error:
        raise Refused(f"not numbers in JSON, as in [[1, 2], [3, 4]]: {error}; {_start(data)}") from error


def _values(numbers: Any, data: bytes) -> Array:
    """The array of what JSON text holds, in the type that numpy finds for it, which may round whole numbers."""
    try:
        values = np.array(numbers)
    except (ValueError, OverflowError) as error:
        raise Refused(f"its inner lists differ in length, or are too deep; {_start(data)}") from error
    if values.dtype.kind == "O" and all(isinstance(number, int | float) for number in values.flat):
        raise Refused(
            f"it holds a whole number of more than 64 bits: write it with a decimal point if it may be rounded; "
            f"{_start(data)}"
        )
    if values.dtype.kind not in "biuf":
        raise Refused(f"not numbers in JSON, as in [[1, 2], [3, 4]]; {_start(data)}")
    _check(values.dtype, values.shape)
    return values


def _first_misfit(values: Array, wanted: np.dtype[Any]) -> Any:
    """The first of the numbers of JSON, which have no type of their own, that cannot have this one; None if all can."""
    if not values.size:
        return None
    if wanted.kind in "biu":
        if values.dtype.kind not in ("b" if wanted.kind == "b" else "biu"):
            fractions = values.dtype.kind == "f" and values != np.trunc(values)
            return values[fractions].item(0) if np.any(fractions) else values.item(0)
        if wanted.kind == "b":
            return None
        limits = np.iinfo(wanted)
        low, high = values.min().item(), values.max().item()
        return low if low < limits.min else high if high > limits.max else None
    with np.errstate(over="ignore"):
        lost = np.isfinite(values) & ~np.isfinite(values.astype(wanted))
    return values[lost].item(0) if lost.any() else None


def _first_rounded(numbers: Any, values: Array, wanted: np.dtype[Any]) -> int | None:
    """The first whole number in JSON that a floating-point type would round; None if there is none.

    Whether a number is whole shows only in the text: numpy makes floating-point numbers of all as soon as one is.
    """
    if wanted.kind not in "fc" or not values.size:
        return None
    large = np.abs(values.astype(np.float64)) >= 1 << np.finfo(wanted).nmant
    if not large.any():
        return None
    found = np.array(numbers, object)[large].tolist()
    return next((number for number in found if type(number) is int and not is_exact(number, wanted)), None)


def _check(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    try:
        check_array("", dtype.newbyteorder("<").str, shape)
    except UsageError as error:
        raise Refused(str(error).partition(": ")[2]) from error


def _misfit(field: Field, found: np.dtype[Any], shape: tuple[int, ...], culprit: Any) -> str:
    """Says how an array differs from the field, by which number if one is known, and what to type so that it fits."""
    assert field.shape is not None
    number = "" if culprit is None else f" with the number {culprit}"
    message = f"it is {in_words(found, shape)}{number}, and the field {in_words(np.dtype(field.dtype), field.shape)}"
    if len(shape) != len(field.shape) or not fits_shape(shape[1:], field.shape[1:]):
        return f"{message}: only the first size may differ from row to row"
    options = [f"--dtype {field.name}={found.name}"] if not fits(found, np.dtype(field.dtype)) else []
    if not fits_shape(shape, field.shape):
        options.append(f"--shape {field.name}={','.join(['N', *map(str, shape[1:])])}")
    return f"{message}. If all are to be so, pack into another folder with {' '.join(options)}"


def _start(data: bytes) -> str:
    return f"it begins with {data[:24]!r}"
