"""Samples become records: what is written is what was yielded, or the sample is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from crc32c import crc32c
from helpers.support import encoded as encoded_image
from helpers.support import picture
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from packtrain._codec.values import decode_value
from packtrain._core.generations import CacheInfo, Generation
from packtrain._core.options import FORMATS, LabelSpec
from packtrain._core.schema import Field, Schema
from packtrain._formats.writing import NewSample
from packtrain._growing.shard import GrowingShard
from packtrain._packer.sample_schemas import join_schemas, schema_of
from packtrain._packer.samples import SampleEncoder
from packtrain._packer.sources import Refused
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import GenerationStore

DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
LABELS = LabelSpec("none")


def encoder(schema: Schema, *, bare: bool = False, **options: Any) -> SampleEncoder:
    return SampleEncoder(schema, bare=bare, **options)


def decoded(schema: Schema, sample: NewSample, *, bare: bool = False) -> dict[str, Any]:
    """The values in the records of a sample."""
    found = {}
    for field, record in zip(schema.fields, sample.records, strict=True):
        assert record is not None
        data = record.joined()
        assert (len(data), crc32c(data)) == (record.size, record.crc32c)
        assert len(record.frame) == len(field.columns()) - 3
        found[field.name] = decode_value(field, memoryview(data), bare=bare)
    return found


def layouts(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The same values, as they can lie in memory."""
    yield array
    yield np.array(array, order="F")
    yield array.astype(array.dtype.newbyteorder(">"))
    frozen = array.copy()
    frozen.flags.writeable = False
    yield frozen
    if array.ndim:
        yield np.repeat(array, 2, axis=-1)[..., ::2]
        yield np.ascontiguousarray(array[::-1])[::-1]


@given(
    numpy_st.arrays(st.sampled_from(DTYPES), numpy_st.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)),
    st.booleans(),
)
def test_arrays_of_any_type_shape_and_layout_come_back_as_they_were(array: npt.NDArray[Any], bare: bool) -> None:
    schema = schema_of({"x": array})
    first = None
    for other in layouts(array):
        sample = encoder(schema, bare=bare).encode({"x": other})
        found = decoded(schema, sample, bare=bare)["x"]
        assert found.dtype == array.dtype
        # With bytes, so that NaN and -0.0 count.
        assert (found.shape, found.tobytes()) == (array.shape, array.tobytes())
        record = sample.records[0]
        assert record is not None
        first = first or record.joined()
        assert record.joined() == first


@pytest.mark.parametrize(
    "value", [np.float32(0.5), np.bool_(True), 7, 0.25, True, 1 + 2j, torch.arange(6).reshape(2, 3)]
)
def test_scalars_and_tensors_are_arrays(value: Any) -> None:
    schema = schema_of({"x": value})
    found = decoded(schema, encoder(schema).encode({"x": value}))["x"]
    expected = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("Zoë 図", "text", "Zoë 図"),
        ("", "text", ""),
        (b"\0\xff", "bytes", b"\0\xff"),
        (bytearray(b"ab"), "bytes", b"ab"),
        (memoryview(b"abcd")[::2], "bytes", b"ac"),
        ({"a": [1, {"b": None}], "c": "é"}, "json", {"a": [1, {"b": None}], "c": "é"}),
        ([1, 2.5, "x"], "json", [1, 2.5, "x"]),
        ((1, 2), "json", [1, 2]),
    ],
)
def test_texts_bytes_and_json_come_back(value: Any, kind: str, expected: Any) -> None:
    schema = schema_of({"x": value})
    assert schema.fields[0].kind == kind
    assert decoded(schema, encoder(schema).encode({"x": value})) == {"x": expected}


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_an_image_is_stored_as_it_is_with_its_size(format: str) -> None:
    data = encoded_image(picture(1, 24, 16), format)
    schema = schema_of({"n": 1, "image": data})
    assert [field.name for field in schema.fields] == ["image", "n"]
    sample = encoder(schema).encode({"n": 2, "image": data})
    record = sample.records[0]
    assert record is not None
    assert record.joined() == data
    assert (record.size, record.crc32c, record.frame) == (len(data), crc32c(data), (24, 16, 1))


