"""Reads files of a list that lie in an object store, many at a time: a store takes long to answer, not to deliver."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

from packtrain._core.errors import NotThere, UsageError
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.urls import Url

from .sources import LARGEST_FILE, Refused, require_content

_THREADS: Final = 16
_AHEAD: Final = 48
"""Objects that are asked for before they are needed, at most."""
_LEAST: Final = 8
"""So many even if they are large: the fields of a sample or two."""
_AHEAD_BYTES: Final = 128 << 20
"""About so many bytes of them, at most."""


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
        """How large the next objects may be, in bytes: as the last ones were."""

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
