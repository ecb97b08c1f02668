"""The origin of a copy: finds it, opens its files, and reports those that are not what was packed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packtrain._core.errors import SourceChanged, StagingError
from packtrain._core.files import file_errors

from .inventory import holds_dataset
from .kernel import Reader
from .notes import read_note
from .pieces import Piece
from .source import Source, SourceFile


def origin_of(source: Source) -> Path:
    """The folder that a new entry names as its origin.

    If `source` is itself a staged copy, this is where that copy came from: the copy may be evicted one day.
    """
    noted = read_note(source.path)
    return noted if noted is not None and holds_dataset(noted, source.key) else source.path


def load_origin(entry: Path, key: str) -> Source:
    """Loads the dataset that an entry was copied from.

    Args:
        entry: The entry's folder.
        key: The entry's key.

    Raises:
        StagingError: The entry names no origin, or its origin now holds another dataset.
        DatasetError: The origin is missing or damaged.
    """
    noted = read_note(entry)
    if noted is None:
        raise StagingError(f"{entry} does not say where it was copied from: evict it and stage the dataset again")
    source = Source.load(noted)
    if source.key != key:
        raise StagingError(f"{noted} now holds another dataset, so {entry} cannot be repaired from it")
    return source


@contextmanager
def open_file(folder: Path, file: SourceFile) -> Iterator[int]:
    """Opens a file for reading and checks its size. Yields the descriptor.

    Raises:
        SourceChanged: The file is missing, is not a regular file, or has another size than when it was packed.
        StagingError: The file cannot be opened.
    """
    path = folder / file.name
    with file_errors(path, StagingError, verb="read"):
        try:
            # Checked before opening, because opening a pipe would block.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise source_changed(folder, file, "it is not a file")
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise source_changed(folder, file, "it is missing") from None
    try:
        if (bytes := os.fstat(descriptor).st_size) != file.bytes:
            raise source_changed(folder, file, f"it has {bytes} bytes, but had {file.bytes} when it was packed")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_piece(folder: Path, piece: Piece) -> Iterator[Reader]:
    """Opens a piece of a file for reading; raises the same errors as `open_file`."""
    with open_file(folder, piece.file) as descriptor:
        reader = Reader(descriptor, piece.offset, piece.length)
        try:
            yield reader
        finally:
            reader.close()


def source_changed(folder: Path, file: SourceFile, what: str) -> SourceChanged:
    """The error for a file that is not what was packed; `what` describes the difference."""
    return SourceChanged(
        f"{folder / file.name} is not what was packed: {what}. Either it was changed, or its disk returns wrong data. "
        f"Run `packtrain verify {folder}` for details, then pack it again or stage another copy",
        file=file.name,
    )
