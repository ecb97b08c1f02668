"""Reads a list in an object store, and files that lists name there: many at a time, as stores take long to answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from packtrain._core.errors import ListError, NotThere, TooManyRejects, UsageError
from packtrain._core.files import file_errors
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

from .sources import LARGEST_FILE, Refused, require_content

_THREADS: Final = 16
_AHEAD: Final = 48
"""Objects that are asked for before they are needed, at most."""
_LEAST: Final = 8
"""So many even if they are large: the fields of a sample or two."""
_AHEAD_BYTES: Final = 128 << 20
"""About so many bytes of them, at most."""
_MOST_LIST_BYTES: Final = 64 << 30


class ObjectsAhead:
    """Objects, of which those that come next are already on their way.

    Args:
        addresses: The addresses of the objects that will be read, in this order. Some may be left out.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self._coming = iter(addresses)
        # Where other samples come from as well: a long run is not given up because a store is away for a moment.
        self._objects = ObjectStore(patient=True)
        self._threads = ThreadPoolExecutor(_THREADS)
        self._asked: deque[tuple[str, Future[bytes]]] = deque()
        self._usual = _AHEAD_BYTES // _THREADS
        """The size to expect of the next objects, in bytes: that of the last ones."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._objects.close()

    def read(self, address: str, *, may_be_empty: bool = False) -> bytes:
        """Reads an object.

        Raises:
            Refused: It is missing, or empty where that may not be; or this is not an address.
            RemoteError: It cannot be read for another reason, which is not its fault.
        """
        self._ask()
        if any(asked == address for asked, _ in self._asked):
            # Whatever was asked for before it has been left out.
            while (next_one := self._asked.popleft())[0] != address:
                next_one[1].cancel()
            data = next_one[1].result()
        else:
            data = self._fetch(address)
        self._usual = max(len(data), (7 * self._usual + len(data)) // 8)
        return require_content(data, may_be_empty=may_be_empty)

    def size(self, address: str) -> int:
        """The size of an object in bytes; raises the same errors as `read`."""
        try:
            return self._objects.size(_url(address))
        except NotThere as error:
            raise Refused("no such object") from error

    def _ask(self) -> None:
        most = min(_AHEAD, max(_LEAST, _AHEAD_BYTES // max(1, self._usual)))
        while len(self._asked) < most and (address := next(self._coming, None)) is not None:
            self._asked.append((address, self._threads.submit(self._fetch, address)))

    def _fetch(self, address: str) -> bytes:
        try:
            return self._objects.read(_url(address), LARGEST_FILE)
        except NotThere as error:
            raise Refused("no such object") from error


def _url(address: str) -> Url:
    try:
        return Url.parse(address)
    except UsageError as error:
        raise Refused(str(error)) from error


@contextmanager
def fetched_list(place: Path | Url) -> Iterator[tuple[Path, Url | None]]:
    """Gives the file of a list, and the folder that its paths start from if it lies in an object store.

    Raises:
        ListError: It cannot be fetched.
        PackError: It cannot be written to the folder of temporary files.
    """
    if not isinstance(place, Url):
        yield place, None
        return
    with TemporaryDirectory(prefix="packtrain-list-") as folder, closing(ObjectStore()) as objects:
        path = Path(folder, place.name)
        _fetch_list(objects, place, path)
        try:
            yield path, place.parent
        except (ListError, TooManyRejects, UsageError) as error:
            # Nobody else knows of the copy.
            raise type(error)(str(error).replace(folder, str(place.parent))) from error


def _fetch_list(objects: Objects, place: Url, path: Path) -> None:
    if not place.key:
        # The store would answer with a list of its own.
        raise ListError(f"{place} names no list. Give the address of one, such as {place / 'train.txt'}")
    try:
        data = objects.read(place, _MOST_LIST_BYTES)
    except NotThere as error:
        raise ListError(
            f"there is no list {place}. Give the address of a file with one `path label` per line; of images in an "
            "object store that no list names, write one first"
        ) from error
    with file_errors(path):
        path.write_bytes(data)
