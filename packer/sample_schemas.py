"""Finds what samples hold that a program gives: the schema of one, and of all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import numpy as np

from packtrain._codec.pillow import is_picture
from packtrain._core.errors import UsageError
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import IMAGE, LABEL, Field, Schema, check_array, image_field

from .arrays import ArrayForm, array_form
from .encoding import Files, naming
from .facts import in_words, join_fields, join_labels
from .index_values import sampled_type
from .masks import mask_header
from .options import Columns, FieldColumn
from .sample_values import (
    Sample,
    array_of,
    class_of,
    json_of,
    label_type,
    mapping_of,
    numbered,
    require_image,
    values_of,
)
from .sources import Refused

_VERBATIM: Final = StoreOptions("verbatim")


def schema_of(sample: Sample, store: StoreOptions = _VERBATIM) -> Schema:
    """Return the schema that has room for one sample.

    Args:
        sample: The sample.
        store: How pixels are stored.

    Raises:
        Refused: The sample is no mapping, or holds what cannot be stored; the message names the field.
    """
    values = mapping_of(sample)
    try:
        fields = [_field_of(name, value, store) for name, value in values.items() if name != LABEL]
        if not fields:
            raise Refused("it has no field, such as an array or bytes")
        fields.sort(key=lambda field: field.name != IMAGE)
        return Schema(tuple(fields), label_type(values.get(LABEL)))
    except UsageError as error:
        raise Refused(str(error)) from error


def join_schemas(here: Schema, there: Schema) -> Schema:
    """Return the schema that has room for samples of both.

    Raises:
        Refused: There is none; the message names the field.
    """
    for name in sorted({*here.names} ^ {*there.names}):
        raise Refused(f"field {name}: some of the first samples have it and others do not. Yield it always")
    fields = tuple(_joined(field, there[field.name]) for field in here.fields)
    return Schema(fields, _joined_labels(here.labels, there.labels))


def common_schema(
    samples: Iterable[Sample],
    store: StoreOptions,
    columns: Columns | None = None,
    classes: tuple[str, ...] | None = None,
    root: str = "",
) -> Schema:
    """Return the schema that has room for all of these samples but those that nothing has room for.

    Args:
        samples: The samples.
        store: How pixels are stored.
        columns: Which keys hold what; None to store all values, each by its type.
        classes: Class names by label, or None.
        root: Folder that relative paths start from.

    Raises:
        Refused: There is none; the message names the field.
    """
    numbers = None if classes is None else numbered(classes)
    sound: list[dict[str, Any]] = []
    schemas: list[Schema] = []
    labels: list[LabelSpec] = []
    first: Refused | None = None
    for sample in samples:
        try:
            values = dict(values_of(sample, columns))
            if numbers is not None:
                values[LABEL] = class_of(values.get(LABEL), numbers)
            if columns is None:
                schemas.append(schema_of(values, store))
            labels.append(label_type(values.get(LABEL)))
            sound.append(values)
        except Refused as refusal:
            first = first or refusal
    if not sound:
        raise first or Refused("there is none")
    if columns is None:
        return replace(reduce(join_schemas, schemas), classes=classes)
    files = Files(root)
    fields = [_field_in(column, [values[column.name] for values in sound], files, store) for column in columns.fields]
    if columns.image is not None:
        fields.insert(0, image_field(store))
    return Schema(tuple(fields), reduce(_joined_labels, labels), classes)


def describe_schema(schema: Schema) -> str:
    """Describe the fields and labels of samples for messages.

    >>> describe_schema(Schema((Field("x", "array", dtype="<f4", shape=(2,)),), LabelSpec("none")))
    'x: float32 [2]'
    """
    labels = [] if schema.labels.kind == "none" else [f"label: {schema.labels}"]
    return ", ".join([*(f"{field.name}: {_described(field)}" for field in schema.fields), *labels])


def _field_of(name: Any, value: Any, store: StoreOptions) -> Field:
    """Return the field that has room for a value.

    Raises:
        Refused: The value cannot be stored.
        UsageError: Values of this type, or under this name, cannot be stored.
    """
    if not isinstance(name, str):
        raise Refused(f"the name of a field is a str, not an object of type {type(name).__name__}")
    if name == IMAGE:
        require_image(name, value, store)
        return image_field(store)
    if value is None:
        raise Refused(f"{name} is None")
    if is_picture(value):
        require_image(name, value, store)
        return Field(name, "image", store=store)
    if isinstance(value, str):
        return Field(name, "text")
    if isinstance(value, bytes | bytearray | memoryview):
        return Field(name, "bytes")
    if isinstance(value, Mapping | list | tuple):
        return Field(name, "json")
    array = array_of(name, value)
    dtype = array.dtype.newbyteorder("<").str
    check_array(name, dtype, array.shape)
    return Field(name, "array", dtype=dtype, shape=array.shape)


def _field_in(column: FieldColumn, values: Sequence[Any], files: Files, store: StoreOptions) -> Field:
    """Return the field of a column, which has these values in the first samples."""
    # Here, because a growing cache has no columns, and planning brings all that reads lists.
    from .planning import column_field

    dtype, shape = column.dtype, column.shape
    found = [value for value in values if value is not None]
    if column.kind == "mask" and dtype is None:
        dtype = "<u2" if any(_is_wide(value, files) for value in found) else "|u1"
    elif column.kind == "array" and (dtype is None or shape is None):
        joined = _array_field(column, found, files)
        dtype, shape = dtype or joined.dtype, joined.shape if shape is None else shape
    elif column.kind == "number" and dtype is None:
        with naming(column):
            dtype = sampled_type(column.name, found)
    return column_field(column, dtype, shape, store)


def _array_field(column: FieldColumn, values: Sequence[Any], files: Files) -> Field:
    """Return the field that has room for these arrays."""
    if not values:
        raise Refused(
            f"array {column.name}: none of the first samples has it, so type and shape are unknown: say its `dtype` "
            "and `shape`"
        )
    fields, open_fields = list[Field](), list[Field]()
    for value in values:
        if isinstance(value, str | os.PathLike):
            form = array_form(files.read(os.fspath(value)), by_path=True)
        elif isinstance(value, list | tuple):
            form = array_form(json_of(value), by_path=False)
        else:
            array = array_of(column.name, value)
            form = ArrayForm(array.dtype.newbyteorder("<"), array.shape)
        dtype = column.dtype or form.dtype.str
        check_array(column.name, dtype, form.shape)
        (open_fields if form.is_open else fields).append(Field(column.name, "array", dtype=dtype, shape=form.shape))
    return reduce(_joined, fields or open_fields)


def _is_wide(value: Any, files: Files) -> bool:
    """True for a mask with an index that needs more than 8 bits."""
    try:
        if isinstance(value, str | os.PathLike):
            value = files.read(os.fspath(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return mask_header(bytes(value)).depth > 8
    except (OSError, Refused):
        # It will be a reject.
        return False
    return int(np.asarray(value).max(initial=0)) > 255


def _joined(here: Field, there: Field) -> Field:
    joined = join_fields(here, there)
    if joined is None:
        raise Refused(
            f"field {here.name}: some of the first samples have {_described(here)} and others {_described(there)}, and "
            "only the first size may differ. Make them alike in the source, or give them different names"
        )
    return joined


def _joined_labels(here: LabelSpec, there: LabelSpec) -> LabelSpec:
    labels = join_labels(here, there)
    if labels is None:
        raise Refused(f"label: some of the first samples have {here} and others {there}. Use one type for all")
    return labels


def _described(field: Field) -> str:
    if field.kind != "array":
        return field.kind
    assert field.dtype is not None and field.shape is not None
    return in_words(np.dtype(field.dtype), field.shape)
