"""The two sides of a copy: opening their files, and saying what is wrong with which."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packtrain._core.errors import NoSpace, SourceChanged, StagingError
from packtrain._core.files import FULL, free_space

from .kernel import Reader
from .pieces import Piece
from .source import SourceFile


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of a file, which is made for nobody else to read if it is missing and `flags` say so."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opening(folder: Path, file: SourceFile) -> Iterator[int]:
    """A descriptor of a file that is to be read, and has the size it should have.

    Raises:
        SourceChanged: It is missing, not a file or has another size.
        StagingError: It cannot be opened.
    """
    path = folder / file.name
    with errors(path, "read"):
        try:
            # Before it is opened, as a pipe would keep us waiting.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise changed(folder, file, "it is not a file")
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise changed(folder, file, "it is missing") from None
    try:
        if (bytes := os.fstat(descriptor).st_size) != file.bytes:
            raise changed(folder, file, f"it has {bytes} bytes, and had {file.bytes} when it was packed")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def reading(folder: Path, piece: Piece) -> Iterator[Reader]:
    """A reader of a piece of the source; raises as `opening` does."""
    with opening(folder, piece.file) as descriptor:
        reader = Reader(descriptor, piece.offset, piece.length)
        try:
            yield reader
        finally:
            reader.close()


def changed(folder: Path, file: SourceFile, what: str) -> SourceChanged:
    """The error that says what is wrong with a file of the source."""
    return SourceChanged(
        f"{folder / file.name} is not what was packed: {what}. It changed since, or its disk reads it wrongly; "
        f"`packtrain verify {folder}` tells more. Pack it again, or stage another copy",
        file=file.name,
    )


def no_space(target: Path, why: str) -> NoSpace:
    """The error that says that the target is full."""
    return NoSpace(f"no space left for {target}: {why}. Make room and run the same command again")


@contextmanager
def errors(path: Path, verb: str) -> Iterator[None]:
    """Turns an error of the operating system into one that names the file and what could not be done."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise StagingError(
                f"cannot {verb} {path}: {error.strerror}. Mend it and run the same command again"
            ) from error
        raise no_space(path, f"{error.strerror}, {free_space(path.parent)} free") from error
