"""Laws of values: what was stored comes back, and nothing else is taken for it."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import pytest
from helpers.fields import NO_JSON
from helpers.support import encoded
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from packtrain._codec.values import MOST_NESTED, decode_json, decode_value, parse_npy
from packtrain._core.schema import Field

DTYPES = st.sampled_from(["|b1", "|i1", "|u1", "<i2", "<u4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: arrays.arrays(np.dtype(dtype), arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
TEXT, JSON, BYTES = Field("t", "text"), Field("j", "json"), Field("b", "bytes")


def npy_of(values: Any, version: tuple[int, int] | None = None) -> bytes:
    """The file that numpy writes."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(values), version, allow_pickle=False)
    return buffer.getvalue()


def decoded(field: Field, record: bytes, **options: Any) -> Any:
    return decode_value(field, memoryview(record), **options)


def same(ours: Any, theirs: Any) -> None:
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert ours.tobytes() == theirs.tobytes()


@given(ARRAYS, st.sampled_from([(1, 0), (2, 0), (3, 0)]), st.booleans(), st.integers(0, 7))
def test_arrays_come_back(values: Any, version: tuple[int, int], ragged: bool, shift: int) -> None:
    values = np.ascontiguousarray(values).reshape(values.shape)
    shape = (None, *values.shape[1:]) if ragged and values.ndim else values.shape
    field = Field("a", "array", dtype=values.dtype.str, shape=shape)
    # Somewhere in a shard, which may be where the values are not aligned.
    for bare, record in ((False, npy_of(values, version)), (True, values.tobytes())):
        if bare and ragged and math.prod(values.shape[1:]) == 0:
            continue
        found = decode_value(field, memoryview(b"x" * shift + record)[shift:], bare=bare)
        same(found, values)
        assert not found.flags.writeable
        assert found.flags.aligned


def test_an_aligned_array_is_a_view() -> None:
    values = np.arange(12, dtype="<i4").reshape(3, 4)
    memory = np.frombuffer(npy_of(values), np.uint8)
    found = decode_value(Field("a", "array", dtype="<i4", shape=(3, 4)), memory.data)
    assert np.shares_memory(found, memory)
    same(found, values)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.zeros((3, 4), "<f8"), "where the field has <f4"),
        (np.zeros((4, 3), "<f4"), r"where the field has <f4 \[any, 4\]"),
        (np.zeros(4, "<f4"), "where the field has"),
        (np.zeros((3, 4), ">f4"), "big-endian; write them again as <f4"),
        (np.asfortranarray(np.ones((3, 4), "<f4")), "Fortran"),
        (np.zeros(3, [("a", "<f4")]), "its .npy header is"),
    ],
)
def test_other_arrays_are_refused(values: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decoded(Field("a", "array", dtype="<f4", shape=(None, 4)), npy_of(values))


def test_pickled_arrays_are_refused() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="header is"):
        decoded(Field("a", "array", dtype="<f4", shape=(1,)), buffer.getvalue())


@given(st.binary(max_size=200) | st.tuples(st.integers(0, 200), st.binary(max_size=4)))
def test_damaged_arrays_are_values_errors(damage: Any) -> None:
    record = npy_of(np.arange(12, dtype="<i4").reshape(3, 4))
    if isinstance(damage, bytes):
        record = damage
    else:
        at, new = damage
        record = record[:at] + new + record[at + 2 * len(new) :]
    try:
        dtype, shape, start = parse_npy(memoryview(record), len(record))
    except ValueError:
        return
    assert np.ndarray(shape, dtype, record, start).nbytes == len(record) - start


@pytest.mark.parametrize(
    "header",
    ["(99999999999999, 99999999999999)", "(0, 99999999999999999)", "(0, 4611686018427387903, 4)", "(-1,)", "(1e3,)"],
)
def test_shapes_of_strangers_are_refused(header: str) -> None:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {header}, }}".ljust(117) + "\n"
    record = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    with pytest.raises(ValueError, match=r"npy header|bytes of values|the field has"):
        decoded(Field("a", "array", dtype="<f4", shape=(None, 4)), record)


