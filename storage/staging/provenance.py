"""Where an entry comes from: what it notes about that, and how the dataset is found again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from packtrain._core.errors import StagingError

from ..remote.urls import Url
from .folder import Folder
from .inventory import holds_dataset
from .notes import Note, read_note
from .source import Source


def note_on(source: Source, stamps: Mapping[str, str]) -> Note:
    """What an entry that was copied from `source` notes about its origin.

    If `source` is itself a staged copy, its origin is where that copy came from: the copy may be evicted one day.

    Args:
        source: The dataset that was copied.
        stamps: Stamps of its files, see `FileStatus`.
    """
    noted = read_note(Folder.open(source.location)) if isinstance(source.location, Path) else None
    if noted is None or noted.source == source.location:
        return Note(source.location, stamps)
    # A store is not asked: it is before the copy is evicted.
    if isinstance(noted.source, Url) or holds_dataset(noted.source, source.key):
        return noted
    return Note(source.location, stamps)


def can_link(source: Source) -> bool:
    """True if an entry that holds a part of `source` can link the rest."""
    return not source.manifest.in_store and not isinstance(note_on(source, {}).source, Url)


def load_origin(entry: Folder, key: str) -> Source:
    """Loads the dataset that an entry was copied from.

    Args:
        entry: The entry.
        key: The entry's key.

    Raises:
        StagingError: The entry names no origin, or its origin now holds another dataset.
        DatasetError: The origin is missing or damaged.
        RemoteError: The object store that it lies in does not answer as it should.
    """
    note = read_note(entry)
    if note is None:
        raise StagingError(f"{entry.path} does not say where it was copied from: evict it and stage the dataset again")
    source = Source.load(note.source)
    if source.key != key:
        raise StagingError(f"{note.source} now holds another dataset, so {entry.path} cannot be repaired from it")
    return source
