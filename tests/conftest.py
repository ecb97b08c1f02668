"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import FORMATS, image_set


@pytest.fixture(params=FORMATS)
def format_name(request: pytest.FixtureRequest) -> str:
    """Every container format in turn."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of twelve JPEGs; not to be changed."""
    return image_set(tmp_path_factory.mktemp("images"))
