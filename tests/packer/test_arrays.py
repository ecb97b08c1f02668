"""Laws of arrays: what numpy.save writes is stored value for value, and what does not fit is refused with a reason."""

from __future__ import annotations

import ast
import io
import json
import pickle
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from packtrain._core.schema import Field
from packtrain._packer.arrays import array_form, fits, store_array
from packtrain._packer.sources import Refused

DTYPES = ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "F", "D"]

stored_arrays = st.tuples(st.sampled_from(DTYPES), st.sampled_from("<>"), st.sampled_from("CF")).flatmap(
    lambda chosen: st.tuples(
        arrays.arrays(np.dtype(chosen[1] + chosen[0]), arrays.array_shapes(min_dims=0, max_dims=5)),
        st.just(chosen[2]),
    )
)


def field(dtype: str, *shape: int | None) -> Field:
    return Field("boxes", "array", dtype=dtype, shape=shape)


def field_of(array: np.ndarray[Any, Any], *, ragged: bool = False) -> Field:
    shape = (None, *array.shape[1:]) if ragged and array.ndim else array.shape
    return field(array.dtype.newbyteorder("<").str, *shape)


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    """The array as numpy writes it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=True)
    return file.getvalue()


def restored(payload: bytes, shape: tuple[int, ...], field: Field) -> np.ndarray[Any, Any]:
    return np.frombuffer(payload, field.dtype).reshape(shape)


@settings(max_examples=2 * settings().max_examples)
@given(stored_arrays, st.booleans(), st.sampled_from([None, (1, 0), (2, 0)]))
def test_an_npy_file_is_stored_value_for_value(
    made: tuple[np.ndarray[Any, Any], str], ragged: bool, version: tuple[int, int] | None
) -> None:
    array, order = made
    data, wanted = npy(np.asarray(array, order=order), version), field_of(array, ragged=ragged)  # type: ignore[call-overload]
    form = array_form(data[:10_000], by_path=True)
    assert (form.dtype.str, form.shape, form.is_open) == (wanted.dtype, array.shape, False)
    payload, shape = store_array(data, wanted, by_path=True)
    assert payload == array.astype(wanted.dtype).tobytes(), "bit for bit, NaN included"
    assert shape == array.shape
    assert store_array(data, wanted, by_path=False) == (payload, shape), "a cell may hold the file itself"


def test_files_of_numpy_are_read_without_the_parser_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.11.9 and 3.12.3, threads that use it at once get a SystemError now and then."""
    array = np.asarray(np.arange(6, dtype=">f4").reshape(2, 3), order="F")
    with monkeypatch.context() as patch:
        patch.delattr(ast, "parse")
        payload, _ = store_array(npy(array), field_of(array), by_path=True)
    assert payload == array.astype("<f4").tobytes()


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("3", field("<i8"), 3),
        ("[1, 2]", field("<f4", 2), [1.0, 2.0]),
        ("[true, false]", field("|b1", 2), [True, False]),
        ("[true, 0]", field("|u1", None), [1, 0]),
        ("[18446744073709551615]", field("<u8", 1), [2**64 - 1]),
        ("[Infinity, NaN]", field("<f2", 2), [np.inf, np.nan]),
        ("[0.1]", field("<f4", 1), [np.float32(0.1)]),
        ("[16777216, -16777218]", field("<f4", 2), [16777216, -16777218]),
        ("[16777217.0]", field("<f4", 1), [16777216]),
        ("[9007199254740992, NaN]", field("<f8", 2), [2**53, np.nan]),
        ("[1.5]", field("<c8", 1), [1.5]),
        ("[]", field("<i4", None, 7, 2), np.zeros((0, 7, 2))),
        ("[]", field("<i4", 0), []),
    ],
)
def test_numbers_in_json_take_the_type_of_the_field(text: str, wanted: Field, expected: Any) -> None:
    found = restored(*store_array(text.encode(), wanted, by_path=False), wanted)
    np.testing.assert_array_equal(found, np.array(expected, wanted.dtype))


JSON_MISFITS = [
    (
        "[1.5]",
        field("<i8", 1),
        r"float64 \[1\] with the number 1.5, and the field int64 \[1\]\..*--dtype boxes=float64",
    ),
    ("[300]", field("|u1", 1), r"it is int64 \[1\] with the number 300, and the field uint8 \[1\]"),
    ("[-1]", field("<u4", 1), r"it is int64 \[1\] with the number -1, and the field uint32"),
    ("[1e39]", field("<f4", 1), r"it is float64 \[1\] with the number 1e\+39, and the field float32"),
    ("[1e400]", field("<f8", 1), "1e400 is beyond the numbers that float64 has"),
    ("[2]", field("|b1", 1), "it is int64"),
    ("[[1, 2], [3]]", field("<i8", None, 2), "its inner lists differ in length"),
    ('["a"]', field("<i8", 1), "not numbers in JSON"),
    ('{"a": 1}', field("<i8", 1), "not numbers in JSON"),
    ("null", field("<i8", 1), "not numbers in JSON"),
    ("[1", field("<i8", 1), "not numbers in JSON"),
    ("[" * 100_000, field("<i8", 1), "not numbers in JSON"),
    ("[1, 2.5, NaN]", field("<i8", 3), "with the number 2.5"),
    ("[99999999999999999999]", field("<i8", 1), "more than 64 bits: write it with a decimal point"),
    ("[16777217]", field("<f4", 1), "the whole number 16777217, which float32 would round: write 16777217.0"),
    ("[[0.5, 1], [16777217, 0]]", field("<f4", None, 2), "the whole number 16777217, which float32 would round"),
    ("[2049]", field("<f2", 1), "the whole number 2049, which float16 would round"),
    ("-16777217", field("<c8"), "the whole number -16777217, which complex64 would round"),
    ("[0.5, 9007199254740993]", field("<f8", 2), "9007199254740993, which float64 would round"),
    ("[18446744073709551615, -1]", field("<f8", 2), "18446744073709551615, which float64 would round"),
    ("[" * 9 + "1" + "]" * 9, field("<i8", 1), "at most 8 dimensions"),
    ("[]", field("<i8", 3), "only the first size|--shape boxes=N"),
]


