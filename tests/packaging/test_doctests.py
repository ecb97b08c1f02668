"""The examples in docstrings do what they say. Not by --doctest-modules, which loads each module a second time."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join((f"packtrain._{folder}", *path.relative_to(ROOT / folder).with_suffix("").parts)).removesuffix(".__init__")
    for folder in ("core", "codec", "formats", "storage", "readers", "packer", "growing", "extras", "cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed
