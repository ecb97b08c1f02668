"""Hostile tar archives end in an error, or in the members that tarfile finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import archives


@pytest.mark.complete
def test_some_hostile_archives(memory_path: Path) -> None:
    found = archives.run(memory_path, 400)
    assert not found.failures, "\n".join(found.failures[:10])
    assert found.refused > 100 and found.read > 40


@pytest.mark.stress
def test_all_hostile_archives(memory_path: Path) -> None:
    found = archives.run(memory_path, 20_000, seed=1)
    assert not found.failures, "\n".join(found.failures[:10])