@pytest.mark.parametrize(("text", "wanted", "message"), JSON_MISFITS, ids=[text[:12] for text, _, _ in JSON_MISFITS])
def test_other_json_is_refused(text: str, wanted: Field, message: str) -> None:
    with pytest.raises(Refused, match=message):
        store_array(text.encode(), wanted, by_path=False)


@given(
    numbers=st.lists(st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-3000, 3000) | st.just(0.5), min_size=1),
    dtype=st.sampled_from(["<f2", "<f4", "<f8", "<c8", "|u1", "<i4", "<i8", "<u8"]),
)
def test_a_whole_number_in_json_comes_back_or_is_refused(numbers: list[int | float], dtype: str) -> None:
    wanted = field(dtype, len(numbers))
    with suppress(Refused):
        payload, shape = store_array(json.dumps(numbers).encode(), wanted, by_path=False)
        found = restored(payload, shape, wanted).tolist()
        assert [int(number.real) for number in found] == [int(number) for number in numbers]


@given(array=stored_arrays.map(lambda made: made[0]), dtype=st.sampled_from(DTYPES))
def test_a_type_fits_another_if_all_its_values_do(array: np.ndarray[Any, Any], dtype: str) -> None:
    wanted = np.dtype(dtype)
    assume(array.size)
    with np.errstate(all="ignore"):
        if not fits(array.dtype, wanted):
            with pytest.raises(Refused, match=r"it is .*, and the field .*--dtype boxes="):
                store_array(npy(array), field(wanted.newbyteorder("<").str, *array.shape), by_path=True)
            return
        np.testing.assert_array_equal(array.astype(wanted), array)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 4), r"it is float32 \[3, 4\], and the field float32 \[2, 4\]\. .*--shape boxes=N,4$"),
        ((2, 5), "only the first size may differ from row to row"),
        ((2,), "only the first size may differ from row to row"),
        ((), "only the first size may differ from row to row"),
    ],
)
def test_another_shape_is_refused_with_what_to_type(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        store_array(npy(np.zeros(shape, "<f4")), field("<f4", 2, 4), by_path=True)


class Evil:
    """Unpickling it would end the test."""

    def __reduce__(self) -> Any:
        return exit, ("it was unpickled",)


REFUSED_FILES = {
    "objects": (npy(np.array([Evil()], object)), "Python objects, which only pickle could read"),
    "a pickle": (pickle.dumps([1]), r"not an \.npy file; it begins with b'\\x80"),
    "records": (npy(np.zeros(2, [("a", "<i4"), ("b", "<f8")])), "cannot be stored"),
    "texts": (npy(np.array(["a"])), "arrays of <U1 cannot be stored"),
    "times": (npy(np.array(["2020"], "M8[D]")), "cannot be stored"),
    "long doubles": (npy(np.zeros(2, np.longdouble)), "cannot be stored"),
    "nine dimensions": (npy(np.zeros((1,) * 9)), "at most 8 dimensions"),
    "cut": (npy(np.zeros(9))[:-1], r"71 bytes of values, and its \.npy header says 72"),
    "too long": (npy(np.zeros(9)) + b"\0", r"73 bytes of values, and its \.npy header says 72"),
    "empty": (b"", r"not an \.npy file"),
    "JSON": (b"[1, 2]", r"not an \.npy file.*numpy\.save"),
    "only magic": (b"\x93NUMPY", r"its \.npy header cannot be read"),
    "version 9": (b"\x93NUMPY\x09\0" + npy(np.zeros(1))[8:], r"its \.npy header cannot be read"),
}


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_other_files_are_refused(name: str) -> None:
    data, message = REFUSED_FILES[name]
    with pytest.raises(Refused, match=message):
        store_array(data, field("<f8", None), by_path=True)


def header(text: bytes, *, version: int = 1) -> bytes:
    """An `.npy` header with this text."""
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text


HOSTILE = [
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 4), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '<f8', 'fortran_order': 1, 'shape': (1,), }",
    b"{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': (1,), }",
    b"(" * 5000,
    b"[" * 60000,
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"1," * 4000 + b"), }",
    b"-" * 9000 + b"1",
    b"\xff" * 100,
    b"",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("version", [1, 2])
def test_hostile_headers_are_refused(text: bytes, version: int) -> None:
    data = header(text, version=version) + bytes(8)
    for refuse in (lambda: array_form(data, by_path=True), lambda: store_array(data, field("<f8", 2), by_path=True)):
        with pytest.raises(Refused):
            refuse()


@settings(max_examples=3 * settings().max_examples)
@given(at=st.integers(0, 200), byte=st.integers(0, 255))
def test_a_changed_header_gives_the_values_or_a_refusal(at: int, byte: int) -> None:
    data = bytearray(npy(np.arange(12, dtype="<f4").reshape(3, 4)))
    data[at % len(data)] = byte
    try:
        payload, shape = store_array(bytes(data), field("<f4", None, 4), by_path=True)
    except Refused:
        return
    assert shape == (3, 4)
    assert len(payload) == 48