@pytest.mark.parametrize(
    ("label", "spec", "stored"),
    [
        (3, "int", 3),
        (np.int16(-3), "int", -3),
        (torch.tensor(5), "int", 5),
        (0.5, "float", 0.5),
        (np.float32(0.5), "float", 0.5),
        ([1, 2], "int*2", (1, 2)),
        (np.array([0.5, 1]), "float*2", (0.5, 1.0)),
        (-(1 << 63), "int", -(1 << 63)),
    ],
)
def test_labels_are_numbers_or_vectors(label: Any, spec: str, stored: Any) -> None:
    schema = schema_of({"x": 1, "label": label})
    assert str(schema.labels) == spec
    found = encoder(schema).encode({"x": 1, "label": label}).label
    assert found == stored
    assert json.loads(json.dumps(found)) == (list(stored) if isinstance(stored, tuple) else stored)


SCHEMA = schema_of({"x": np.zeros((2, 3), np.float32), "t": "text", "j": {}, "label": 1})
GOOD: dict[str, Any] = {"x": np.ones((2, 3), np.float32), "t": "text", "j": {"a": 1}, "label": 1}
DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("sample", "names"),
    [
        (None, "dict of field and value"),
        (object(), "object of type object"),
        ([1], "object of type list"),
        (GOOD | {"y": 1}, "field y.*folder of their own"),
        ({name: value for name, value in GOOD.items() if name != "x"}, "no x"),
        (GOOD | {"x": None}, "no x"),
        (GOOD | {"x": np.ones((2, 3))}, r"x is float64 \[2, 3\].*float32 \[2, 3\]"),
        (GOOD | {"x": np.ones((3, 3), np.float32)}, r"x is float32 \[3, 3\]"),
        (GOOD | {"x": np.ones(6, np.float32)}, r"x is float32 \[6\]"),
        (GOOD | {"x": np.array([object()])}, "x is object"),
        (GOOD | {"x": [[1.0] * 3] * 2}, "x is an object of type list"),
        (GOOD | {"x": torch.ones(2, 3, requires_grad=True)}, "requires grad"),
        (GOOD | {"x": np.ma.masked_array(GOOD["x"], True)}, "masked"),
        (GOOD | {"t": b"text"}, "text t: .*type bytes"),
        (GOOD | {"t": "\ud800"}, "text t: .*UTF-8"),
        (GOOD | {"j": "{}"}, "json j: .*type str"),
        (GOOD | {"j": {"a": np.int64(1)}}, "json j: .*int64"),
        (GOOD | {"j": {"a": float("nan")}}, "json j: "),
        (GOOD | {"j": DEEP}, "json j: .*deep"),
        (GOOD | {"j": {1: "a", "1": "b"}}, "json j: .*the key '1' twice"),
        (GOOD | {"label": 0.5}, "label is float.*int"),
        (GOOD | {"label": "cat"}, "label"),
        (GOOD | {"label": [1, 2]}, r"label is int\*2"),
        (GOOD | {"label": True}, "label is a bool: give 1 for true and 0 for false"),
        (GOOD | {"label": np.bool_(True)}, "label is a bool"),
        (GOOD | {"label": None}, "no label"),
        (GOOD | {"label": 1 << 70}, "label"),
        (GOOD | {"label": np.uint64(1 << 63)}, "label"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(sample: Any, names: str) -> None:
    encoder(SCHEMA).encode(GOOD)
    with pytest.raises(Refused, match=names):
        encoder(SCHEMA).encode(sample)


@pytest.mark.parametrize(
    ("label", "names"),
    [
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (1e39, "finite"),
        (16777217, "16777217 is a whole number that float32"),
        ([0.5, 16777217], "16777217 is a whole number that float32"),
        (np.array([1, -16777217]), "16777217 is a whole number that float32"),
    ],
)
def test_a_number_that_float32_does_not_hold_is_no_label(label: Any, names: str) -> None:
    schema = schema_of({"x": 1, "label": [0.5, 1] if np.ndim(label) else 0.5})
    with pytest.raises(Refused, match=names):
        encoder(schema).encode({"x": 1, "label": label})


def test_a_huge_sample_is_refused_before_it_is_copied() -> None:
    huge = np.broadcast_to(np.float32(0), (1 << 20, 1 << 20))
    schema = Schema((Field("x", "array", dtype="<f4", shape=huge.shape),), LABELS)
    with pytest.raises(Refused, match="shard_size"):
        encoder(schema, most=1 << 20).encode({"x": huge})
    text = schema_of({"t": ""})
    with pytest.raises(Refused, match="shard_size"):
        encoder(text, most=99).encode({"t": "x" * 100})
    encoder(text, most=100).encode({"t": "x" * 100})


def test_an_image_that_packing_refuses_is_refused_here() -> None:
    schema = schema_of({"image": encoded_image(picture(1, 24, 16))})
    with pytest.raises(Refused, match="image"):
        encoder(schema).encode({"image": b"<html>"})
    with pytest.raises(Refused, match=r"cat\.jpg|type str"):
        encoder(schema).encode({"image": "cat.jpg"})


@pytest.mark.parametrize(
    ("sample", "names"),
    [
        ({}, "no field"),
        ({"label": 1}, "no field"),
        ({"x": None}, "x"),
        ({1: 1}, "name"),
        ({"X": 1}, "'X'"),
        ({"row": 1}, "reserved"),
        ({"image": np.zeros((2, 2), np.uint8)}, "image"),
        ({"x": object()}, "x is an object"),
        ({"x": np.array([None])}, "x: arrays of"),
        ({"x": np.array(["a"])}, "x: arrays of"),
        ({"x": np.zeros(1, "M8[s]")}, "x: arrays of"),
        ({"x": np.zeros(1, [("a", "f4")])}, "x: arrays of"),
        ({"x": np.zeros((1,) * 9)}, "dimensions"),
        ({"x": 1, "label": []}, "label"),
    ],
)
def test_what_cannot_be_stored_has_no_form(sample: Any, names: str) -> None:
    with pytest.raises(Refused, match=names):
        schema_of(sample)


def test_a_first_size_that_differs_becomes_free() -> None:
    schemas = [schema_of({"x": np.zeros((count, 3)), "n": 1}) for count in (2, 5, 0)]
    joined = join_schemas(join_schemas(schemas[0], schemas[1]), schemas[2])
    assert [field.shape for field in joined.fields] == [(None, 3), ()]
    assert join_schemas(schemas[0], schemas[0]) == schemas[0]
    encoder(joined).encode({"x": np.zeros((7, 3)), "n": 2})


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ({"x": np.zeros(2)}, {"x": np.zeros(2, "f4")}, r"field x: .*float64 \[2\].*float32 \[2\]"),
        ({"x": np.zeros((2, 3))}, {"x": np.zeros((2, 4))}, r"field x: .*\[2, 3\].*\[2, 4\]"),
        ({"x": np.zeros(2)}, {"x": np.zeros((2, 1))}, "field x"),
        ({"x": np.float64(2)}, {"x": np.zeros(1)}, "field x"),
        ({"x": "a"}, {"x": b"a"}, "field x: .*text.*bytes"),
        ({"x": 1, "y": 1}, {"x": 1}, "field y"),
        ({"x": 1}, {"x": 1, "y": 1}, "field y"),
        ({"x": 1, "label": 1}, {"x": 1}, "label"),
        ({"x": 1, "label": [1, 2]}, {"x": 1, "label": [1]}, "label"),
    ],
)
def test_samples_that_differ_have_no_form_in_common(one: Any, other: Any, names: str) -> None:
    with pytest.raises(Refused, match=names):
        join_schemas(schema_of(one), schema_of(other))


