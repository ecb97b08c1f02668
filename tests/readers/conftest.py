"""Fixtures for tests of the loader."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """The test leaves no worker behind, alive or as a zombie."""
    yield
    if multiprocessing.active_children():
        gc.collect()  # a loader in a circle
    assert multiprocessing.active_children() == []


@pytest.fixture(scope="session")
def checkpoint() -> Any:
    """torch.distributed.checkpoint, imported where it is needed: that takes a second and 50 MB, which forks copy."""
    return import_module("torch.distributed.checkpoint")
