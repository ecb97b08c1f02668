"""Words to type next for a list that has named columns, or is not encoded in UTF-8."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError, UsageError
from packtrain._core.kinds import KINDS
from packtrain._core.schema import check_name

from .folder import IMAGE_SUFFIXES

_LOOKED_AT: Final = 1000
_BYTE_ORDER_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


def utf_16(head: bytes) -> str | None:
    """The name of the encoding of a text in UTF-16, by its first bytes; None if it is something else."""
    if head.startswith(_BYTE_ORDER_MARKS):
        return "UTF-16"
    first, second = (half.count(0) / len(half) if half else 0 for half in (head[:_LOOKED_AT:2], head[1:_LOOKED_AT:2]))
    if max(first, second) <= 1 / 2 or min(first, second) >= 1 / 4:
        return None
    return "UTF-16BE" if first > second else "UTF-16LE"


def require_utf8(head: bytes, source: Path) -> None:
    """Refuses a list in UTF-16, by its first bytes.

    Raises:
        ListError: It is one.
    """
    if encoding := utf_16(head):
        raise ListError(f"{source} is encoded in UTF-16: write it in UTF-8, as `iconv -f {encoding} -t UTF-8` does")


_FILES: Final = {".npy": "array", ".json": "json", ".txt": "text"}
"""Kinds of columns that hold paths of such files."""
_FRACTION: Final = re.compile(r"-?\d*\.\d+([eE][-+]?\d+)?")
_LABELS: Final = re.compile(r"(class|label|target|category)(_?(id|idx|index|name))?|labels|classes")
_MASKS: Final = re.compile(r".*(mask|seg|annotation).*")
_TEXTS: Final = re.compile(r".*(caption|text|title|prompt|description|sentence).*")
_IMAGES: Final = re.compile(r"(image|img|file)?_?(path|name|file)|filename|filepath|image|img|file")


def command_line(source: Path, heads: Sequence[str], first: Sequence[str]) -> str:
    """Returns the line to type for a list with these columns.

    Args:
        source: Path of the list.
        heads: Names of the columns.
        first: Texts in the first row, as many.
    """
    words = ["packtrain", "pack", str(source), "OUT"]
    has_image = has_label = has_field = False
    for head, value in zip(heads, first, strict=True):
        name, is_file = head.strip().casefold(), value.lower().endswith(IMAGE_SUFFIXES)
        if not has_image and (_IMAGES.fullmatch(name) or (is_file and not _MASKS.fullmatch(name))):
            words += ["--image", head]
            has_image = True
        elif not has_label and _LABELS.fullmatch(name) and not is_file:
            words += ["--label", head]
            if _FRACTION.fullmatch(value):
                words += ["--labels", "float"]
            has_label = True
        elif kind := _kind(name, value, is_file):
            path = ":path" if value.lower().endswith(tuple(_FILES)) else ""
            words += [f"--{KINDS[kind].option}", field_words(head, kind) + path]
            has_field = True
    left = [head for head in heads if head not in words]
    if not has_image and not has_field and left:
        # Ids are paths without a suffix, often.
        words[4:4] = ["--image", left.pop(0)]
    if len(heads) == 2 and left and not has_label and not has_field:
        words += ["--label", left[0]]
    return shlex.join(words)


def are_values(heads: Sequence[str]) -> bool:
    """True if these are no names of columns, but the values of a first row: one of them names a file."""
    return any(word.lower().endswith((*IMAGE_SUFFIXES, *_FILES)) for head in heads for word in head.split())


def _kind(name: str, value: str, is_file: bool) -> str:
    """The kind of a further column, or an empty text if there is no telling."""
    if is_file:
        return "mask" if _MASKS.fullmatch(name) else "image"
    for suffix, kind in _FILES.items():
        if value.lower().endswith(suffix):
            return kind
    if value.startswith("["):
        return "array"
    if value.startswith("{"):
        return "json"
    return "text" if _TEXTS.fullmatch(name) else ""


def field_words(column: str, kind: str) -> str:
    """Returns ``COLUMN`` if that can be the name of a field, else ``NAME=COLUMN``."""
    plain = re.sub(r"[^a-z0-9_]+", "_", column.casefold()).strip("_")
    for name in (column, plain, f"{plain}_{kind}", f"{kind}_{plain}"):
        try:
            check_name(name)
        except UsageError:
            continue
        return column if name == column else f"{name}={column}"
    return f"field={column}"
