"""Fixtures for tests of the loader."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """The test leaves no worker behind, alive or as a zombie."""
    yield
    if multiprocessing.active_children():
        gc.collect()  # a loader in a circle
    assert multiprocessing.active_children() == []
