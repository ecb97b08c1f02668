"""Folders for growing caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.fillers import cleared


@pytest.fixture
def root(memory_path: Path) -> Iterator[Path]:
    """A folder for a cache; whoever fills it is ended after the test."""
    with cleared(memory_path / "cache"):
        yield memory_path / "cache"
