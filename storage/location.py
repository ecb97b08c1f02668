"""Locations: folders and files of this machine, and addresses in object stores, behind the same functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar, overload

from packtrain._core.arguments import path_of
from packtrain._core.errors import CorruptFile, NotThere, UsageError
from packtrain._core.files import write_file
from packtrain._core.manifest import Manifest
from packtrain._core.opening import is_stream, read_named, read_regular
from packtrain._core.paths import is_address

from .remote.objects import Objects
from .remote.urls import Url, place_of

Location = Path | Url
"""The folder or address of a dataset or one of its files."""
Result = TypeVar("Result")

_THREADS: Final = 16
"""Requests in flight: a single one is far from what a store can send."""


def location_of(dataset: str | os.PathLike[str]) -> Location:
    """Return the location of a dataset that a user names: an absolute path without links, or an address.

    Raises:
        UsageError: It is neither a path nor the address of an object store.
    """
    return real(place_of("dataset", dataset))


def real(location: Location) -> Location:
    """Return the only name of a location: for a path, without links and from the root."""
    return location if isinstance(location, Url) else Path(os.path.realpath(location))


def absolute(location: Location) -> Location:
    """Return the location as processes with another working folder can use it."""
    return location if isinstance(location, Url) else location.absolute()


def object_store(*, patient: bool = False) -> Objects:
    """Connect to object stores; see `packtrain._storage.remote.client.ObjectStore`."""
    from .remote.client import ObjectStore  # slow: not on the way to a copy of what lies on a disk

    return ObjectStore(patient=patient)


def resolve(name: str, text: str, folder: Location) -> Location:
    """Return the location that a text names in a file that lies in `folder`.

    Raises:
        UsageError: The text is neither a path nor an address, or leads out of the bucket.
    """
    if is_address(text):
        return Url.parse(text)
    return folder.resolve(text) if isinstance(folder, Url) else Path(os.path.abspath(folder / path_of(name, text)))


def list_folder(location: Location) -> Location:
    """Return the folder from which names in a list start: that of the list, or the working folder for a pipe."""
    return Path.cwd() if isinstance(location, Path) and is_stream(location) else location.parent


def lies_here(location: Location) -> bool:
    """Check that a location is a file or a folder of this machine."""
    return isinstance(location, Path) and os.path.lexists(location)


def identity(location: Location) -> object:
    """Return what is the same for all names of one file. An object has one name, and need not be there.

    Raises:
        OSError: The file is not there.
    """
    if isinstance(location, Url):
        return location
    found = os.stat(location)
    return found.st_dev, found.st_ino


def children(location: Location, objects: Objects, files: tuple[str, ...]) -> list[str] | None:
    """Return the sorted names in a folder; None for a file.

    Args:
        location: The folder, or the file.
        objects: Connection to object stores.
        files: Ends of names by which objects are files. Whoever may read objects may not be allowed to list them.

    Raises:
        OSError: The folder cannot be read.
        RemoteError: The same, of a folder in an object store.
    """
    if isinstance(location, Path):
        return sorted(os.listdir(location)) if location.is_dir() else None
    if location.name.endswith(files) or not location.writable:
        return None
    there = [found.name for found in objects.list(location)]
    return sorted(name for name in there if "/" not in name) if there else None


def read(location: Location, most: int, objects: Objects | None, *, stream: bool = False) -> bytes:
    """Read a whole file of at most `most` bytes, and with `stream` also what comes through a pipe.

    Raises:
        OSError: It cannot be read.
        RemoteError: The same, of an object.
    """
    if isinstance(location, Path):
        return read_named(location, most) if stream else read_regular(location, most)
    return (objects or object_store()).read(location, most)


def write(location: Location, data: bytes, objects: Objects, *, new: bool = False) -> bool:
    """Write a small file as a whole. A crash of the machine may lose the file.

    Args:
        location: The file; its folder is there.
        data: Its content.
        objects: Connection to object stores.
        new: True to leave a file alone that is there.

    Returns:
        False if the file was there and was left alone.

    Raises:
        OSError: The file cannot be written.
        RemoteError: The same, of an object.
    """
    if isinstance(location, Url):
        return objects.write(location, data, new=new)
    try:
        write_file(location, [data], exclusive=new, durable=False)
    except FileExistsError:
        return False
    return True


def remove(location: Location, objects: Objects) -> None:
    """Remove a file, if it is there.

    Raises:
        OSError: The file cannot be removed.
        RemoteError: The same, of an object.
    """
    if isinstance(location, Path):
        location.unlink(missing_ok=True)
    else:
        objects.remove(location)


def names_in(folder: Location, objects: Objects) -> set[str]:
    """Return the names of the files in a folder; none if the folder is not there.

    Raises:
        OSError: The folder cannot be read.
        RemoteError: The same, of a folder in an object store.
    """
    try:
        return {found.name for found in objects.list(folder)} if isinstance(folder, Url) else set(os.listdir(folder))
    except (FileNotFoundError, NotThere):
        return set()


def arrived(location: Location, attempt: Callable[[], Result]) -> Result:
    """Return the result of an attempt to read, repeated if an object arrives damaged: that may be the network."""
    if isinstance(location, Url):
        with suppress(CorruptFile):
            return attempt()
    return attempt()


def each(function: Callable[[Location], Result], locations: Sequence[Location]) -> Iterator[Result]:
    """Call a function for each location: one after the other for files, side by side for objects."""
    if all(isinstance(location, Path) for location in locations):
        return map(function, locations)
    from .remote.download import in_threads  # slow, as above

    return in_threads(function, locations, threads=_THREADS)


def linked(dataset: Location, name: str, elsewhere: str | None) -> Location:
    """Return the location of a file of a dataset.

    Args:
        dataset: Where the dataset lies.
        name: Name of the file.
        elsewhere: Where the manifest says that it lies, a path or an address. A staged copy has it all the same.

    Raises:
        UsageError: It lies where only the machine that indexed it finds it.
    """
    if elsewhere is None or (isinstance(dataset, Path) and os.path.lexists(dataset / name)):
        return dataset / name
    try:
        if is_address(elsewhere):
            return Url.parse(elsewhere)
        return dataset.resolve(elsewhere) if isinstance(dataset, Url) else dataset / elsewhere
    except UsageError as error:
        raise UsageError(
            f"{dataset}: shard {name} is linked, and {error}: index the shards again where they are now "
            "(`packtrain index`)"
        ) from error


@overload
def shard_place(dataset: Url, manifest: Manifest, number: int) -> Url: ...
@overload
def shard_place(dataset: Location, manifest: Manifest, number: int) -> Location: ...
def shard_place(dataset: Location, manifest: Manifest, number: int) -> Location:
    """Return the location of a shard of the dataset at `dataset`. Raises: As `linked`."""
    return linked(dataset, manifest.shards[number].name, elsewhere(manifest, number))


def remote_base(folder: Path, manifest: Manifest) -> Url | None:
    """Return the address that the shards of a dataset in a folder start from; None if they lie on this machine."""
    # The last one, because a copy that is staged in part has the first.
    if not manifest.in_store or not manifest.shards or os.path.lexists(folder / manifest.shards[-1].name):
        return None
    return Url.parse(str(manifest.base))


def elsewhere(manifest: Manifest, number: int) -> str | None:
    """Return the location of a linked shard as the manifest gives it; None for other shards."""
    link = manifest.shards[number].link
    return None if link is None or manifest.base is None else f"{manifest.base}/{link.path}"
