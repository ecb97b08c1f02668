"""Values of a table as paths, as content of a field, and as labels."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, Final

from packtrain._codec.values import decode_json
from packtrain._core.kinds import KINDS
from packtrain._core.options import LabelSpec
from packtrain._core.schema import MOST_STRING_BYTES

from ..listing import Cell
from ..options import FieldColumn
from .labels import BadLine, is_number

_FILES: Final = (b".npy", b".npz", b".json")
_FRACTION: Final = rb"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf(inity)?)"
_NAMES: Final = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def path_in(value: Any) -> bytes | None:
    """Returns the path that a value is, or None if it is missing.

    Raises:
        BadLine: It is something else, or holds a NUL.
    """
    if isinstance(value, str):
        try:
            value = os.fsencode(value)
        except UnicodeEncodeError:
            raise BadLine("the path holds half of a surrogate pair, which no file name can") from None
    if not value:
        if value in (None, b""):
            return None
        raise BadLine(f"expected a path, found {kind_of(value)}")
    if not isinstance(value, bytes):
        raise BadLine(f"expected a path, found {kind_of(value)}")
    if b"\0" in value:
        raise BadLine("the path holds a NUL byte")
    return value


def cell_in(field: FieldColumn, value: Any) -> Cell | None:
    """Returns what a value says about a field, or None if it is missing.

    Raises:
        BadLine: It cannot be the content of such a field.
    """
    if value is None or isinstance(value, Cell):
        return value
    if field.by_path:
        path = path_in(value)
        return None if path is None else Cell(path, True)
    written = KINDS[field.kind].written
    if written == "text":
        text = _text(value)
        if field.kind == "string" and len(text) > MOST_STRING_BYTES:
            raise BadLine(f"the text has {len(text):,} bytes, and a string at most {MOST_STRING_BYTES:,}: take --text")
        return Cell(text, False)
    if written == "number":
        return _number_cell(value)
    if isinstance(value, bytes):
        return _json_cell(value, written == "numbers")
    if written == "numbers":
        _require_values(value)
    return Cell(_dumped(value, nan=written == "numbers"), False)


def label_texts(value: Any, labels: LabelSpec, by_name: bool) -> list[bytes]:
    """Returns the texts of the values of a label.

    Raises:
        BadLine: It is missing, or has another number of values.
    """
    if value is None or value in ("", b""):
        raise BadLine("there is no label")
    texts = value_texts(value, split=labels.count is not None)
    if len(texts) != labels.fields or (by_name and isinstance(value, list | dict)):
        raise BadLine(f"expected {labels.fields} label value(s), found {len(texts)}")
    return texts


def value_texts(value: Any, *, split: bool = True) -> list[bytes]:
    """Returns the texts of all values in a label: of a list, or, if `split`, of the words of a text."""
    if isinstance(value, str):
        value = _word(value)
    if isinstance(value, bytes):
        value = value.strip()
        if not split:
            return [value]
        if not value.startswith(b"["):
            return list(value.split())
        value = _loaded(value, nan=True)
    return [_word(item) for item in value] if isinstance(value, list) else [_word(value)]


def is_numeric(value: Any) -> bool:
    """True if a label consists of numbers only."""
    try:
        texts = value_texts(value)
    except BadLine:
        return False
    return bool(texts) and all(map(is_number, texts))


def _word(value: Any) -> bytes:
    if isinstance(value, str):
        return _text(value)
    return _dumped(value, nan=True)


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadLine("the text holds half of a surrogate pair, so it cannot be written in UTF-8") from None
    if not isinstance(value, bytes):
        raise BadLine(f"expected a text, found {kind_of(value)}")
    _require_utf8(value)
    return value


def _json_cell(text: bytes, array: bool) -> Cell | None:
    """The cell of a text that holds JSON, or for an array also numbers between blanks."""
    if not text.strip():
        return None
    _require_utf8(text)
    words = text.split()
    if array and not text.lstrip().startswith(b"[") and all(map(_is_value, words)):
        return Cell(words[0] if len(words) == 1 else b"[%s]" % b",".join(words), False)
    try:
        value = _loaded(text, nan=array)
    except BadLine as error:
        if not text.lower().endswith(_FILES):
            raise
        raise BadLine(f"{error}. For paths of files, write :path behind the column, as in --array boxes:path") from None
    if array:
        _require_values(value)
    return Cell(text, False)


def _number_cell(value: Any) -> Cell | None:
    """The cell of a single number, as JSON with NaN writes it."""
    if isinstance(value, bytes):
        word = value.strip()
        if not word:
            return None
        lower = word.lower()
        if lower in (b"true", b"false"):
            return Cell(lower, False)
        if re.fullmatch(rb"[+-]?\d+", word):
            value = int(word)
        elif re.fullmatch(_FRACTION, lower):
            value = float(word)
            if math.isinf(value) and b"inf" not in lower:
                raise BadLine(f"{word.decode()} is beyond the numbers that float64 has")
        else:
            raise BadLine("expected a number, or true or false, found a text")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise BadLine(f"{value} is beyond the whole numbers of 64 bits: write it as a fraction")
    if not isinstance(value, int | float):
        raise BadLine(f"expected a number, or true or false, found {kind_of(value)}")
    return Cell(_dumped(value, nan=True), False)


def _is_value(word: bytes) -> bool:
    return re.fullmatch(rb"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", word) is not None


def _require_values(value: Any) -> None:
    """Refuses what is neither a number nor a list; whether its items are numbers of one shape shows when it is packed.

    Raises:
        BadLine: It is something else.
    """
    if not isinstance(value, int | float | list):
        raise BadLine(f"expected a list of numbers, found {kind_of(value)}")


def _require_utf8(value: bytes) -> None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"the text is not encoded in UTF-8 (byte {error.start})") from None


def _loaded(text: bytes, *, nan: bool) -> Any:
    try:
        return decode_json(text, nan=nan)
    except ValueError as error:
        raise BadLine(f"the text is not JSON ({error})") from None


def _dumped(value: Any, *, nan: bool) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=nan, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=nan, separators=(",", ":")).encode()
    except ValueError:
        raise BadLine("NaN and infinity are no JSON: write null") from None


def kind_of(value: Any) -> str:
    """A value that JSON gave, in words."""
    return _NAMES.get(type(value), type(value).__name__)
