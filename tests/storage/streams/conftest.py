"""Fixtures: remote datasets, small chunks, and the end of fetchers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.local_objects import STORE
from helpers.streaming import Remote, end_fetchers, remote_in

from packtrain._storage.streams import cutting


@pytest.fixture
def remote(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """An empty store, and a folder for caches. Fetchers that are left end with the test."""
    monkeypatch.setenv(STORE, "")
    with remote_in(memory_path) as found:
        yield found


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of some kilobytes."""
    monkeypatch.setattr(cutting, "ENOUGH", 12_000)
    monkeypatch.setattr(cutting, "MOST", 16_000)


@pytest.fixture
def mounted(mounted: Callable[[str], Path]) -> Iterator[Callable[[str], Path]]:
    """As everywhere; fetchers that are left there end with the test."""
    points: list[Path] = []

    def mount(options: str) -> Path:
        points.append(mounted(options))
        return points[-1]

    yield mount
    for point in points:
        end_fetchers(point)
