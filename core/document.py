"""JSON documents that hold their own checksum.

A document is the UTF-8 text of `json.dumps(body, indent=1)` and a newline, where the last key of `body` is
`"checksum": "crc32c:<8 hex digits>"`, computed over the same text without that key. A reader re-serialises what it
parsed and compares the bytes, so that no change to the file goes unnoticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from .errors import CorruptFile, UnsupportedVersion
from .opening import read_regular

_END: Final = b"\n}\n"
MOST_BYTES: Final = 256 << 20
"""Documents that are larger are not read: the manifest of some 700,000 shards."""


def dump_document(body: dict[str, Any]) -> bytes:
    """Serialises `body` together with its checksum."""
    # The same as `_text` of a body with the checksum, but serialised only once: this is on the way to every dataset.
    text = _text(body)
    return text.removesuffix(_END) + b',\n "checksum": "crc32c:%08x"' % crc32c(text) + _END


def _text(body: dict[str, Any]) -> bytes:
    # A lone surrogate (a byte of a path that is not UTF-8) becomes \udcXX, which is how JSON spells it.
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def load_document(path: Path, *, newest: int) -> dict[str, Any]:
    """Reads and checks a document.

    Args:
        path: Path of the document.
        newest: Highest `version` of a document that the caller understands.

    Returns:
        The body, without its checksum.

    Raises:
        FileNotFoundError: There is no such file.
        UnsupportedVersion: The version of the document is higher than `newest`.
        CorruptFile: Anything else is wrong with the document.
    """
    return read_document(read_regular(path, MOST_BYTES), path, newest=newest)


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
    if dump_document(body) != data:
        raise CorruptFile(f"{path} is damaged: its content does not match its own checksum", file=path.name)
    return body  # type: ignore[no-any-return]
