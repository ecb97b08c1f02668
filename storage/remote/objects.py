"""The interface to object stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from packtrain._core.errors import MissingDependency
from packtrain._core.installing import extra_command

from .urls import Url


def not_installed() -> MissingDependency:
    """Return the error for a missing obstore."""
    return MissingDependency(f"object stores are read by obstore, which is not installed: `{extra_command('remote')}`")


class ListedObject(NamedTuple):
    """An object in a folder.

    Attributes:
        name: Its address relative to that of the folder; it may have slashes.
        bytes: Its size.
        modified_ns: Time of its last change, in nanoseconds since 1970; 0 if nobody knows.
    """

    name: str
    bytes: int
    modified_ns: int = 0


class Head(NamedTuple):
    """Properties of an object that a store gives without sending the object.

    Attributes:
        bytes: Its size.
        stamp: A text that changes whenever the object does; empty if the store says nothing to tell it by.
        modified_ns: Time of its last change, in nanoseconds since 1970.
        etag: Its entity tag; empty if there is none, or one that may stay when bytes change.
    """

    bytes: int
    stamp: str
    modified_ns: int = 0
    etag: str = ""


class Objects(Protocol):
    """Reads and writes objects. Every member may be called from several threads at once.

    Failures that may pass are tried again a few times, waiting longer each time. What arrives has the right length; its
    content is for the caller to check.

    Every member raises RemoteError: NotThere if there is no such object or bucket, Denied if the credentials do not
    allow it, and RemoteError itself if the store does not answer as it should. No message holds a credential.
    """

    def size(self, url: Url) -> int:
        """Return the size of an object in bytes."""
        return self.head(url).bytes

    def head(self, url: Url) -> Head:
        """Return the properties of an object."""

    def read(self, url: Url, most: int) -> bytes:
        """Read a whole object of at most `most` bytes."""

    def read_into(self, url: Url, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes of an object from `offset` on."""

    def read_range(self, url: Url, offset: int, size: int) -> memoryview:
        """Read `size` bytes of an object from `offset` on, into memory of their own."""
        view = memoryview(bytearray(size))
        self.read_into(url, offset, view)
        return view

    def copy_into(self, url: Url, offset: int, size: int, descriptor: int) -> int:
        """Write `size` bytes of an object from `offset` on to an open file, at the same offset.

        Returns:
            Their crc32c, as they arrived.

        Raises:
            OSError: The file cannot be written.
        """

    def checksum(self, url: Url) -> int:
        """Read a whole object and return its crc32c."""

    def list(self, url: Url) -> Iterator[ListedObject]:
        """List the objects in a folder and its subfolders."""

    def write(self, url: Url, data: bytes, *, new: bool = False) -> bool:
        """Write a small object.

        Args:
            url: Its address.
            data: Its content.
            new: True to leave one that is there as it is. Of several that try this at once, one succeeds.

        Returns:
            False if one was there and was to be left.
        """

    def upload(self, url: Url, path: Path) -> None:
        """Write a file as an object, which is there when all of it has arrived, not before.

        Raises:
            OSError: The file cannot be read.
        """

    def remove(self, url: Url) -> None:
        """Remove an object, if it is there."""

    def close(self) -> None:
        """Release connections and processes."""
