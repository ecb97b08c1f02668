"""Words to type next for a list that cannot be read as it is, or that has named columns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError, UsageError
from packtrain._core.kinds import KINDS
from packtrain._core.opening import is_stream
from packtrain._core.paths import is_address, is_url
from packtrain._core.schema import check_name
from packtrain._core.stores import known_schemes
from packtrain._storage.remote.urls import Url

from .folder import IMAGE_SUFFIXES

_BYTE_ORDER_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_NEW_SUFFIXES: Final = {"gunzip": "", "bunzip2": "", "unxz": "", "unzstd": "", "jq": ".jsonl"}


@dataclass(frozen=True)
class Remedy:
    """A fault of a list, and the words to type that mend it.

    Attributes:
        why: The fault, as a sentence without its full stop.
        rewrite: Command that reads the list and writes a better one; empty if the list may stay.
        words: Options of `packtrain pack` that are needed.
    """

    why: str
    rewrite: str = ""
    words: tuple[str, ...] = ()

    def text(self, source: Path | None, root: Path | Url | None = None) -> str:
        """Returns why, and what to type.

        Args:
            source: Path of the list, or None.
            root: Folder that its paths start from; None if more options are needed than are known here.
        """
        words, rewrite, new = shlex.join(self.words), self.rewrite, source
        if not rewrite and not words:
            return self.why
        if source is None or new is None or (source.exists() and is_stream(source)):
            steps = [f"send the list through {rewrite}"] if rewrite else []
            steps += [f"give {words}"] if words else []
            return f"{self.why}: {', and '.join(steps)}"
        if rewrite:
            new = source.with_name(f"{source.stem}.new{_NEW_SUFFIXES.get(rewrite.split()[0], source.suffix)}")
            rewrite = f"{rewrite} < {_quoted(source)} > {_quoted(new)}"
        if root is None:
            step = f"Type: {rewrite}, and pack {_quoted(new)} in its place" if rewrite else f"Give {words}"
            return f"{self.why}. {step}"
        if "--root" not in self.words and str(root) != str(source.parent):
            words = f"{words} --root {_quoted(root)}".strip()
        command = f"packtrain pack {_quoted(new)} OUT {words}".rstrip()
        return f"{self.why}. Type: {f'{rewrite} && ' if rewrite else ''}{command}"


def of_url(path: str) -> Remedy | None:
    """The remedy for a URL of a kind that packtrain does not read."""
    if not is_url(path) or is_address(path):
        return None
    return Remedy(f"The paths are URLs, of which packtrain reads {known_schemes()}: copy the others to a disk")


def require_utf8(head: bytes, source: Path) -> None:
    """Refuses a list in UTF-16, by its byte order mark.

    Raises:
        ListError: It is one.
    """
    if head.startswith(_BYTE_ORDER_MARKS):
        raise ListError(Remedy(f"{source} is encoded in UTF-16", "iconv -f UTF-16 -t UTF-8").text(source))


def escaped(text: str) -> str:
    """A text as a part of a pattern of sed."""
    return re.sub(r"([][\\.*^$(){}+?|])", r"\\\1", text)


def sed(script: str) -> str:
    """The command that changes a list by a script. Lists may hold bytes that are no text."""
    return f"LC_ALL=C sed -E {shlex.quote(script)}"


def _quoted(place: object) -> str:
    return shlex.quote(str(place))


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
