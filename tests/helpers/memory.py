"""Folders in memory, for tests that write what is forced to the medium: on a disk most of their time goes into that."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "packtrain-testing-"


@contextmanager
def memory_folder(otherwise: Path) -> Iterator[Path]:
    """An empty folder in /dev/shm, which is removed at the end; the other one if nothing can be written there."""
    if not os.access(_MEMORY, os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=_MEMORY) as folder, _held(Path(folder)):
        yield Path(folder)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keeps others from sweeping a folder."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        yield
    finally:
        os.close(held)


def sweep_memory() -> None:
    """Removes the folders of tests that were killed: nobody holds them any more."""
    for folder in _MEMORY.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.stat().st_uid != os.getuid() or folder.stat().st_mtime > time.time() - 60:
                continue
            held = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(held)


@pytest.fixture(name="tmp_path")
def tmp_path_in_memory(tmp_path: Path) -> Iterator[Path]:
    """In the place of pytest's `tmp_path`: a conftest.py that imports it moves the tests beside it to memory."""
    with memory_folder(tmp_path) as folder:
        yield folder
