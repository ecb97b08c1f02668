"""Samples that a source yields: their schema, and their records, or the reason why a sample is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import FillError, UsageError
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import IMAGE, LABEL, Field, Schema, check_array, image_field
from packtrain._formats import StoredLabel
from packtrain._formats.writing import NewSample
from packtrain._packer.encoding import as_it_is, encode, naming
from packtrain._packer.facts import fits_shape, in_words, join_fields, join_labels
from packtrain._packer.listing import Encoded
from packtrain._packer.lists.labels import LARGEST_FLOAT32, is_exact, rounded_label
from packtrain._packer.sources import LARGEST_FILE, Refused

Sample = Mapping[str, Any]
"""What a source yields: a value by the name of its field.

A value is bytes, a str, a numpy array or scalar or whatever has ``__array__`` (as a tensor on the CPU), a number, or a
dict or list for JSON. ``image`` is the content of a JPEG or PNG file, and ``label`` a number or a vector of numbers.
"""
_VERBATIM: Final = StoreOptions("verbatim")
_INT: Final = LabelSpec("int")


def schema_of(sample: Sample) -> Schema:
    """Return the schema that has room for one sample. Images are stored as they are.

    Raises:
        Refused: The sample is no mapping, or holds what cannot be stored; the message names the field.
    """
    values = mapping_of(sample)
    try:
        fields = [_field_of(name, value) for name, value in values.items() if name != LABEL]
        if not fields:
            raise Refused("it has no field, such as an array or bytes")
        fields.sort(key=lambda field: field.name != IMAGE)
        return Schema(tuple(fields), _label_type(values.get(LABEL)))
    except UsageError as error:
        raise Refused(str(error)) from error


def join_schemas(here: Schema, there: Schema) -> Schema:
    """Return the schema that has room for samples of both.

    Raises:
        FillError: There is none; the message names the field.
    """
    for name in sorted({*here.names} ^ {*there.names}):
        raise FillError(f"field {name}: some of the first samples have it and others do not. Yield it always")
    fields = []
    for field in here.fields:
        other = there[field.name]
        joined = join_fields(field, other)
        if joined is None:
            raise FillError(
                f"field {field.name}: some of the first samples have {_described(field)} and others "
                f"{_described(other)}, and only the first size may differ. Make them alike in the source, or give them "
                "different names"
            )
        fields.append(joined)
    labels = join_labels(here.labels, there.labels)
    if labels is None:
        raise FillError(
            f"label: some of the first samples have {here.labels} and others {there.labels}. Use one type for all"
        )
    return Schema(tuple(fields), labels)


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


def _array_of(name: str, value: Any) -> npt.NDArray[Any]:
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


def _stored_label(value: Any, labels: LabelSpec) -> StoredLabel:
    """Return a label as it is stored.

    Raises:
        Refused: The label has another type.
    """
    if labels.kind == "none":
        if value is not None:
            raise Refused("it has a label, and the cache holds none")
        return None
    if type(value) is int and labels == _INT and -(1 << 63) <= value < 1 << 63:
        return value
    found = _numbers(value)
    kind, count = labels.kind, None if not found.ndim else len(found)
    if count != labels.count or (found.dtype.kind == "f" and kind == "int"):
        raise Refused(f"label is {_label_type(value)}, and the cache holds {labels}")
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


def _numbers(value: Any) -> npt.NDArray[Any]:
    if value is None:
        raise Refused("it has no label, and the cache holds them")
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


def _label_type(value: Any) -> LabelSpec:
    if value is None:
        return LabelSpec("none")
    found = _numbers(value)
    return LabelSpec("float" if found.dtype.kind == "f" else "int", len(found) if found.ndim else None)


def _field_of(name: Any, value: Any) -> Field:
    """Return the field that has room for a value.

    Raises:
        Refused: The value cannot be stored.
        UsageError: Values of this type, or under this name, cannot be stored.
    """
    if not isinstance(name, str):
        raise Refused(f"the name of a field is a str, not an object of type {type(name).__name__}")
    if name == IMAGE:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise Refused(
                f"{name} holds the content of image files, such as JPEG or PNG, as bytes, and not an object of type "
                f"{type(value).__name__}. Give pixels another name"
            )
        return image_field(_VERBATIM)
    if value is None:
        raise Refused(f"{name} is None")
    if isinstance(value, str):
        return Field(name, "text")
    if isinstance(value, bytes | bytearray | memoryview):
        return Field(name, "bytes")
    if isinstance(value, Mapping | list | tuple):
        return Field(name, "json")
    array = _array_of(name, value)
    dtype = array.dtype.newbyteorder("<").str
    check_array(name, dtype, array.shape)
    return Field(name, "array", dtype=dtype, shape=array.shape)


def describe_schema(schema: Schema) -> str:
    """Describe the fields and labels of samples for messages.

    >>> describe_schema(Schema((Field("x", "array", dtype="<f4", shape=(2,)),), LabelSpec("none")))
    'x: float32 [2]'
    """
    labels = [] if schema.labels.kind == "none" else [f"label: {schema.labels}"]
    return ", ".join([*(f"{field.name}: {_described(field)}" for field in schema.fields), *labels])


def _described(field: Field) -> str:
    if field.kind != "array":
        return field.kind
    assert field.dtype is not None and field.shape is not None
    return in_words(np.dtype(field.dtype), field.shape)


class SampleEncoder:
    """Encodes samples of one schema.

    Args:
        schema: The schema.
        bare: True if values of arrays are stored alone.
        most: The most bytes of a sample; larger samples are refused.
    """

    def __init__(self, schema: Schema, *, bare: bool, most: int = LARGEST_FILE) -> None:
        self._schema: Final = schema
        self._bare: Final = bare
        self._most: Final = min(most, LARGEST_FILE)
        self._known: Final = frozenset((*schema.names, LABEL))
        self._dtypes: Final = {field.name: np.dtype(field.dtype) for field in schema.fields if field.kind == "array"}

    def encode(self, sample: Sample) -> NewSample:
        """Return a sample as a writer takes it, with the number 0.

        Records may be views of what the source has yielded, so write them at once.

        Raises:
            Refused: The sample is not a mapping, or does not fit the schema; the message names the field.
            MissingDependency: A package that an image needs is not installed.
        """
        values = mapping_of(sample)
        for name in values:
            if name not in self._known:
                raise Refused(f"it has a field {name}, and the cache holds {self._held()}")
        try:
            label = _stored_label(values.get(LABEL), self._schema.labels)
            found = [self._encoded(field, values.get(field.name)) for field in self._schema.fields]
        except MemoryError as error:
            raise Refused("there is not enough memory to encode it") from error
        records = tuple(None if each is None else each.record(bare=self._bare) for each in found)
        encoded = NewSample(0, label, records)
        if encoded.size > self._most:
            raise self._too_large(encoded.size)
        return encoded

    def _encoded(self, field: Field, value: Any) -> Encoded | None:
        if value is None:
            if field.optional:
                return None
            raise Refused(f"it has no {field.name}, and the cache holds {self._held()}")
        if isinstance(value, Encoded):
            return value
        if field.kind == "array":
            return self._array(field, value)
        with naming(field):
            return _of_kind(field, value)

    def _array(self, field: Field, value: Any) -> Encoded:
        array, wanted = _array_of(field.name, value), self._dtypes[field.name]
        assert field.shape is not None
        if not (array.dtype.newbyteorder("<") == wanted and fits_shape(array.shape, field.shape)):
            found = in_words(array.dtype.newbyteorder("="), array.shape)
            raise Refused(f"{field.name} is {found}, and the cache holds {in_words(wanted, field.shape)}")
        if array.nbytes > self._most:
            raise self._too_large(array.nbytes)
        flat = np.ascontiguousarray(array, wanted).reshape(-1)
        return Encoded(flat.view(np.uint8).data, "npy", array.shape, field.dtype)

    def _held(self) -> str:
        labels = () if self._schema.labels.kind == "none" else (LABEL,)
        return f"{', '.join((*self._schema.names, *labels))}. Other fields need a folder of their own"

    def _too_large(self, size: int) -> Refused:
        return Refused(f"it has {size:,} bytes, and a shard {self._most:,}: give a larger shard_size, or smaller parts")


def _of_kind(field: Field, value: Any) -> Encoded:
    """Encode a value of any kind but an array."""
    if field.kind == "text":
        if not isinstance(value, str):
            raise Refused(f"it is an object of type {type(value).__name__}, not a str")
        try:
            return as_it_is(field, value.encode())
        except UnicodeEncodeError as error:
            raise Refused(f"it cannot be written in UTF-8 ({error.reason} at character {error.start})") from error
    if field.kind == "json":
        return encode(field, _json(value))
    if not isinstance(value, bytes | bytearray | memoryview):
        advice = "give the content of a JPEG or PNG file" if field.has_pixels else "arrays need a folder of their own"
        raise Refused(f"it is an object of type {type(value).__name__}, not bytes: {advice}")
    if field.kind == "bytes":
        return as_it_is(field, value if isinstance(value, bytes) else bytes(value))
    return encode(field, bytes(value))


def _json(value: Any) -> bytes:
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
