"""Finds out what the fields of a dataset are: by the options and, where these leave it open, by a sample of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final, TypeVar

import numpy as np

from packtrain._core.errors import ListError
from packtrain._core.opening import open_regular
from packtrain._core.paths import local_path
from packtrain._core.permutation import Permutation
from packtrain._core.schema import Field, image_field
from packtrain._storage.remote.urls import is_address

from .arrays import LONGEST_HEADER, ArrayForm, array_form, fits
from .listing import Cell, ListedSample, Listing
from .lists.class_names import read_class_names
from .masks import mask_header
from .options import FieldColumn, PackOptions
from .sources import Refused

T = TypeVar("T")
_SAMPLED_ROWS: Final = 256
_SAMPLE_SEED: Final = 0x5A3D
_HEAD_BYTES: Final = LONGEST_HEADER + 32


def sampled(images: Listing, most: int) -> tuple[ListedSample, ...]:
    """Returns at most this many entries of a list, spread over it, and always the same ones."""
    return images.entries(Permutation(len(images), _SAMPLE_SEED).range(0, min(len(images), most)))


def settled_fields(images: Listing, options: PackOptions, before: Sequence[Field] = ()) -> tuple[Field, ...]:
    """Returns the fields that are to be stored.

    Args:
        images: The list.
        options: What is asked for.
        before: What was found before for the same list.

    Raises:
        ListError: No row of the sample says what an array or a mask is, or the rows contradict each other.
    """
    if images.fields is not None:
        return images.fields
    columns = options.columns
    if columns is None:
        return (image_field(options.store),)
    known = {(field.name, field.kind): field for field in before}
    fields = [image_field(options.store)] if columns.image is not None else []
    for number, column in enumerate(columns.fields):
        fields.append(_settled(column, number, images, options, known.get((column.name, column.kind))))
    return tuple(fields)


def _settled(column: FieldColumn, number: int, images: Listing, options: PackOptions, before: Field | None) -> Field:
    dtype, shape = column.dtype, column.shape
    if before is not None:
        dtype, shape = dtype or before.dtype, before.shape if shape is None else shape
    match column.kind:
        case "image":
            return Field(column.name, "image", column.optional, store=options.store)
        case "mask":
            dtype = dtype or _mask_dtype(column, number, images)
            classes = None if column.classes is None else read_class_names(local_path(column.classes))
            return Field(column.name, "mask", column.optional, encoding=column.encoding, dtype=dtype, classes=classes)
        case "array":
            if dtype is None or shape is None:
                found = _array_form(column, number, images)
                dtype, shape = dtype or found[0], found[1] if shape is None else shape
            return Field(column.name, "array", column.optional, dtype=dtype, shape=shape)
        case _:
            return Field(column.name, column.kind, column.optional)


def _mask_dtype(column: FieldColumn, number: int, images: Listing) -> str:
    headers = _of_sample(column, number, images, lambda data, _: mask_header(data))
    return max((header.dtype for header in headers), default="|u1", key=lambda dtype: dtype == "<u2")


def _array_form(column: FieldColumn, number: int, images: Listing) -> tuple[str, tuple[int | None, ...]]:
    """Returns a dtype and a shape that fit all arrays of the sample."""
    forms = _of_sample(column, number, images, lambda data, by_path: array_form(data, by_path=by_path))
    closed = [form for form in forms if not form.is_open]
    if not closed:
        raise ListError(
            f"{_of(column)}: no row of a sample has an array with values, so type and shape are unknown. Say what they "
            f"are, as in --dtype {column.name}=float32 --shape {column.name}=N,4"
        )
    shapes = sorted({form.shape for form in closed})
    if len({(len(shape), shape[1:]) for shape in shapes}) > 1:
        raise ListError(
            f"{_of(column)}: the arrays have shapes such as {shapes[0]} and {shapes[-1]}, but only the first size may "
            "differ from row to row. Make the others equal, or store the arrays in other columns"
        )
    shape: tuple[int | None, ...] = shapes[0]
    if len(shapes) > 1 or len(closed) < len(forms):
        shape = (None, *shape[1:])
    return _common_dtype(column, closed).str, shape


def _common_dtype(column: FieldColumn, forms: Sequence[ArrayForm]) -> np.dtype[Any]:
    found = {form.dtype for form in forms}
    common = reduce(np.promote_types, found)
    if column.by_path and not all(fits(dtype, common) for dtype in found):
        names = ", ".join(sorted(dtype.str for dtype in found))
        raise ListError(f"{_of(column)}: the arrays hold {names}, which no type holds exactly. Convert some of them")
    return common.newbyteorder("<")


def _of_sample(column: FieldColumn, number: int, images: Listing, look: Callable[[bytes, bool], T]) -> list[T]:
    """What `look` finds in the first bytes of the values of a sample of rows; rows that it refuses are left out."""
    found, failure, entries = [], "", sampled(images, _SAMPLED_ROWS)
    for entry in entries:
        cell = entry.cells[number]
        if cell is None:
            continue
        try:
            found.append(look(_head(cell, images), cell.by_path))
        except (OSError, Refused) as error:
            failure = failure or f"line {entry.line}: {error}"
    if failure and not found:
        raise ListError(f"{_of(column)}: none of {len(entries)} sampled rows can be used. First: {failure}")
    return found


def _head(cell: Cell, images: Listing) -> bytes:
    if not cell.by_path:
        return cell.content
    path = images.resolve(os.fsdecode(cell.content))
    if is_address(path):
        raise Refused(f"{path} is not looked into: say what it holds, by --dtype and --shape")
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        return file.read(_HEAD_BYTES)


def _of(column: FieldColumn) -> str:
    return f"{column.kind} {column.name} (column {column.column!r})"
