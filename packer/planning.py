"""Makes a plan for a list: finds out what its fields are, and how large their records, by samples of its rows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from importlib import metadata
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np

from packtrain._core.errors import ListError, RemoteError, UsageError
from packtrain._core.manifest import shard_stem
from packtrain._core.npy import LONGEST_HEADER
from packtrain._core.opening import open_regular
from packtrain._core.options import FORMATS, StoreOptions
from packtrain._core.paths import is_address, without_credentials
from packtrain._core.permutation import Permutation
from packtrain._core.schema import IMAGE, Field, Schema, image_field

from .arrays import ArrayForm, array_form, fits
from .facts import Shape, join_shapes
from .index_values import number_types
from .listing import Cell, ListedSample, Listing, where_looked
from .lists.reader import read_class_names
from .masks import mask_header
from .options import Columns, FieldColumn, PackOptions, usual_shard_bytes
from .plan import Plan, PlannedColumn, PlannedShard
from .sources import Refused

_SAMPLED_FILES: Final = 256
_SAMPLED_IMAGES: Final = 32
_LONGEST_SHOWN: Final = 300
T = TypeVar("T")
_SAMPLED_ROWS: Final = 256
_SAMPLE_SEED: Final = 0x5A3D
_HEAD_BYTES: Final = LONGEST_HEADER + 32


def outline_plan(images: Listing, options: PackOptions, there: Plan | None = None) -> Plan:
    """Makes a plan without its shards: what is to be packed, and how.

    Args:
        images: The list.
        options: What is asked for.
        there: A plan that has been made of this list before; what was found from a sample then is taken from it.

    Raises:
        ListError: A field is found from a sample, and no row of the sample can be used.
        UsageError: No field has records.
    """
    fields = settled_fields(images, options, there.fields if there is not None else ())
    require_records(fields)
    columns = options.columns
    return Plan(
        name=images.name,
        format=options.format or next(iter(FORMATS)),
        fields=fields,
        labels=images.labels,
        classes=images.classes,
        columns=planned_columns(columns),
        list_sha256=images.sha256,
        lines=images.lines,
        entries=len(images),
        seed=options.seed,
        shard_bytes=options.shard_size or (there.shard_bytes if there is not None else 0),
        encoder=images.source.encoder(Schema(fields, images.labels, images.classes)),
        written_by=written_by(),
        shards=(),
    )


def require_records(fields: Sequence[Field]) -> None:
    """Refuses samples of which nothing would lie in a shard.

    Raises:
        UsageError: They consist of numbers and strings alone.
    """
    if all(field.indexed for field in fields):
        raise UsageError(
            "numbers and strings lie in the index, and a dataset needs a field whose records lie in shards as well: "
            "name one, such as an image or a text"
        )


def written_by() -> str:
    """This program and its version."""
    return f"packtrain {metadata.version('packtrain')}"


def planned_columns(columns: Columns | None) -> tuple[PlannedColumn, ...] | None:
    """Returns the columns as a plan has them; None for those of a list of paths and labels."""
    if columns is None:
        return None
    fields = [(field.name, field.column, field.by_path) for field in columns.fields]
    named = [(IMAGE, columns.image, True), ("label", columns.label, False), *fields]
    return tuple(PlannedColumn(name, column, by_path) for name, column, by_path in named if column is not None)


def plan_shards(outline: Plan, images: Listing) -> Plan:
    """Completes a plan with its shards. Reads a sample of the files, always the same one, to estimate the record size.

    Raises:
        ListError: None of the sampled files can be read.
    """
    mean = record_bytes(images, outline.schema)
    shard_bytes = outline.shard_bytes or usual_shard_bytes(mean * outline.entries)
    most = max(1, shard_bytes // mean)
    count = -(-outline.entries // most)
    bounds = [outline.entries * number // count for number in range(count + 1)]
    suffix = FORMATS[outline.format].suffix
    shards = (
        PlannedShard(shard_stem(outline.name, number) + suffix, start, stop - start)
        for number, (start, stop) in enumerate(pairwise(bounds))
    )
    return replace(outline, shard_bytes=shard_bytes, shards=tuple(shards))


def record_bytes(images: Listing, schema: Schema) -> int:
    """Estimates the mean size of the records of a sample in bytes; at least 1."""
    image = schema.image
    if schema.plain and image is not None and image.store is not None and image.store.fixed_shape is not None:
        return math.prod(image.store.fixed_shape)
    source, sizes, first, failure = images.source, [], "", ""
    # Records that are about as large as their files need not be made to know their size.
    kept = source.keeps_sizes(schema)
    sample = sampled(images, _SAMPLED_FILES if kept else _SAMPLED_IMAGES)
    with source.reading(sample, content=not kept) as reading:
        for entry in sample:
            try:
                if kept:
                    sizes.append(reading.size(schema, entry))
                else:
                    records = reading.encode(schema, entry).records
                    sizes.append(sum(len(record.payload) for record in records if record is not None))
            except (OSError, Refused, RemoteError, MemoryError) as error:
                if not failure:
                    first = without_credentials(entry.path)
                    why = (isinstance(error, OSError) and error.strerror) or str(error) or "not enough memory"
                    # Samples that Python gives may have no path.
                    failure = f"{_shown(source.resolve(first)) if first else source.where(entry)}: {why}"
    if not sizes:
        advice = images.advice or where_looked(images, first, failure)
        raise ListError(f"none of {len(sample)} sampled files can be read. First: {failure}{advice and f'. {advice}'}")
    return max(1, sum(sizes) // len(sizes))


def _shown(path: str) -> str:
    # A file that is not a list at all may hold a line without an end.
    return path if len(path) <= _LONGEST_SHOWN else f"{path[:_LONGEST_SHOWN]}..."


def sampled(images: Listing, most: int) -> tuple[ListedSample, ...]:
    """Returns at most this many entries of a list, spread over it, in its order, and always the same ones."""
    return images.entries(np.sort(Permutation(len(images), _SAMPLE_SEED).range(0, min(len(images), most))))


def settled_fields(images: Listing, options: PackOptions, before: Sequence[Field] = ()) -> tuple[Field, ...]:
    """Returns the fields that are to be stored.

    Args:
        images: The list.
        options: What is asked for.
        before: What was found before for the same list.

    Raises:
        ListError: No row of the sample says what an array or a mask is, or the rows contradict each other; or no type
            has room for the numbers of all rows.
    """
    if images.fields is not None:
        return images.fields
    columns = options.columns
    if columns is None:
        return (image_field(options.store or StoreOptions()),)
    known = {(field.name, field.kind): field for field in before}
    untyped = {
        number: column
        for number, column in enumerate(columns.fields)
        if column.kind == "number" and column.dtype is None and (column.name, column.kind) not in known
    }
    types = number_types(images, untyped)
    fields = [image_field(options.store or StoreOptions())] if columns.image is not None else []
    for number, column in enumerate(columns.fields):
        column = replace(column, dtype=types.get(column.name, column.dtype))
        fields.append(_settled(column, number, images, options, known.get((column.name, column.kind))))
    return tuple(fields)


def _settled(column: FieldColumn, number: int, images: Listing, options: PackOptions, before: Field | None) -> Field:
    dtype, shape = column.dtype, column.shape
    if before is not None:
        dtype, shape = dtype or before.dtype, before.shape if shape is None else shape
    if column.kind == "mask" and dtype is None:
        dtype = _mask_dtype(column, number, images)
    elif column.kind == "array" and (dtype is None or shape is None):
        found = _array_form(column, number, images)
        dtype, shape = dtype or found[0], found[1] if shape is None else shape
    return column_field(column, dtype, shape, options.store)


def column_field(column: FieldColumn, dtype: str | None, shape: Shape | None, store: StoreOptions | None) -> Field:
    """The field that a column holds, whose values have this type and shape."""
    return Field(
        column.name,
        column.kind,
        column.optional,
        store=store or StoreOptions() if column.kind == "image" else None,
        encoding=column.encoding if column.kind == "mask" else None,
        dtype=dtype,
        shape=shape,
        classes=None if column.classes is None else read_class_names(column.classes),
    )


def _mask_dtype(column: FieldColumn, number: int, images: Listing) -> str:
    headers = _of_sample(column, number, images, lambda data, _: mask_header(data))
    return max((header.dtype for header in headers), default="|u1", key=lambda dtype: dtype == "<u2")


def _array_form(column: FieldColumn, number: int, images: Listing) -> tuple[str, Shape]:
    """Returns a dtype and a shape that fit all arrays of the sample."""
    forms = _of_sample(column, number, images, lambda data, by_path: array_form(data, by_path=by_path))
    closed = [form for form in forms if not form.is_open]
    if not closed:
        raise ListError(
            f"{_of(column)}: no row of a sample has an array with values, so type and shape are unknown. Say what they "
            f"are, as in --dtype {column.name}=float32 --shape {column.name}=N,4"
        )
    shape = join_shapes(form.shape for form in closed)
    if shape is None:
        shapes = sorted({form.shape for form in closed})
        raise ListError(
            f"{_of(column)}: the arrays have shapes such as {shapes[0]} and {shapes[-1]}, but only the first size may "
            "differ from row to row. Make the others equal, or store the arrays in other columns"
        )
    if len(closed) < len(forms):
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
    """Apply `look` to the first bytes of a field in a sample of rows. Rows that it refuses are left out."""
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
    path = images.source.resolve(os.fsdecode(cell.content))
    if is_address(path):
        raise Refused(f"{path} is not read to find out what it holds: say so with --dtype and --shape")
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        return file.read(_HEAD_BYTES)


def _of(column: FieldColumn) -> str:
    return f"{column.kind} {column.name} (column {column.column!r})"