@pytest.mark.parametrize(("size", "shape"), [(7, (None, 2)), (12, (None, 2)), (12, (4, 1)), (3, (None, 0)), (1, ())])
def test_bare_arrays_of_another_size_are_refused(size: int, shape: tuple[int | None, ...]) -> None:
    with pytest.raises(ValueError, match=f"it has {size} bytes"):
        decoded(Field("a", "array", dtype="<f4", shape=shape), bytes(size), bare=True)


@given(st.text())
def test_texts_come_back(text: str) -> None:
    try:
        record = text.encode()
    except UnicodeEncodeError:
        return
    assert decoded(TEXT, record) == text
    assert decoded(BYTES, record) == record
    assert type(decoded(BYTES, record)) is bytes


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    for field in (TEXT, JSON):
        with pytest.raises(ValueError, match="utf-8"):
            decoded(field, b'"\xff"')


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON_VALUES)
def test_json_comes_back(value: Any) -> None:
    assert decoded(JSON, json.dumps(value).encode()) == value


def test_json_is_bounded_in_depth() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        deepest = opening * MOST_NESTED + "1" + closing * MOST_NESTED
        assert decode_json(deepest.encode()) is not None
        for text in (opening + deepest + closing, opening * 300_000, (opening * 2000) + "}" * 2000):
            with pytest.raises(ValueError, match="nested"):
                decode_json(text.encode())
    # Brackets in texts, and many that are not nested.
    flat = [["]", '[[[{"\\', "["]] * 1000
    assert decode_json(json.dumps(flat).encode()) == flat


@pytest.mark.parametrize("name", NO_JSON)
def test_json_that_has_no_single_meaning_is_refused(name: str) -> None:
    text, message = NO_JSON[name]
    with pytest.raises(ValueError, match=message):
        decode_json(text)


def test_records_that_were_written_before_keys_and_numbers_were_looked_at_stay_readable() -> None:
    assert decoded(JSON, b'{"a": 1, "a": 2, "b": 1e999}') == {"a": 2, "b": float("inf")}
    with pytest.raises(ValueError, match="NaN is no JSON"):
        decoded(JSON, b"[NaN]")


def test_half_of_a_surrogate_pair_is_a_text_in_json() -> None:
    assert decoded(JSON, b'["\\ud800"]') == ["\ud800"]


def test_numbers_of_arrays_may_be_no_numbers() -> None:
    assert repr(decode_json(b"[NaN, -Infinity]", nan=True)) == "[nan, -inf]"
    for text in (b"[1e999]", b'[{"a": 1, "a": 1}]'):
        with pytest.raises(ValueError, match=r"beyond|twice"):
            decode_json(text, nan=True)


@pytest.mark.parametrize("text", ["", "{", "[1,]", "__import__('os')", "'a'", "1 2", '{"a": 1'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra|Illegal"):
        decoded(JSON, text.encode())


@pytest.mark.parametrize("dtype", ["|u1", "<u2"])
def test_masks_come_back_however_they_are_stored(dtype: str) -> None:
    values = np.random.default_rng(1).integers(0, 256 if dtype == "|u1" else 1 << 16, (7, 9)).astype(dtype)
    png, raw = (Field("m", "mask", encoding=encoding, dtype=dtype) for encoding in ("png", "raw"))
    size = (9, 7)
    for found in (
        decoded(png, encoded(Image.fromarray(values), "PNG"), size=size),
        decoded(raw, npy_of(values), size=size),
        decoded(raw, npy_of(values)),
        decoded(raw, values.tobytes(), bare=True, size=size),
    ):
        assert found.dtype == (np.uint8 if dtype == "|u1" else np.int32)
        np.testing.assert_array_equal(found, values)
    for field, record, bare in ((png, encoded(Image.fromarray(values), "PNG"), False), (raw, npy_of(values), False)):
        with pytest.raises(ValueError, match=r"not 7 x 9|\[7, 9\]"):
            decoded(field, record, bare=bare, size=(7, 9))


def test_a_field_says_how_wide_the_values_of_a_mask_are() -> None:
    narrow, wide = (encoded(Image.fromarray(np.ones((3, 4), dtype)), "PNG") for dtype in (np.uint8, np.uint16))
    assert decoded(Field("m", "mask", encoding="png", dtype="<u2"), narrow).dtype == np.int32
    with pytest.raises(ValueError, match="16 bits"):
        decoded(Field("m", "mask", encoding="png", dtype="|u1"), wide)
