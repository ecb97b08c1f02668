"""Laws of plan.json and manifest.json: what was written is what is read, or an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packtrain._core.document import dump_document, load_document
from packtrain.errors import CorruptFile, DatasetError, UnsupportedVersion

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.text().filter(lambda key: key not in ("version", "checksum"))
BODY = {"version": 1, "name": "tr\u00e4in", "path": "caf\udce9\u2028", "big": 2**60, "parts": [{"a": [None, 1.5]}, {}]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, JSON, max_size=4), st.integers(-3, 2))
def test_what_was_dumped_is_loaded(file: Path, content: dict[str, Any], version: int) -> None:
    body = {"version": version, **content}
    file.write_bytes(dump_document(body))
    assert load_document(file, newest=2) == body
    assert json.loads(file.read_text("utf-8")) == {**body, "checksum": json.loads(file.read_bytes())["checksum"]}


def test_bytes_that_are_not_utf8_come_back(file: Path) -> None:
    file.write_bytes(dump_document(BODY))
    assert load_document(file, newest=1) == BODY


def test_every_changed_byte_is_refused(file: Path) -> None:
    data = dump_document(BODY)
    for at in range(len(data)):
        for mask in (0x01, 0x20, 0x80):
            file.write_bytes(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            with pytest.raises(DatasetError, match=r"plan\.json"):
                load_document(file, newest=1)


def test_every_cut_and_every_tail_is_refused(file: Path) -> None:
    data = dump_document(BODY)
    for changed in [
        *(data[:at] for at in range(len(data))),
        data + b"\n",
        data + b" ",
        data * 2,
        b"\xef\xbb\xbf" + data,
    ]:
        file.write_bytes(changed)
        with pytest.raises(CorruptFile, match=r"plan\.json is damaged"):
            load_document(file, newest=1)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "3", '"version"', "{}", '{"version": "1"}', '{"version": true}', "[" * 99999]
)
def test_other_json_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(CorruptFile, match=r"plan\.json is damaged: not a packtrain document"):
        load_document(file, newest=1)


def test_a_newer_version_is_refused_by_number_whatever_else_it_holds(file: Path) -> None:
    for data in (dump_document({"version": 9}), b'{"version": 9, "new": "form"}'):
        file.write_bytes(data)
        with pytest.raises(
            UnsupportedVersion, match=r"has version 9; this packtrain reads up to 8\. Upgrade: pip"
        ) as e:
            load_document(file, newest=8)
        assert e.value.file == "plan.json"


def test_a_missing_document_is_pythons_own_error(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_document(file, newest=1)