@pytest.mark.parametrize("format", FORMATS)
def test_a_shard_holds_what_was_yielded_though_the_buffer_is_used_again(format: str, tmp_path: Path) -> None:
    buffer = np.zeros((40, 1000), np.float32)
    image = encoded_image(picture(1, 24, 16))
    schema = schema_of({"image": image, "x": buffer, "s": buffer[0, :3], "label": [1, 2]})
    info = CacheInfo("0" * 32, format, schema.fields, schema.labels)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "shards").mkdir()
    shard, encode = GrowingShard(tmp_path, info, 0, 10), encoder(schema, bare=info.bare)
    for number in range(5):
        buffer[:] = number
        shard.add(encode.encode({"image": image, "x": buffer, "s": buffer[0, :3], "label": [number, -number]}))
    finished = shard.finish()
    generation = Generation(0, 1, 0, 10, (5,), (finished.bytes,), (finished.index_crc32c,))
    (tmp_path / "generations").mkdir()
    info.save(tmp_path)
    generation.publish(tmp_path)
    store = GenerationStore.open(CacheFiles(tmp_path), 0)
    for number in range(5):
        np.testing.assert_array_equal(store.field("x").value(number), np.full_like(buffer, number), strict=True)
        assert store.field("s").value(number).tolist() == [number] * 3
        assert bytes(store.record(number)) == image
        assert store.field("image").size(number) == (24, 16)
        assert np.asarray(store.label(number)).tolist() == [number, -number]
    store.release()
