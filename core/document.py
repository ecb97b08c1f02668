"""JSON documents that hold their own checksum.

A document is the UTF-8 text of `json.dumps(body, indent=1)` and a newline, where the last key of `body` is
`"checksum": "crc32c:<8 hex digits>"`, computed over the same text without that key. A reader computes it over the bytes
of the file, so that no change goes unnoticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, TypeVar

from crc32c import crc32c

from .errors import CorruptFile, UnsupportedVersion
from .opening import read_regular
from .problems import reading
from .typed import Mismatch, parse

T = TypeVar("T")
_END: Final = b"\n}\n"
_CHECKSUM: Final = b',\n "checksum": "crc32c:%08x"'
_TAIL_BYTES: Final = len(_CHECKSUM % 0 + _END)
MOST_BYTES: Final = 256 << 20
"""Documents that are larger are not read: the manifest of some 700,000 shards."""


def dump_document(body: dict[str, Any]) -> bytes:
    """Serialises `body` together with its checksum."""
    # A lone surrogate (a byte of a path that is not UTF-8) becomes \udcXX, which is how JSON spells it.
    text = (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    return text.removesuffix(_END) + _CHECKSUM % crc32c(text) + _END


def load_document(path: Path, *, newest: int) -> dict[str, Any]:
    """Reads and checks a document.

    Args:
        path: Path of the document.
        newest: Highest `version` of a document that the caller understands.

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
        data = read_regular(path, MOST_BYTES)
    return read_document(data, path, newest=newest)


def read_document(data: bytes, path: Path, *, newest: int) -> dict[str, Any]:
    """The same as `load_document`, for the bytes of a document that were read from `path`."""
    try:
        body = json.loads(data.decode("utf-8"))
        version = body["version"]
        if not isinstance(version, int) or isinstance(version, bool):
            raise TypeError(f"version is {version!r}")
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


def parse_document(kind: type[T], body: dict[str, Any], path: Path) -> T:
    """Makes a `kind`, a dataclass, of what `load_document` returned for `path`.

    Raises:
        CorruptFile: It does not have the form of a `kind`; the message names the key.
    """
    try:
        return parse(kind, {key: value for key, value in body.items() if key != "version"})
    except Mismatch as error:
        raise CorruptFile(f"{path} is damaged: {error}", file=path.name) from error
