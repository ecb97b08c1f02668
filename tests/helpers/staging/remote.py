"""An object store that is a folder, with faults that a test asks for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from crc32c import crc32c
from typing_extensions import override

from packtrain._core.errors import NotThere, RemoteError
from packtrain._storage.remote import client
from packtrain._storage.remote.objects import Head, ListedObject, Objects
from packtrain._storage.remote.urls import Url

if TYPE_CHECKING:
    import pytest  # slow, and not for the processes that fetch

BUCKET = "s3://bucket"


class FolderObjects(Objects):
    """Buckets are folders in a folder.

    Attributes:
        requests: What was asked for: the name of the member, and the key.
        fault: Called with the same before anything is answered; what it raises is the answer.
        lists: True for a store that lists its objects, as not every one does.
        spoil: Called with the key, the offset and the bytes that were read, which it may change.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lists = False
        self.requests: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], None] = lambda member, key: None
        self.spoil: Callable[[str, int, memoryview], None] = lambda key, offset, view: None
        self._lock = threading.Lock()

    def path(self, url: Url | str) -> Path:
        """The file with the content of an object."""
        url = Url.parse(str(url))
        return self.folder / url.bucket / url.key

    def asked(self, member: str) -> list[str]:
        """The keys that a member was called with."""
        return [key for name, key in self.requests if name == member]

    @override
    def head(self, url: Url) -> Head:
        path = self.found("head", url)
        found = path.stat()
        return Head(found.st_size, f"{found.st_size}:{found.st_ino}:{found.st_mtime_ns}:{found.st_ctime_ns}")

    @override
    def read(self, url: Url, most: int) -> bytes:
        data = bytearray(self.found("read", url).read_bytes())
        assert len(data) <= most
        self.spoil(url.key, 0, memoryview(data))
        return bytes(data)

    @override
    def read_into(self, url: Url, offset: int, view: memoryview) -> None:
        with self.found("read_into", url).open("rb") as file:
            file.seek(offset)
            data = bytearray(file.read(len(view)))
        self.spoil(url.key, offset, memoryview(data))
        if len(data) < len(view):
            raise RemoteError(f"{url}: {len(data)} bytes arrived of {len(view)}")
        view[:] = data

    @override
    def copy_into(self, url: Url, offset: int, size: int, descriptor: int) -> int:
        data = bytearray(size)
        self.read_into(url, offset, memoryview(data))
        assert os.pwrite(descriptor, data, offset) == size
        return crc32c(data)

    @override
    def checksum(self, url: Url) -> int:
        return crc32c(self.found("checksum", url).read_bytes())

    @override
    def list(self, url: Url) -> Iterator[ListedObject]:
        assert self.lists, "not every store can list"
        folder = self.path(url)
        for path in folder.rglob("*"):
            if path.is_file():
                yield ListedObject(str(path.relative_to(folder)), path.stat().st_size)

    @override
    def write(self, url: Url, data: bytes, *, new: bool = False) -> bool:
        raise AssertionError("staging only reads")

    @override
    def upload(self, url: Url, path: Path) -> None:
        raise AssertionError("staging only reads")

    @override
    def remove(self, url: Url) -> None:
        raise AssertionError("staging only reads")

    @override
    def close(self) -> None:
        return

    def found(self, member: str, url: Url) -> Path:
        with self._lock:
            self.requests.append((member, url.key))
        self.fault(member, url.key)
        path = self.path(url)
        if not path.is_file():
            raise NotThere(f"{url} is not there")
        return path


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FolderObjects:
    """Makes staging read object stores from a folder, in this process."""
    objects = FolderObjects(folder)
    monkeypatch.setattr(client, "ObjectStore", lambda **_: objects)
    return objects
