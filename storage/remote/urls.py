"""Addresses of objects and of folders of objects."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, unquote

from packtrain._core.arguments import path_of
from packtrain._core.errors import UsageError
from packtrain._core.paths import is_address, without_credentials
from packtrain._core.stores import KINDS, StoreKind, known_schemes

_FORM: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):/{1,3}([^/]*)/*(.*)", re.DOTALL)
_HOST: Final = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\])(:\d+)?")
_BUCKET: Final = re.compile(r"[\w.-]+")
_SIGNED: Final = re.compile(r"\?.*(sig|signature)=", re.IGNORECASE)
"""The key at the end of a signed address of a store: object keys may have question marks, too."""
_PLAIN: Final = "/~!$&'()*+,;=:@"
"""Characters that are not escaped in the path of a web address."""


def place_of(name: str, value: object) -> Path | Url:
    """A path of this machine, or an address in an object store, given as a text, a path or a `Url`.

    Raises:
        UsageError: It is something else, or the address of something that packtrain cannot read.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    return Url.parse(text) if isinstance(text, str) and is_address(text) else path_of(name, value)


@dataclass(frozen=True)
class Url(os.PathLike[str]):
    """The address of an object, or of a folder: all objects whose keys begin with it and a slash.

    Attributes:
        scheme: One of `KINDS`.
        bucket: The bucket, the container, or the host and port.
        key: The rest, without a slash at its beginning or end, and without the escapes (``%20``) of a web address;
            empty for the bucket as a whole.
    """

    scheme: str
    bucket: str
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads an address. One that went through a `Path`, which takes a slash away, is understood, too.

        Raises:
            UsageError: It is not an address of a store that packtrain can read, or it holds credentials.
        """
        found = _FORM.fullmatch(text)
        scheme = found[1].lower() if found else ""
        if found is None or scheme not in KINDS:
            shown = without_credentials(text)
            raise UsageError(f"{shown!r} is not the address of an object store: one begins with {known_schemes()}")
        web = not KINDS[scheme].writable
        bucket, key = found[2], found[3].strip("/")
        if "@" in bucket or "?" in bucket or (web and ("?" in key or "#" in key)) or _SIGNED.search(key):
            raise UsageError(
                f"this {scheme}:// address holds credentials or a query, which packtrain neither stores nor prints: "
                "leave them out, and give credentials by variables of the environment"
            )
        if not bucket:
            raise UsageError(
                f"{without_credentials(text)!r} names no bucket: give for example {scheme}://bucket/folder"
            )
        if not (_HOST if web else _BUCKET).fullmatch(bucket):
            raise UsageError(
                f"a {scheme}:// address has no {'host' if web else 'bucket'} that can be read behind the ://"
            )
        if web:
            key = unquote(key)
        if any(part in (".", "..", "") for part in key.split("/")) and key:
            raise UsageError(
                f"{without_credentials(text)!r} has an empty part, `.` or `..` between its slashes: write the address "
                "without"
            )
        return cls(scheme, bucket, key)

    def __str__(self) -> str:
        if not self.key:
            return self.base
        return f"{self.base}/{self.key if self.writable else quote(self.key, safe=_PLAIN)}"

    def __fspath__(self) -> str:
        """The same: whatever takes a text or a path takes an address as well, if it takes that of an object store."""
        return str(self)

    def __truediv__(self, name: str) -> Url:
        """The address of what is called `name` in this folder; `name` may have slashes."""
        return Url(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    def resolve(self, path: str) -> Url:
        """The address that a relative path means which starts from this folder; it may go up with `..`.

        Raises:
            UsageError: It leads out of the bucket, or is an absolute path.
        """
        parts = self.key.split("/") if self.key else []
        for part in path.split("/"):
            if path.startswith("/") or (part == ".." and not parts):
                raise UsageError(f"{path} leads out of {self.base}, starting from {self}")
            if part == "..":
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        return Url(self.scheme, self.bucket, "/".join(parts))

    @property
    def base(self) -> str:
        """The address of the bucket."""
        return f"{self.scheme}://{self.bucket}"

    @property
    def name(self) -> str:
        """The last part of the key; that of the bucket if there is none."""
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def parent(self) -> Url:
        """The folder that this lies in."""
        return Url(self.scheme, self.bucket, self.key.rpartition("/")[0])

    @property
    def kind(self) -> StoreKind:
        """The kind of store."""
        return KINDS[self.scheme]

    @property
    def writable(self) -> bool:
        """True if objects of this kind of store can be written and listed."""
        return self.kind.writable

    def require_writable(self) -> None:
        """Check that a dataset can be written here.

        Raises:
            UsageError: Objects of this kind of store can only be read.
        """
        if not self.writable:
            known = known_schemes(writable=True)
            raise UsageError(f"{self} cannot be written to: give a folder, or an address that begins with {known}")
