"""Fetches whole objects to files. Nothing is compared with anything: that is for whoever knows what is right."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from packtrain._core.errors import NotThere, StagingError
from packtrain._core.files import file_errors

from .objects import Objects
from .urls import Url

_THREADS: Final = 8
_REQUEST: Final = 8 << 20


def download(objects: Objects, url: Url, path: Path) -> None:
    """Writes the content of an object to a file, in parts side by side.

    Raises:
        NotThere: There is no such object.
        RemoteError: It cannot be read.
        NoSpace: The disk is full.
        StagingError: The file cannot be written.
    """
    size = objects.size(url)

    def fetch(offset: int) -> None:
        with file_errors(path, StagingError):
            objects.copy_into(url, offset, min(_REQUEST, size - offset), descriptor)

    with file_errors(path, StagingError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    pool = ThreadPoolExecutor(_THREADS)
    try:
        parts = [pool.submit(fetch, offset) for offset in range(0, size, _REQUEST)]
        done = wait(parts, return_when="FIRST_EXCEPTION").done
    except BaseException:
        # Ctrl-C must not wait for a store that does not answer.
        objects.close()
        raise
    finally:
        # The number of the descriptor may be that of another file as soon as it is closed.
        pool.shutdown(cancel_futures=True)
        os.close(descriptor)
    for part in done:
        part.result()


def download_all(objects: Objects, url: Url, names: Iterable[str], folder: Path) -> list[str]:
    """Fetches objects of a folder to files of the same names. Returns the names of those that are not there."""

    def fetch(name: str) -> str | None:
        try:
            download(objects, url / name, folder / name)
        except NotThere:
            return name
        return None

    pool = ThreadPoolExecutor(_THREADS)
    try:
        return [name for name in pool.map(fetch, names) if name is not None]
    except BaseException:
        # As above: Ctrl-C comes in this thread alone.
        objects.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
