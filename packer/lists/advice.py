"""Advice on a list whose lines cannot be read as they are: the fault, and the option to give."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError
from packtrain._core.paths import is_address, is_url
from packtrain._core.stores import known_schemes
from packtrain._storage.remote.urls import Url

from .delimited import BadRecord, read_heads, read_record
from .folder import IMAGE_SUFFIXES
from .labels import BadLine, is_number, suggest_values
from .lines import SEPARATORS, Separator
from .suggestions import are_values, command_line

_SUFFIXES: Final = tuple(suffix.encode() for suffix in IMAGE_SUFFIXES)
# The longest path that ends as images do, and what follows it.
_PATH: Final = re.compile(rb"(?is)(.*(?:%s))(?![\w.])(.*)" % b"|".join(map(re.escape, _SUFFIXES)))
_MOST_FOLDERS: Final = 200


def advise_lines(lines: Sequence[bytes], skipped: int, expected: str) -> str:
    """Returns what is wrong with lines of paths and labels; empty if nothing is found.

    Args:
        lines: The first lines.
        skipped: How many columns before the path count for nothing.
        expected: The type of the labels, as `--labels` has it.
    """
    line = next(filter(_PATH.fullmatch, lines), b"".join(lines[:1]))
    if advice := advise_url(os.fsdecode(line)):
        return advice
    suggested = _labels_of(line, skipped)
    return "" if suggested in (None, expected) else f"The lines look like --labels {suggested}: give that option"


def advise_url(path: str) -> str:
    """Returns what is wrong with the URL of an image; empty if it is none, or one of a kind that packtrain reads."""
    if not is_url(path) or is_address(path):
        return ""
    return f"The paths are URLs, of which packtrain reads {known_schemes()}: copy the others to a disk"


def advise_columns(text: bytes, source: Path) -> str:
    """Returns how the columns of a list are named on the command line, if its first line seems to name them."""
    try:
        heads, delimiter, end = read_heads(text, source.name)
        first = [os.fsdecode(cell) for cell in read_record(text, end, delimiter).cells]
    except (ListError, BadRecord):
        return ""
    if len(heads) < 2 or len(first) != len(heads) or are_values(heads):
        return ""
    if any(is_number(head.encode("utf-8", "surrogateescape")) for head in heads):
        return ""
    return f"If its first line names the columns, say which to pack, for example: {command_line(source, heads, first)}"


def advise_path(path: str, root: Path | Url) -> str:
    """Returns how a file can be found that is not where the list says; empty if it is there, or nowhere near."""
    if isinstance(root, Url) or is_url(path) or "\0" in path or os.path.lexists(root / path):
        return ""
    if "\\" in path:
        return "The paths have backslashes, but on Linux folders end with /"
    for folder in _near(root):
        if os.path.lexists(folder / path):
            return f"{path} is in {folder}: give --root {folder}"
    return ""


def _labels_of(line: bytes, skipped: int) -> str | None:
    """The `--labels` by which a line would be read; None if there is no telling."""
    for separator in SEPARATORS:
        cells = _cells(line, separator)[skipped:] if separator.byte else []
        if len(cells) > 1 and cells[0].lower().endswith(_SUFFIXES):
            one_name = len(cells) == 2 and cells[1] and suggest_values(cells[1].split()) is None
            return suggest_values(cells[1:]) or ("class" if one_name else None)
    words = line.split()
    if (found := _PATH.fullmatch(line)) is None:
        return "class" if len(words) == 2 and not any(map(is_number, words)) else None
    behind = found[2].split()
    if not behind:
        return "none" if len(words) == 1 else None
    return (suggest_values(behind) or ("class" if len(behind) == 1 else None)) if found[2][:1].isspace() else None


def _cells(line: bytes, separator: Separator) -> list[bytes]:
    try:
        return [cell.strip() for cell in separator.columns(line)]
    except BadLine:
        return []


def _near(root: Path) -> list[Path]:
    """The folders in this one, and those that it is in."""
    try:
        with os.scandir(root) as entries:
            inside = sorted(entry.name for entry in entries if entry.is_dir())[:_MOST_FOLDERS]
    except OSError:
        inside = []
    return [*(root / name for name in inside), *list(root.absolute().parents)[:3]]
