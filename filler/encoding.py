"""Turns the samples that a source yields into records; finds out from the first ones what the fields are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
from crc32c import crc32c

from packtrain._core.errors import UsageError
from packtrain._core.options import LabelSpec
from packtrain._core.schema import LABEL, Field, Schema
from packtrain._packer.formats import NewRecord, NewSample
from packtrain._packer.listing import Encoded
from packtrain._packer.sources import Refused
from packtrain._readers.formats import StoredLabel

Value = bytes | str | np.ndarray[Any, Any] | np.generic | int | float
Sample = Mapping[str, Value]
"""What a source yields: bytes, a text or an array by the name of its field, and perhaps a number as ``label``."""


class EncodedSample(NamedTuple):
    """A sample whose records can be written.

    Attributes:
        label: Its label; None if the cache has none.
        records: Its records, in the order of the schema.
        bytes: Size of all records.
    """

    label: StoredLabel
    records: tuple[NewRecord | None, ...]
    bytes: int

    def numbered(self, number: int) -> NewSample:
        """The same as a writer takes it."""
        return NewSample(number, self.label, self.records)


class SampleEncoder:
    """Encodes samples of one schema.

    Args:
        schema: What samples hold.
        bare: True if values of arrays are stored alone.
    """

    def __init__(self, schema: Schema, *, bare: bool) -> None:
        self._schema: Final = schema
        self._bare: Final = bare

    def encode(self, sample: Sample) -> EncodedSample:
        """The records of a sample.

        Raises:
            Refused: It is not a mapping, or does not fit the schema; the message names the field.
        """
        if not isinstance(sample, Mapping):
            raise Refused(f"a sample is a dict of field and value, not an object of type {type(sample).__name__}")
        known = (*self._schema.names, *((LABEL,) if self._schema.labels.kind != "none" else ()))
        unknown = [str(name) for name in sample if name not in known]
        if unknown:
            raise Refused(f"it has a field {unknown[0]}, and the cache holds {', '.join(known)}")
        records = [self._record(field, sample) for field in self._schema.fields]
        size = sum(len(record.payload) for record in records)
        return EncodedSample(self._label(sample), tuple(records), size)

    def _label(self, sample: Sample) -> StoredLabel:
        if self._schema.labels.kind == "none":
            return None
        value = sample.get(LABEL)
        if isinstance(value, np.generic):
            value = value.item()
        if type(value) is not (int if self._schema.labels.kind == "int" else float):
            raise Refused(f"label {value!r} is not {self._schema.labels.kind}")
        return value

    def _record(self, field: Field, sample: Sample) -> NewRecord:
        if field.name not in sample:
            raise Refused(f"it has no {field.name}")
        encoded = encoded_value(field, sample[field.name])
        payload = encoded.stored(bare=self._bare)
        return NewRecord(payload, encoded.extension, crc32c(payload), encoded.shape)


def encoded_value(field: Field, value: Value) -> Encoded:
    """The record of one value.

    Raises:
        Refused: It does not fit the field.
    """
    if field.kind == "array":
        array = np.asarray(value)
        if array.dtype.newbyteorder("<").str != field.dtype or not _fits(array.shape, field.shape or ()):
            raise Refused(f"{field.name} is {array.dtype} {list(array.shape)}, not {field.dtype} {field.shape}")
        return Encoded(array.tobytes(), "npy", array.shape, field.dtype)
    if field.kind == "text" and isinstance(value, str):
        return Encoded(value.encode(), "txt")
    if field.kind == "bytes" and isinstance(value, (bytes, bytearray, memoryview)):
        return Encoded(bytes(value), "bin")
    raise Refused(f"{field.name} is {field.kind}, not {type(value).__name__}")


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(size in (None, here) for here, size in zip(shape, wanted, strict=True))


class Form(NamedTuple):
    """What samples look like.

    Attributes:
        fields: Their fields.
        labels: Type of their labels.
    """

    fields: tuple[Field, ...]
    labels: LabelSpec

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Self:
        """The form that all of these samples have.

        Raises:
            UsageError: They have none in common, or hold what cannot be stored; the message names the field.
        """
        first = samples[0]
        label = first.get(LABEL)
        labels = LabelSpec("none" if label is None else "float" if isinstance(label, float) else "int")
        return cls(tuple(_field(name, [each[name] for each in samples]) for name in first if name != LABEL), labels)


def _field(name: str, values: Sequence[Value]) -> Field:
    value = values[0]
    if isinstance(value, str):
        return Field(name, "text")
    if isinstance(value, bytes | bytearray | memoryview):
        return Field(name, "bytes")
    if isinstance(value, np.ndarray | np.generic):
        shapes = {np.shape(each) for each in values}
        shape: tuple[int | None, ...] = value.shape
        if len(shapes) > 1:
            shape = (None, *value.shape[1:])
        return Field(name, "array", dtype=value.dtype.newbyteorder("<").str, shape=shape)
    raise UsageError(f"field {name}: {type(value).__name__} cannot be stored: give bytes, a str or a numpy array")
