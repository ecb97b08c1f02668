"""Sources of shards: files, folders, brace patterns and lists of files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from packtrain._core.errors import PackError, UsageError
from packtrain._storage.location import Location, children, identity, lies_here, list_folder, read, resolve
from packtrain._storage.remote.objects import Objects

from .shard_files import unreadable

_SUFFIXES: Final = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar.lz4")
_MOST_LIST_BYTES: Final = 256 << 20
_MOST_SHARDS: Final = 1_000_000
_MOST_BRACES: Final = 16
_RANGE: Final = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_GLOB: Final = frozenset("*?[")


def find_shards(sources: Sequence[str | os.PathLike[str]], objects: Objects) -> list[Location]:
    """Find the absolute paths or addresses of all shards, in the order of `sources`, and of names in a folder.

    Args:
        sources: Each a file; a folder, of which all files called ``*.tar`` are taken; a pattern such as
            ``train-{000000..000146}.tar`` or ``{train,extra}.tar``; or ``@FILE``, a list with one of these per line.
            Each may also be an address in an object store. Web servers do not say what is in a folder.
        objects: What object stores are read by.

    Raises:
        UsageError: A source is neither a path nor an address, or has braces that are no pattern.
        PackError: A folder has no shards, a list or folder cannot be read, or a shard is there twice.
        RemoteError: The object store does not answer as it should.
    """
    shards: dict[object, Location] = {}
    # One after the other: of a pattern that stands for billions of names, the first that is not there ends the search.
    for shard in _all(sources, objects, Path.cwd()):
        try:
            other = shards.setdefault(identity(shard), shard)
        except OSError as error:
            hint = "" if _GLOB.isdisjoint(shard.name) else ". Only braces are expanded here: leave * to the shell"
            raise unreadable(shard, error, hint) from error
        if other is not shard:
            raise PackError(f"{shard} is there twice" + ("" if other == shard else f": {other} is the same file"))
        if len(shards) > _MOST_SHARDS:
            raise UsageError(f"more than {_MOST_SHARDS} shards are given")
    if not shards:
        raise UsageError("no shards are given")
    return list(shards.values())


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield what a shell makes of a pattern with braces. Numbers keep the leading zeros of their limits.

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


def _all(
    sources: Iterable[str | os.PathLike[str]], objects: Objects, folder: Location, *, listed: bool = False
) -> Iterator[Location]:
    """Yield all shards of `sources`, whose names start from `folder`, and which a list names if `listed`."""
    for source in sources:
        text = os.fspath(source)
        if text.startswith("@") and not listed:
            names = resolve("shards", text[1:], folder)
            yield from _all(_lines(names, objects), objects, list_folder(names), listed=True)
            continue
        # A file that is called like a pattern is a file.
        literal = "{" not in text or lies_here(resolve("shards", text, folder))
        if not literal and text.count("{") > _MOST_BRACES:
            raise UsageError(f"{text[:80]}... has more than {_MOST_BRACES} pairs of braces")
        for name in [text] if literal else expand_braces(text):
            yield from _below(resolve("shards", name, folder), objects)


def _lines(names: Location, objects: Objects) -> list[str]:
    try:
        text = os.fsdecode(read(names, _MOST_LIST_BYTES, objects, stream=True))
    except OSError as error:
        raise unreadable(names, error) from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _below(location: Location, objects: Objects) -> list[Location]:
    """Return the shards in a folder; of a shard, the shard itself."""
    if lies_here(location) and Path(location).is_fifo():
        raise UsageError(
            f"{location} is a pipe, not a shard: for a pipe that lists shards, write @ before it: @{location}"
        )
    try:
        names = children(location, objects, _SUFFIXES)
    except OSError as error:
        raise unreadable(location, error) from error
    if names is None:
        return [location]
    shards: list[Location] = [location / name for name in names if name.endswith(_SUFFIXES) and name[0] != "."]
    if not shards:
        raise PackError(f"{location} holds nothing that is called *.tar")
    return shards
