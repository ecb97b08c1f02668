"""JSON documents that hold their own checksum.

A document is the UTF-8 text of `json.dumps(body, indent=1)` and a newline, where the last key of `body` is
`"checksum": "crc32c:<8 hex digits>"`, computed over the same text without that key. A reader computes it over the bytes
of the file, so that no change goes unnoticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from crc32c import crc32c

from .errors import CorruptFile, UnsupportedVersion
from .opening import read_regular
from .problems import reading
from .typed import Mismatch, UnknownKey, parse

T = TypeVar("T")
_ADDITION: Final = "x-"
_END: Final = b"\n}\n"
_CHECKSUM: Final = b',\n "checksum": "crc32c:%08x"'
_TAIL_BYTES: Final = len(_CHECKSUM % 0 + _END)
MOST_BYTES: Final = 256 << 20
"""Documents that are larger are not read: the manifest of some 700,000 shards."""


class Named(Protocol):
    """Path of a document, or address of an object, for messages."""

    @property
    def name(self) -> str:
        """Its last part."""


def dump_document(body: dict[str, Any]) -> bytes:
    """Serialises `body` together with its checksum."""
    # A lone surrogate (a byte of a path that is not UTF-8) becomes \udcXX, which is how JSON spells it.
    text = (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    return text.removesuffix(_END) + _CHECKSUM % crc32c(text) + _END


def load_document(path: Path, *, newest: int, most: int = MOST_BYTES, below: Path | None = None) -> dict[str, Any]:
    """Reads and checks a document.

    Args:
        path: Path of the document.
        newest: Highest `version` of a document that the caller understands.
        most: The most bytes that it may have.
        below: Folder below which no part of `path` may be a link; None: links are followed.

    Returns:
        The body, without its checksum. Its values may be of any kind: `parse_document` checks them.

    Raises:
        FileNotFoundError: There is no such file.
        NotADirectoryError: Its folder is not a folder.
        UnsupportedVersion: The version of the document is higher than `newest`.
        UnreadableFile: It cannot be read.
        CorruptFile: Anything else is wrong with the document.
    """
    with reading(path, missing=False):
        data = read_regular(path, most, below=below)
    return read_document(data, path, newest=newest)


def read_document(data: bytes, path: Named, *, newest: int) -> dict[str, Any]:
    """The same as `load_document`, for the bytes of a document that were read from `path`."""
    try:
        body = json.loads(data.decode("utf-8"))
        version = body["version"]
        if not isinstance(version, int) or isinstance(version, bool):
            raise TypeError(f"version is a {type(version).__name__}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFile(f"{path} is damaged: not a packtrain document ({error})", file=path.name) from error
    if version > newest:
        raise UnsupportedVersion(
            f"{path} has version {version}; this packtrain reads up to {newest}. Upgrade: pip install -U packtrain",
            file=path.name,
        )
    body.pop("checksum", None)
    # Not by serialising the body again, which takes ten times as long as all else: this is on the way to every dataset.
    rest, tail = memoryview(data)[:-_TAIL_BYTES], data[-_TAIL_BYTES:]
    if tail != _CHECKSUM % crc32c(_END, crc32c(rest)) + _END:
        raise CorruptFile(f"{path} is damaged: its content does not match its own checksum", file=path.name)
    return body  # type: ignore[no-any-return]


def parse_document(kind: type[T], body: dict[str, Any], path: Named) -> T:
    """Makes a `kind`, a dataclass, of what `load_document` returned for `path`.

    From version 2 on, keys that begin with ``x-`` are ignored: a later packtrain may add them, and whoever does not
    know them misses nothing. Any other key that is unknown says something that has to be understood.

    Raises:
        CorruptFile: It does not have the form of a `kind`; the message names the key.
        UnsupportedVersion: It has a key, from version 2 on, that this packtrain does not know.
    """
    known = {key: value for key, value in body.items() if key != "version"}
    extensible = body["version"] > 1
    try:
        return parse(kind, _without_additions(known) if extensible else known)
    except Mismatch as error:
        if extensible and isinstance(error, UnknownKey):
            raise UnsupportedVersion(
                f"{path}: {error}, so it was written by a newer packtrain. Upgrade: pip install -U packtrain",
                file=path.name,
            ) from error
        raise CorruptFile(f"{path} is damaged: {error}", file=path.name) from error
    except RecursionError as error:
        raise CorruptFile(f"{path} is damaged: it is nested too deeply", file=path.name) from error


def _without_additions(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_additions(item) for key, item in value.items() if not key.startswith(_ADDITION)}
    return [_without_additions(item) for item in value] if isinstance(value, list) else value
