"""Puts the files of tests into memory: on a disk most of the time would go into forcing them to the medium."""

from __future__ import annotations

import copy
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
_ROOM: Final = 4 << 30


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


def use_memory() -> None:
    """Lets pytest make its folders in memory, if that has room for what the tests of a run leave there."""
    if not os.access(_MEMORY, os.W_OK):
        return
    found = os.statvfs(_MEMORY)
    # Where programs cannot be started, as by default in Docker, tests of commands and libraries fail.
    if found.f_bavail * found.f_frsize > _ROOM and not found.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", os.fspath(_MEMORY))


@pytest.fixture(scope="session")
def disk_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.TempPathFactory]:
    """For tests of what disks do: as `tmp_path_factory` of a module or conftest.py, it moves all folders to a disk."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        found = copy.copy(tmp_path_factory)
        found._basetemp = Path(folder)
        yield found
