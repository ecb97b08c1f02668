"""What staging has to know of the bounded caches of remote datasets that lie among its copies.

What is in them is the business of `packtrain._storage.streams`. Here they are folders that take space, have a lease and
a budget, and can be evicted as a whole at any time that nobody uses them: what they hold comes from an object store.
"""

from __future__ import annotations

from typing import Final

from packtrain._core.document import dump_document, read_document
from packtrain._core.errors import CorruptFile, UnsupportedVersion, UsageError

from ..remote.urls import Url
from .folder import Folder

STREAM: Final = ".stream"
"""What the keys of caches end in."""
ORIGIN: Final = "origin.json"
"""What a cache has in place of a note: where its dataset comes from, without credentials."""
STREAMED: Final = "dataset"
"""The folder in a cache that holds the dataset without its shards."""
_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 16


def write_origin(entry: Folder, url: Url) -> None:
    """Writes into a cache where its dataset comes from."""
    entry.write(ORIGIN, dump_document({"version": _VERSION, "url": str(url)}))


def read_origin(entry: Folder) -> Url | None:
    """Where the dataset of a cache comes from; None if nothing sound says so."""
    try:
        body = read_document(entry.read(ORIGIN, _MOST_BYTES), entry.path / ORIGIN, newest=_VERSION)
        return Url.parse(body["url"])
    except (OSError, CorruptFile, UnsupportedVersion, UsageError, KeyError, TypeError):
        return None
