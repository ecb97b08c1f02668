"""An object store in memory, whose answers to writes go wrong as tests ask for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from crc32c import crc32c
from typing_extensions import override

from packtrain._core.errors import NotThere, RemoteError
from packtrain._storage.remote.objects import Head, ListedObject, Objects
from packtrain._storage.remote.urls import Url


class KilledError(BaseException):
    """The process that asks is gone."""


class MemoryObjects(Objects):
    """Objects by address.

    Attributes:
        objects: Their content.
        written: When objects were written, in seconds since 1970; of those that are not named, now.
        changes: How many requests have changed something, or were to.
        fault: Says what becomes of a request that writes, by its address and number: ``"kill"`` before it is carried
            out; ``"lost"``, an error after it was; ``"refused"``, an error before; ``"denied"``, no, after it was;
            ``"ignoring"``, whatever is there is written again; anything else: nothing.
    """

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.written: dict[str, float] = {}
        self.changes = 0
        self.fault: Callable[[Url, int], str] = lambda url, number: ""
        self._dead = False
        self._lock = threading.Lock()

    def put(self, url: Url, files: dict[str, bytes]) -> str:
        """Puts the files of a folder to an address, and returns that."""
        self.objects |= {f"{url}/{name}": data for name, data in files.items()}
        return str(url)

    def under(self, url: Url) -> dict[str, bytes]:
        """The files of the folder at an address, by their names."""
        start = f"{url}/"
        return {key.removeprefix(start): data for key, data in self.objects.items() if key.startswith(start)}

    def revive(self) -> None:
        """Lets another process ask, after one that was killed, and nothing go wrong."""
        self.fault, self._dead = lambda url, number: "", False

    def age(self, seconds: float) -> None:
        """Lets time pass."""
        self.written = {name: self.written.get(name, time.time()) - seconds for name in self.objects}

    def _found(self, url: Url) -> bytes:
        if self._dead:
            raise KilledError
        try:
            return self.objects[str(url)]
        except KeyError:
            raise NotThere(f"{url} is not there") from None

    @override
    def head(self, url: Url) -> Head:
        return Head(len(self._found(url)), "")

    @override
    def read(self, url: Url, most: int) -> bytes:
        assert len(self._found(url)) <= most
        return self._found(url)

    @override
    def read_into(self, url: Url, offset: int, view: memoryview) -> None:
        view[:] = self._found(url)[offset : offset + len(view)]

    @override
    def copy_into(self, url: Url, offset: int, size: int, descriptor: int) -> int:
        data = self._found(url)[offset : offset + size]
        os.pwrite(descriptor, data, offset)
        return int(crc32c(data))

    @override
    def checksum(self, url: Url) -> int:
        return int(crc32c(self._found(url)))

    @override
    def list(self, url: Url) -> Iterator[ListedObject]:
        for name, data in sorted(self.objects.items()):
            if name.startswith(f"{url}/"):
                yield ListedObject(
                    name.removeprefix(f"{url}/"), len(data), int(self.written.get(name, time.time()) * 1e9)
                )

    @override
    def write(self, url: Url, data: bytes, *, new: bool = False) -> bool:
        fault = self._next(url)
        with self._lock:
            if new and str(url) in self.objects and fault != "ignoring":
                return False
            self.objects[str(url)] = data
            self.written[str(url)] = time.time()
        if fault == "lost":
            raise RemoteError(f"{url}: the server breaks off")
        return fault != "denied"

    @override
    def upload(self, url: Url, path: Path) -> None:
        self.write(url, path.read_bytes())

    @override
    def remove(self, url: Url) -> None:
        self._next(url)
        self.objects.pop(str(url), None)

    @override
    def close(self) -> None:
        pass

    def _next(self, url: Url) -> str:
        with self._lock:
            self.changes += 1
            number = self.changes
        # Without the lock: others may write meanwhile.
        fault = self.fault(url, number)
        self._dead = self._dead or fault == "kill"
        if self._dead:
            raise KilledError
        if fault == "refused":
            raise RemoteError(f"{url}: the server answers 500")
        return fault
