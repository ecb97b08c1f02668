"""Fixtures for tests of what works in a folder and at an address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.memory_objects import MemoryObjects

from packtrain._packer import merge_output, object_workplace


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryObjects]:
    """A store in memory, in which all is read and written that lies at an address, and an empty folder for spools."""
    (tmp_path / "spools").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spools"))
    objects = MemoryObjects()
    for module in (object_workplace, merge_output):
        monkeypatch.setattr(module, "ObjectStore", lambda: objects)
    yield objects
    assert not list((tmp_path / "spools").iterdir())
