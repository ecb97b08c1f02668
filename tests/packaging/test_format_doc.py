"""docs/format.md and the code say the same."""

from __future__ import annotations

import importlib
from dataclasses import fields
from pathlib import Path

import pytest
from helpers.support import FORMATS

from packtrain._core.index import ROW_COLUMNS
from packtrain._core.manifest import VERSION, FieldInfo, Link, Manifest
from packtrain._core.options import StoreOptions
from packtrain._core.schema import image_field
from packtrain._packer.plan import Plan

TEXT = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


@pytest.mark.parametrize("name", FORMATS)
def test_the_specification_of_a_container_is_its_readers_docstring(name: str) -> None:
    docstring = importlib.import_module(f"packtrain._readers.formats.{name}").__doc__
    assert docstring is not None
    assert docstring.strip() in TEXT


def test_every_key_and_column_is_specified() -> None:
    assert f"versions 1 and {VERSION}" in TEXT.splitlines()[0]
    for name in (field.name for cls in (Manifest, Plan, FieldInfo, Link) for field in fields(cls)):
        assert f"`{name}`" in TEXT, name
    for name, dtype in (ROW_COLUMNS | image_field(StoreOptions()).columns()).items():
        assert f"`{name}` " in TEXT and f"`{dtype}`" in TEXT, name
