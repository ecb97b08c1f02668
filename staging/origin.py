"""The origin of a copy: finds it, opens its files, and reports those that are not what was packed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from packtrain._core.errors import SourceChanged, StagingError
from packtrain._core.files import file_errors
from packtrain._core.opening import open_regular

from .folder import Folder
from .inventory import holds_dataset
from .kernel import Reader
from .notes import Note, read_note, stamp_of
from .pieces import Piece
from .source import Source, SourceFile

_NOT_A_FILE: Final = {
    errno.ENOENT: "it is missing",
    errno.ENOTDIR: "it is missing",
    errno.EISDIR: "it is not a file",
    errno.EINVAL: "it is not a file",
    errno.ELOOP: "it is not a file",
}


def note_on(source: Source, stamps: Mapping[str, str]) -> Note:
    """What an entry that was copied from `source` notes about its origin.

    If `source` is itself a staged copy, its origin is where that copy came from: the copy may be evicted one day.

    Args:
        source: The dataset that was copied.
        stamps: Stamps of its files, see `stamp_of`.
    """
    noted = read_note(Folder.open(source.path))
    if noted is not None and noted.source != source.path and holds_dataset(noted.source, source.key):
        return noted
    return Note(source.path, stamps)


def load_origin(entry: Folder, key: str) -> Source:
    """Loads the dataset that an entry was copied from.

    Args:
        entry: The entry.
        key: The entry's key.

    Raises:
        StagingError: The entry names no origin, or its origin now holds another dataset.
        DatasetError: The origin is missing or damaged.
    """
    note = read_note(entry)
    if note is None:
        raise StagingError(f"{entry.path} does not say where it was copied from: evict it and stage the dataset again")
    source = Source.load(note.source)
    if source.key != key:
        raise StagingError(f"{note.source} now holds another dataset, so {entry.path} cannot be repaired from it")
    return source


@contextmanager
def open_file(folder: Path, file: SourceFile) -> Iterator[int]:
    """Opens a file for reading and checks its size. Yields the descriptor.

    Raises:
        SourceChanged: The file is missing, is not a regular file, or has another size than when it was packed.
        StagingError: The file cannot be opened.
    """
    path = file.at(folder)
    with file_errors(path, StagingError, verb="read"):
        try:
            descriptor = open_regular(path)
        except OSError as error:
            if (what := _NOT_A_FILE.get(error.errno or 0)) is None:
                raise
            raise source_changed(folder, file, what) from None
    try:
        if (bytes := os.fstat(descriptor).st_size) != file.bytes:
            raise source_changed(folder, file, f"it has {bytes} bytes, but had {file.bytes} when it was packed")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_piece(folder: Path, piece: Piece) -> Iterator[tuple[Reader, str]]:
    """Opens a piece of a file for reading; raises the same errors as `open_file`.

    Yields a reader of the piece, and the stamp that the file had before it was read.
    """
    with open_file(folder, piece.file) as descriptor:
        stamp = stamp_of(os.fstat(descriptor))
        reader = Reader(descriptor, piece.offset, piece.length)
        try:
            yield reader, stamp
        finally:
            reader.close()


def source_changed(folder: Path, file: SourceFile, what: str) -> SourceChanged:
    """The error for a file that is not what was packed; `what` describes the difference."""
    return SourceChanged(
        f"{file.at(folder)} is not what was packed: {what}. Either it was changed, or its disk returns wrong data. "
        f"Run `packtrain verify {folder}` for details, then pack it again or stage another copy",
        file=file.name,
    )
