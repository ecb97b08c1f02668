"""Folders in memory, for tests that write what is forced to the medium: on a disk most of their time goes into that."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@contextmanager
def memory_folder(otherwise: Path) -> Iterator[Path]:
    """An empty folder in /dev/shm, which is removed at the end; the other one if nothing can be written there."""
    if not os.access(_MEMORY, os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="packtrain-test-", dir=_MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(name="tmp_path")
def tmp_path_in_memory(tmp_path: Path) -> Iterator[Path]:
    """In the place of pytest's `tmp_path`: a conftest.py that imports it moves the tests beside it to memory."""
    with memory_folder(tmp_path) as folder:
        yield folder
