"""Fetches whole objects to files, without comparing them with anything: only the caller knows what is right."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from packtrain._core.errors import NotThere, StagingError
from packtrain._core.files import file_errors
from packtrain._core.opening import closing_descriptor

from .objects import Objects
from .urls import Url

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS: Final = 8
_REQUEST: Final = 8 << 20


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], objects: Objects | None = None, threads: int = _THREADS
) -> Iterator[Result]:
    """Call a function for each item side by side, because stores take long to answer. Yield the results in order.

    Args:
        function: The function.
        items: The items.
        objects: What the function asks, if that may be closed: Ctrl-C must not wait for a store that does not answer.
        threads: Number of threads.
    """
    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(function, items)
    except (KeyboardInterrupt, SystemExit):
        if objects is not None:
            objects.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def download(objects: Objects, url: Url, path: Path) -> None:
    """Write the content of an object to a file, in parts side by side.

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
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    # Closed after the threads have ended: the number may be that of another file as soon as it is closed.
    with closing_descriptor(opened) as descriptor:
        for _ in in_threads(fetch, range(0, size, _REQUEST), objects):
            pass


def download_all(objects: Objects, url: Url, names: Iterable[str], folder: Path) -> list[str]:
    """Fetch objects of a folder to files of the same names. Return the names of those that are not there."""

    def fetch(name: str) -> str | None:
        try:
            download(objects, url / name, folder / name)
        except NotThere:
            return name
        return None

    return [name for name in in_threads(fetch, names, objects) if name is not None]
