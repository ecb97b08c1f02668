"""Turns the samples that a source yields into records that can be written, or says why one is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from packtrain._core.schema import LABEL, Field, Schema
from packtrain._formats.writing import NewSample
from packtrain._packer.encoding import as_it_is, encode, naming
from packtrain._packer.listing import Encoded
from packtrain._packer.sources import LARGEST_FILE, Refused

from .forms import Sample, array_of, fits, fits_shape, in_words, label_of, mapping_of


class SampleEncoder:
    """Encodes samples of one schema.

    Args:
        schema: What samples hold.
        bare: True if values of arrays are stored alone.
        most: The most bytes of a sample; larger ones are refused.
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
            Refused: It is not a mapping, or does not fit the schema; the message names the field.
            MissingDependency: A package that an image needs is not installed.
        """
        values = mapping_of(sample)
        for name in values:
            if name not in self._known:
                raise Refused(f"it has a field {name}, and the cache holds {self._held()}")
        try:
            label = label_of(values.get(LABEL), self._schema.labels)
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
        array, wanted = array_of(field.name, value), self._dtypes[field.name]
        assert field.shape is not None
        if not (fits(array.dtype, wanted) and fits_shape(array.shape, field.shape)):
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
    """The record of a value of any kind but an array."""
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
