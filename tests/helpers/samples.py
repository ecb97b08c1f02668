"""Samples of many fields: schemas and values that Hypothesis makes up, and how they are given to a writer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from hypothesis import strategies as st

from packtrain._core.options import FORMATS, LabelSpec, StoreOptions
from packtrain._core.schema import Field, Schema, image_field
from packtrain._formats.writing import NewRecord, NewSample, WrittenShard, shard_writer

Value = bytes | npt.NDArray[Any]
DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16")
STORES = (StoreOptions(), StoreOptions("raw"), StoreOptions("raw", resize="5x4", mode="L"))
SUFFIXES = {"tar": ".tar", "hdf5": ".h5", "lmdb": ".mdb"}
EXTENSIONS = {"image": "jpg", "mask": "png", "text": "txt", "json": "json", "bytes": "bin"}


@dataclass(frozen=True)
class Sample:
    """A sample before it is stored.

    Attributes:
        line: Its line.
        label: Its label, or None.
        values: What each field of the schema holds: an array, or bytes; None if it is missing.
    """

    line: int
    label: Any
    values: tuple[Value | None, ...]

    def present(self, schema: Schema) -> dict[str, Value]:
        """The fields that it has, by name."""
        pairs = zip(schema.names, self.values, strict=True)
        return {name: value for name, value in pairs if value is not None}


def new_sample(schema: Schema, sample: Sample, *, bare: bool) -> NewSample:
    """The sample as a writer takes it."""
    pairs = zip(schema.fields, sample.values, strict=True)
    records = (None if value is None else _record(field, value, bare=bare) for field, value in pairs)
    return NewSample(sample.line, sample.label, tuple(records))


def write_shard(path: Path, format: str, schema: Schema, samples: Sequence[Sample]) -> WrittenShard:
    """Writes a shard of these samples."""
    writer = shard_writer(format)(path, schema)
    try:
        for sample in samples:
            writer.add(new_sample(schema, sample, bare=FORMATS[format].bare))
        return writer.finish()
    finally:
        writer.close()


def payload(value: Value, *, bare: bool) -> bytes:
    """The bytes of a record; numpy's own writer makes the `.npy` files."""
    if isinstance(value, bytes):
        return value
    if bare:
        return value.tobytes()
    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()


def _record(field: Field, value: Value, *, bare: bool) -> NewRecord:
    data = payload(value, bare=bare)
    if isinstance(value, bytes):
        return NewRecord(data, EXTENSIONS[field.kind], crc32c(data), (3, 4, 3) if field.kind == "image" else ())
    return NewRecord(data, "npy", crc32c(data), value.shape)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Any schema of up to five fields."""
    names = draw(st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,3}", fullmatch=True), max_size=4, unique=True))
    fields = [_field(draw, name) for name in names if name not in ("as", "if", "in", "is", "or", "key", "row", "crop")]
    if not fields or draw(st.booleans()):
        image = image_field(draw(st.sampled_from(STORES)))
        fields.insert(0, Field("image", "image", draw(st.booleans()), image.store))
    return Schema(tuple(fields), LabelSpec.parse(draw(st.sampled_from(["none", "int", "int*2", "float"]))))


def _field(draw: st.DrawFn, name: str) -> Field:
    kind, optional = draw(st.sampled_from(["image", "mask", "text", "json", "array", "bytes"])), draw(st.booleans())
    if kind == "image":
        return Field(name, kind, optional, draw(st.sampled_from(STORES)))
    if kind == "mask":
        encoding, dtype = draw(st.sampled_from(["png", "raw"])), draw(st.sampled_from(["|u1", "<u2"]))
        return Field(name, kind, optional, encoding=encoding, dtype=dtype)
    if kind == "array":
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        first = draw(st.sampled_from([[], [None]]))
        return Field(name, kind, optional, dtype=draw(st.sampled_from(DTYPES)), shape=(*first, *shape))
    return Field(name, kind, optional)


@st.composite
def sample_lists(draw: st.DrawFn, schema: Schema) -> list[Sample]:
    """Samples of a schema, in any order of lines."""
    lines = draw(st.lists(st.integers(0, 2**33), max_size=6, unique=True))
    return [Sample(line, _label(draw, schema.labels), _values(draw, schema)) for line in lines]


def _label(draw: st.DrawFn, spec: LabelSpec) -> Any:
    if spec.kind == "none":
        return None
    value = (
        st.integers(-(2**62), 2**62)
        if spec.kind == "int"
        else st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
    return draw(value) if spec.count is None else tuple(draw(value) for _ in range(spec.count))


def _values(draw: st.DrawFn, schema: Schema) -> tuple[Value | None, ...]:
    return tuple(
        None if field.optional and draw(st.booleans()) else draw(st.builds(value_of, st.just(field), st.integers(0)))
        for field in schema.fields
    )


def value_of(field: Field, seed: int) -> Value:
    """A value of a field; the same seed gives the same one."""
    random = np.random.default_rng(seed)
    side = int(random.integers(0, 4))
    if field.kind == "array":
        assert field.dtype is not None and field.shape is not None
        return _array(random, field.dtype, [side if size is None else size for size in field.shape])
    if field.encoding == "raw":
        assert field.dtype is not None
        return _array(random, field.dtype, [side + 1, 3])
    if field.store is not None and field.store.store == "raw":
        return _array(random, "|u1", field.store.fixed_shape or (side + 1, 2, field.store.channels))
    size = 1500 if field.kind == "image" else int(random.choice([0, 1, 511, 512, 513, 5000]))
    return random.bytes(size)


def _array(random: np.random.Generator, dtype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    values = random.integers(0, 2, shape).astype(kind) if kind.kind == "b" else None
    if values is None:
        values = np.frombuffer(random.bytes(int(np.prod(shape)) * kind.itemsize), kind).reshape(shape)
    return values
