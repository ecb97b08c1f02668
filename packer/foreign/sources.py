"""Which shards are meant: files, folders, brace patterns and lists of files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from packtrain._core.arguments import path_of
from packtrain._core.errors import PackError, UsageError
from packtrain._core.opening import read_regular
from packtrain._core.problems import reason

_SUFFIXES: Final = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar.lz4")
_MOST_LIST_BYTES: Final = 256 << 20
_MOST_SHARDS: Final = 1_000_000
_MOST_BRACES: Final = 16
_RANGE: Final = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_GLOB: Final = frozenset("*?[")
_SHOWN: Final = 5


def find_shards(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Returns the absolute paths of all shards, in the order of `sources`, and of their names in a folder.

    Args:
        sources: Each a file; a folder, of which all files called ``*.tar`` are taken; a pattern such as
            ``train-{000000..000146}.tar`` or ``{train,extra}.tar``; or ``@FILE``, a list with one of these per line.

    Raises:
        UsageError: One of them is no path of this machine, or has braces that are no pattern.
        PackError: A folder has no shards, a list or folder cannot be read, or a shard is there twice.
    """
    shards: dict[tuple[int, int], Path] = {}
    # One after the other: of a pattern that stands for billions of names, the first that is not there ends the search.
    for source in _all(sources):
        path = Path(os.path.abspath(source))
        try:
            found = os.stat(path)
        except OSError as error:
            hint = "" if _GLOB.isdisjoint(path.name) else ". Only braces are expanded here: leave * to the shell"
            raise PackError(f"{path} cannot be read: {reason(error)}{hint}") from error
        other = shards.setdefault((found.st_dev, found.st_ino), path)
        if other is not path:
            raise PackError(f"{path} is there twice" + ("" if other == path else f": {other} is the same file"))
    if not shards:
        raise UsageError("no shards are given")
    return list(shards.values())


def expand_braces(pattern: str) -> Iterator[str]:
    """Yields what a shell makes of a pattern with braces. Numbers keep the leading zeros of their limits.

    >>> list(expand_braces("{a,b}-{08..10}.tar"))
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    found = _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    for part in _alternatives(found[1], pattern):
        for rest in expand_braces(pattern[found.end() :]):
            yield pattern[: found.start()] + part + rest


def _alternatives(inside: str, pattern: str) -> Iterable[str]:
    if limits := _RANGE.fullmatch(inside):
        low, high = int(limits[1]), int(limits[2])
        if not 0 <= high - low < _MOST_SHARDS:
            raise UsageError(f"{pattern}: {{{inside}}} is no range of at most {_MOST_SHARDS} numbers")
        width = max(map(len, limits.groups())) if any(text.startswith("0") for text in limits.groups()) else 0
        return (f"{number:0{width}d}" for number in range(low, high + 1))
    if "," in inside:
        return inside.split(",")
    raise UsageError(f"{pattern}: expected a range or a list in braces, such as {{000000..000146}} or {{train,extra}}")


def _all(sources: Iterable[str | os.PathLike[str]], inside: Path | None = None) -> Iterator[Path]:
    """All shards of `sources`; `inside` is the folder of the list that they are in."""
    for source in sources:
        text = os.fspath(source)
        if text.startswith("@") and inside is None:
            path = path_of("shards", text[1:])
            yield from _all(_lines(path), path.parent)
            continue
        # A file that is called like a pattern is a file.
        literal = "{" not in text or os.path.lexists(text if inside is None else inside / text)
        if not literal and text.count("{") > _MOST_BRACES:
            raise UsageError(f"{text[:80]}... has more than {_MOST_BRACES} pairs of braces")
        for name in [text] if literal else expand_braces(text):
            path = path_of("shards", name)
            path = path if inside is None else inside / path
            yield from _in_folder(path) if os.path.isdir(path) else [path]


def _lines(path: Path) -> list[str]:
    try:
        text = os.fsdecode(read_regular(path, _MOST_LIST_BYTES))
    except OSError as error:
        raise PackError(f"{path} cannot be read: {reason(error)}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _in_folder(folder: Path) -> list[Path]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIXES) and not name.startswith("."))
    except OSError as error:
        raise PackError(f"{folder} cannot be read: {reason(error)}") from error
    if not names:
        raise PackError(f"{folder} holds no file called *.tar")
    return [folder / name for name in names]
