"""Finds out how a list is written that is not written as packtrain reads it, and where its files are.

People have lists with the label first, without suffixes, with backslashes, and so on. Most of them become readable by
one option, or by one command that rewrites them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError
from packtrain._core.paths import is_url
from packtrain._storage.remote.urls import Url

from .delimited import BadRecord, read_heads, read_record
from .folder import IMAGE_SUFFIXES, TORCHVISION_SUFFIXES
from .labels import BadLine, is_number, suggest_values
from .lines import SEPARATORS, Separator
from .rows import ColumnPlace
from .suggestions import Remedy, are_values, command_line, escaped, of_url, sed

_LONGEST_NAME: Final = 5
"""More words are a caption."""
_SUFFIXES: Final = tuple(suffix.encode() for suffix in IMAGE_SUFFIXES)
# Everything up to the last suffix of an image, and everything behind it.
_PATH: Final = re.compile(rb"(?is)(.*(%s))(?![\w.])(.*)" % b"|".join(map(re.escape, _SUFFIXES)))


@dataclass(frozen=True)
class ListedLines:
    """Lines of a list that are wrong, or that name files which are not there.

    Attributes:
        lines: Some of them, with their numbers.
        expected: Type of the labels that were expected, as `--labels` has it.
        source: Path of the list.
        root: Folder that its paths start from.
        header: The names of the columns, and what separates them; None if the list has none.
    """

    lines: Sequence[tuple[int, bytes]]
    expected: str
    source: Path
    root: Path | Url
    header: tuple[list[str], Separator] | None

    def remedy(self) -> Remedy | None:
        """Finds out how the lines are written. Returns None if there is no telling, or nothing is wrong with them."""
        if not self.lines:
            return None
        number, line = next((pair for pair in self.lines if _PATH.fullmatch(pair[1])), self.lines[0])
        if line[:1] in b"([{":
            return None
        if remedy := of_url(os.fsdecode(line)):
            return remedy
        found = _PATH.fullmatch(line)
        if found is None:
            return self._without_suffix(line)
        if not found[3] and self._is_there(line):
            return self._labels("none")
        for separator in SEPARATORS:
            if separator.byte and len(cells := _cells(line, separator)) > 1 and any(map(_is_image, cells)):
                return self._of_cells(number, cells, separator)
        if line[:1] in b"\"'":
            return None
        return self._behind(number, found[1], found[3]) if found[3].strip() else self._path_last(number, found[1])

    def _of_cells(self, number: int, cells: list[bytes], separator: Separator) -> Remedy | None:
        """The remedy for columns that a CSV file could have."""
        skipped = self.header[1].skipped if self.header is not None else 0
        if not any(map(_is_image, cells[:skipped])):
            cells = cells[skipped:]
        if _is_image(cells[0]) and not any(map(_is_image, cells[1:])):
            suggested = suggest_values(cells[1:]) or ("class" if len(cells) == 2 and _is_name(cells[1]) else None)
            if suggested:
                return self._labels(suggested)
        if self.header is not None:
            names = self.header[0][-len(cells) :]
            fits = len(names) == len(cells)
            return Remedy("Say which columns to pack", "", self._named(names, cells)) if fits else None
        names = self._names(cells)
        at = next(place for place, cell in enumerate(cells) if _is_image(cell))
        why = f"Line {number} has {len(cells)} columns, with the path in column {at + 1}"
        byte = (separator.byte or b"").decode()
        header = byte.join(names).replace("\t", "\\t")
        return Remedy(f"{why}, so the columns need names", sed(f"1i {header}"), self._named(names, cells))

    def _named(self, names: Sequence[str], cells: Sequence[bytes]) -> tuple[str, ...]:
        words = shlex.split(command_line(self.source, names, [os.fsdecode(cell) for cell in cells]))[4:]
        vectors = {suggest_values(cell.split()) for cell in cells if len(cell.split()) > 1} - {None}
        return (*words, *(word for vector in vectors if "--label" in words for word in ("--labels", str(vector))))

    def _names(self, cells: Sequence[bytes]) -> list[str]:
        """Names for columns without any."""
        names: list[str] = []
        kinds: tuple[str, ...]
        for place, cell in enumerate(cells):
            if _is_image(cell):
                kinds = ("path", "mask")
            elif not place and len(cells) > 2 and self._counts():
                kinds = ("index",)
            else:
                kinds = ("label" if len(cells) > 2 or _is_name(cell) else "caption",)
            names.append(next((kind for kind in kinds if kind not in names), f"column{place + 1}"))
        return names

    def _behind(self, number: int, path: bytes, rest: bytes) -> Remedy | None:
        """The remedy for a path with words behind it."""
        apart = re.match(rb"\s*([^\w\s,;.+\"'#(/-]*)\s*", rest)
        assert apart is not None, "it may be empty"
        words, mark, suffix = rest[apart.end() :].split(), os.fsdecode(apart[1]), self._suffixes()
        if not mark:
            suggested = suggest_values(words) or ("class" if len(words) == 1 else None)
            if suggested and not self._is_there(path) and self._counts() and self._is_there(path.split(None, 1)[-1]):
                return Remedy(f"Line {number} has a number before the path", sed(r"s/^\s*[0-9]+\s+//"))
            if suggested:
                return self._labels(suggested)
            behind = {len(match[3].split()) for _, line in self.lines if (match := _PATH.fullmatch(line))}
            if is_number(words[0]) and len(behind) == 1:
                return Remedy(
                    f"Behind the path, line {number} has {len(words)} columns, but a list has only the label there",
                    sed(rf"s/^(.*{suffix})\s+(\S+).*/\1 \3/I"),
                )
        if not _is_name(b" ".join(words)):
            return None
        return Remedy(
            f"The path and the label on line {number} are separated by {mark!r}, not by blanks"
            if mark
            else f"What follows the path on line {number} looks like the name of a class with blanks in it",
            sed(rf"s/^(.*{suffix})\s*{escaped(mark)}\s*/\1\t/I"),
            () if suggest_values(words) else ("--labels", "class"),
        )

    def _path_last(self, number: int, path: bytes) -> Remedy | None:
        """The remedy for a line that ends with a path: it has no label, or begins with it."""
        words = path.split()
        if len(words) == 1:
            return self._labels("none")
        values = words[: next(place for place, word in enumerate([*words, b""]) if not is_number(word))]
        if not values and not self._is_there(path.split(None, 1)[-1]):
            return None
        dropped = r"\S+\s+" if len(values) > 1 and self._counts() else ""
        values = values[1:] if dropped else values or words[:1]
        taken = r"\s+".join([r"\S+"] * len(values))
        labels = suggest_values(values) or "class"
        return Remedy(
            f"Line {number} begins with the label, but the path has to come first",
            sed(rf"s/^\s*{dropped}({taken})\s+(.*{self._suffixes()})\s*$/\2 \1/I"),
            () if labels == self.expected else ("--labels", labels),
        )

    def _without_suffix(self, line: bytes) -> Remedy | None:
        columns = [cells for separator in SEPARATORS if len(cells := _cells(line, separator)) > 1]
        cells = columns[0] if columns else []
        if cells and is_number(cells[0]) and not self._is_there(cells[0]):
            return None
        return self._labels("class") if len(cells) == 2 and not is_number(cells[1]) else None

    def _labels(self, suggested: str) -> Remedy | None:
        if suggested == self.expected:
            return None
        return Remedy(f"The lines look like --labels {suggested}", "", ("--labels", suggested))

    def _counts(self) -> bool:
        """True if each line begins with another whole number."""
        first = {found[0] for _, line in self.lines if (found := re.match(rb"\d+(?=[\s,;])", line))}
        return len(first) == len(self.lines) > 1

    def _suffixes(self) -> str:
        """A pattern of the suffixes of the paths."""
        found = {match[2].lower().decode() for _, line in self.lines if (match := _PATH.fullmatch(line))}
        return rf"\.({'|'.join(sorted(suffix[1:] for suffix in found))})"

    def _is_there(self, path: bytes) -> bool:
        return isinstance(self.root, Path) and os.path.lexists(os.path.join(self.root, os.fsdecode(path)))


def named_columns(text: bytes, source: Path) -> Remedy | None:
    """The remedy for a list whose first line seems to name columns by other words than those of a plain list."""
    try:
        heads, delimiter, end = read_heads(text, source.name)
        first = [os.fsdecode(cell) for cell in read_record(text, end, delimiter).cells]
    except (ListError, BadRecord):
        return None
    if len(heads) < 2 or len(first) != len(heads) or are_values(heads):
        return None
    if any(is_number(head.encode("utf-8", "surrogateescape")) for head in heads):
        return None
    words = shlex.split(command_line(source, heads, first))[4:]
    return Remedy("If its first line names the columns, say which to pack", "", tuple(words))


def _cells(line: bytes, separator: Separator) -> list[bytes]:
    try:
        return [cell.strip() for cell in separator.columns(line)]
    except BadLine:
        return []


def _is_name(cell: bytes) -> bool:
    """True for what may be the name of a class: words, but neither a sentence nor numbers."""
    words = cell.split()
    return 0 < len(words) <= _LONGEST_NAME and (len(words) == 1 or suggest_values(words) is None)


def _is_image(cell: bytes) -> bool:
    return cell.lower().endswith(_SUFFIXES)


_MOST_FOLDERS: Final = 200
_ENDS: Final = ("", *(end for suffix in TORCHVISION_SUFFIXES for end in (suffix, suffix.upper())))


def find_missing(path: str, root: Path | Url, place: ColumnPlace | None) -> Remedy | None:
    """Looks for a file that is not there under similar names, and in folders near by.

    Args:
        path: The path as the list gives it.
        root: Folder that it should start from.
        place: Place of the paths in the list; None if it is not made of lines.
    """
    if isinstance(root, Url) or is_url(path) or "\0" in path or os.path.lexists(root / path):
        return None
    if "\\" in path:
        flat = path.replace("\\", "/")
        if os.path.lexists(root / flat) or find_missing(flat, root, place):
            return Remedy("The paths have backslashes, but on Linux folders end with /", r"tr '\\' /")
        return None
    for folder in _near(root):
        for suffix in _ENDS:
            if not os.path.lexists(folder / f"{path}{suffix}"):
                continue
            if folder != root:
                return Remedy(f"{path}{suffix} is in {folder}", "", ("--root", str(folder)))
            rewrite = "" if place is None else _appending(path, suffix, place)
            return Remedy(f"The paths lack a suffix: {root / path}{suffix} is there", rewrite)
    parts = path.split("/")
    for cut in range(1, len(parts)):
        rest = "/".join(parts[cut:])
        prefix = path.removesuffix(rest)
        if rest and "|" not in prefix and os.path.lexists(root / rest):
            return Remedy(
                f"The paths begin with {prefix}, but {rest} is in {root.absolute()}", sed(f"s|{escaped(prefix)}||")
            )
    return None


def _appending(path: str, suffix: str, place: ColumnPlace) -> str:
    """The command that appends a suffix to all paths."""
    if place.separator is None:
        names = r"[^ \t]+" + r" [^ \t]+" * path.count(" ")
    else:
        separator = "\\t" if place.separator == b"\t" else place.separator.decode()
        names = rf'([^{separator}]*{separator}){{{place.column}}}"?[^{separator}"]*'
    return sed(rf"{'1!' if place.header else ''}s/^({names})/\1{suffix}/")


def _near(root: Path) -> list[Path]:
    """A folder, those in it, and those that it is in."""
    try:
        with os.scandir(root) as entries:
            inside = sorted(entry.name for entry in entries if entry.is_dir())[:_MOST_FOLDERS]
    except OSError:
        inside = []
    return [root, *(root / name for name in inside), *list(root.absolute().parents)[:3]]
