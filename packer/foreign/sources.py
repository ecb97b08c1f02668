"""Which shards are meant: files, folders, brace patterns and lists of files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from packtrain._core.arguments import path_of
from packtrain._core.errors import PackError, UsageError
from packtrain._core.opening import is_stream, read_named
from packtrain._storage.location import Location
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url, is_address, place_of

from .shard_files import unreadable

_SUFFIXES: Final = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar.lz4")
_MOST_LIST_BYTES: Final = 256 << 20
_MOST_SHARDS: Final = 1_000_000
_MOST_BRACES: Final = 16
_RANGE: Final = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_GLOB: Final = frozenset("*?[")
_SHOWN: Final = 5


def find_shards(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The shards on this machine: as `find_places`, without addresses.

    Raises:
        UsageError: A source is no path of this machine, or has braces that are no pattern.
        PackError: As for `find_places`.
    """
    return [place for place in _found(sources, None) if isinstance(place, Path)]


def find_places(sources: Sequence[str | os.PathLike[str]], objects: Objects) -> list[Location]:
    """Returns the absolute paths or the addresses of all shards, in the order of `sources`, and of names in a folder.

    Args:
        sources: Each a file; a folder, of which all files called ``*.tar`` are taken; a pattern such as
            ``train-{000000..000146}.tar`` or ``{train,extra}.tar``; or ``@FILE``, a list with one of these per line.
            Each may also be an address in an object store. Web servers do not say what is in a folder.
        objects: What object stores are read by.

    Raises:
        UsageError: One of them is neither a path nor an address, or has braces that are no pattern.
        PackError: A folder has no shards, a list or folder cannot be read, or a shard is there twice.
        RemoteError: The object store does not answer as it should.
    """
    return _found(sources, objects)


def _found(sources: Sequence[str | os.PathLike[str]], objects: Objects | None) -> list[Location]:
    shards: dict[object, Location] = {}
    # One after the other: of a pattern that stands for billions of names, the first that is not there ends the search.
    for place in _all(sources, objects):
        other = shards.setdefault(_identity(place), place)
        if other is not place:
            raise PackError(f"{place} is there twice" + ("" if other == place else f": {other} is the same file"))
        if len(shards) > _MOST_SHARDS:
            raise UsageError(f"more than {_MOST_SHARDS} shards are given")
    if not shards:
        raise UsageError("no shards are given")
    return list(shards.values())


def _identity(place: Location) -> object:
    """What is the same for one shard under two names. Whether an object is there, is asked later, of many at a time."""
    if isinstance(place, Url):
        return place
    try:
        found = os.stat(place)
    except OSError as error:
        hint = "" if _GLOB.isdisjoint(place.name) else ". Only braces are expanded here: leave * to the shell"
        raise unreadable(place, error, hint) from error
    return found.st_dev, found.st_ino


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


def _all(
    sources: Iterable[str | os.PathLike[str]], objects: Objects | None, inside: Location | None = None
) -> Iterator[Location]:
    """All shards of `sources`; `inside` is the folder of the list that they are in."""
    for source in sources:
        text = os.fspath(source)
        if text.startswith("@") and inside is None:
            place = _place(text[1:], None, objects)
            yield from _all(_lines(place, objects), objects, _folder_of(place))
            continue
        # A file that is called like a pattern is a file.
        literal = "{" not in text or _is_file(text, inside)
        if not literal and text.count("{") > _MOST_BRACES:
            raise UsageError(f"{text[:80]}... has more than {_MOST_BRACES} pairs of braces")
        for name in [text] if literal else expand_braces(text):
            yield from _below(_place(name, inside, objects), objects)


def _place(text: str, inside: Location | None, objects: Objects | None) -> Location:
    """What a text means, in a list that lies in the folder `inside`."""
    if objects is not None:
        if isinstance(inside, Url) and not is_address(text):
            return inside.resolve(text)
        place = place_of("shards", text)
        if isinstance(place, Url):
            return place
    path = path_of("shards", text)
    return Path(os.path.abspath(inside / path if isinstance(inside, Path) else path))


def _is_file(text: str, inside: Location | None) -> bool:
    if is_address(text) or isinstance(inside, Url):
        return False
    return os.path.lexists(text if inside is None else inside / text)


def _folder_of(place: Location) -> Location:
    """The folder that the names in a list start from: that of the list, or the working folder for a pipe."""
    return Path.cwd() if isinstance(place, Path) and is_stream(place) else place.parent


def _lines(place: Location, objects: Objects | None) -> list[str]:
    if isinstance(place, Url):
        assert objects is not None, "without it there are no addresses"
        text = os.fsdecode(objects.read(place, _MOST_LIST_BYTES))
    else:
        try:
            text = os.fsdecode(read_named(place, _MOST_LIST_BYTES))
        except OSError as error:
            raise unreadable(place, error) from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _below(place: Location, objects: Objects | None) -> Iterable[Location]:
    """The shards in a folder; a shard itself."""
    if isinstance(place, Url):
        assert objects is not None, "without it there are no addresses"
        return _in_store(place, objects)
    if place.is_fifo():
        raise UsageError(f"{place} is a pipe, not a shard: for a pipe that lists shards, write @ before it: @{place}")
    return _in_folder(place) if os.path.isdir(place) else [place]


def _in_store(url: Url, objects: Objects) -> list[Url]:
    # What is called like a shard is none of the folders: whoever may read objects may not be allowed to list them.
    if url.name.endswith(_SUFFIXES) or not url.writable:
        return [url]
    there = [found.name for found in objects.list(url)]
    names = sorted(name for name in there if "/" not in name and _is_shard(name))
    if there and not names:
        raise PackError(f"{url} holds no object called *.tar")
    return [url / name for name in names] or [url]


def _in_folder(folder: Path) -> list[Location]:
    try:
        names = sorted(name for name in os.listdir(folder) if _is_shard(name))
    except OSError as error:
        raise unreadable(folder, error) from error
    if not names:
        raise PackError(f"{folder} holds no file called *.tar")
    return [folder / name for name in names]


def _is_shard(name: str) -> bool:
    return name.endswith(_SUFFIXES) and not name.startswith(".")
