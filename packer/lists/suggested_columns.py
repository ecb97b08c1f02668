"""The command that packs a list with named columns, guessed from their names and the first row."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from packtrain._core.errors import UsageError
from packtrain._core.kinds import KINDS
from packtrain._core.schema import check_name

from .folder import IMAGE_SUFFIXES

_SUFFIXES: Final = tuple(IMAGE_SUFFIXES)
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
        name, is_file = head.strip().casefold(), value.lower().endswith(_SUFFIXES)
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
    return any(word.lower().endswith((*_SUFFIXES, *_FILES)) for head in heads for word in head.split())


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
