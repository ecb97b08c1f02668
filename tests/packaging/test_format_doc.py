"""The pages of the format and the code say the same."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from helpers.support import FORMATS

from packtrain._core import generations
from packtrain._core.generations import CacheInfo, Generation, index_bytes, index_dtype
from packtrain._core.index import ROW_COLUMNS
from packtrain._core.manifest import CACHE, VERSION, FieldInfo, Link, Manifest
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import Field, Schema, image_field
from packtrain._packer.plan import Plan

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "\n".join(path.read_text() for path in sorted(DOCS.glob("format*.md")))


@pytest.mark.parametrize("name", FORMATS)
def test_the_specification_of_a_container_is_its_readers_docstring(name: str) -> None:
    docstring = importlib.import_module(f"packtrain._formats.{name}").__doc__
    assert docstring is not None
    assert docstring.strip() in TEXT


def test_every_key_and_column_is_specified() -> None:
    assert f"versions 1 and {VERSION}" in (DOCS / "format.md").read_text().splitlines()[0]
    for name in (field.name for cls in (Manifest, Plan, FieldInfo, Link) for field in fields(cls)):
        assert f"`{name}`" in TEXT, name
    for name, dtype in (ROW_COLUMNS | image_field(StoreOptions()).columns()).items():
        assert f"`{name}` " in TEXT and f"`{dtype}`" in TEXT, name


CACHES = (DOCS / "format-growing-caches.md").read_text()


def test_every_file_and_key_of_a_cache_is_specified() -> None:
    names = (generations.SHARDS, generations.GENERATIONS, generations.READERS, generations.TEMPORARY)
    for name in (
        *(f"\n{name}/" for name in names),
        CACHE,
        generations.STATUS,
        generations.LOG,
    ):
        assert name in CACHES, name
    for kind in (CacheInfo, Generation):
        table = CACHES[CACHES.index("| key of cache" if kind is CacheInfo else "| key of a generation") :]
        specified = re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.MULTILINE)
        assert specified == ["version", *(field.name for field in fields(kind))]


def test_the_index_of_a_shard_is_specified() -> None:
    table = CACHES[CACHES.index("| column | type |") :].partition("\n\n")[0].replace("\\|", "|")
    rows = re.findall(r"^\| (`.*?`) \| `(.*?)`", table, re.MULTILINE)
    specified = {name: dtype for names, dtype in rows for name in re.findall(r"`(\w+)`", names)}
    mask = Field("seg", "mask", encoding="png", dtype="|u1")
    for labels in ("int", "int*3", "float", "float*3", "none"):
        dtype = index_dtype(Schema((image_field(StoreOptions()), mask), LabelSpec.parse(labels)))
        # In the words of the document: larger values first, among equals in this order, and nothing between them.
        order = ["number", *(() if labels == "none" else ("label",))]
        order += [*image_field(StoreOptions()).columns(), *mask.columns()]
        expected = {name: dtype[name].base.str for name in order}
        assert list(dtype.names or ()) == sorted(order, key=lambda name: -dtype[name].base.itemsize)
        at = 0
        for name in dtype.names or ():
            assert dtype.fields is not None and dtype.fields[name][1] == at
            at += dtype[name].itemsize
        assert dtype.itemsize == -(-at // 8) * 8
        if labels.startswith("float"):
            assert expected.pop("label") == "<f4"
        assert {name.removeprefix("field.seg."): kind for name, kind in expected.items()}.items() <= specified.items()
        start = index_bytes(np.zeros(5, dtype))
        assert start[:8] == b"\x93NUMPY\x01\x00" and len(start) % 64 == (5 * dtype.itemsize) % 64
        assert start[10:].startswith(
            b"{'descr': %s, 'fortran_order': False, 'shape': (5,), } " % repr(dtype.descr).encode()
        )
