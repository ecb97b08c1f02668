"""Packing a dataset may be killed at any moment, as packing a list may: the same call gives the very same bytes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.faults.campaign import Campaign, Program
from helpers.faults.cases import CLEAN_ERROR, assert_completed, assert_sound_if_finished
from helpers.faults.harness import Action, FaultServer
from helpers.fields import COLUMNS, field_set
from helpers.support import packed, tree

from packtrain import PackOptions, pack
from packtrain._core.options import StoreOptions

PACK_AGAIN = f"""
from packtrain import PackOptions, StoreOptions, pack
from packtrain._core.errors import PacktrainError

store = StoreOptions("raw", resize="8x8")
try:
    pack(args["source"], args["out"], PackOptions(args["format"], store, shard_size=args["shard_bytes"]))
except PacktrainError as error:
    print(f"{{type(error).__name__}}: {{error}}")
    raise SystemExit({CLEAN_ERROR}) from error
"""
SHARD_BYTES = 800
FIELDS = replace(COLUMNS, fields=tuple(field for field in COLUMNS.fields if field.name == "seg"))
"""A mask follows its image; with more fields, only the index has more files."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of images and masks, with a reject."""
    folder = tmp_path_factory.mktemp("source")
    listing = field_set(folder / "files", 6)
    return packed(listing, folder / "dataset", "lmdb", max_rejects="1", columns=FIELDS)


@pytest.mark.complete
@pytest.mark.parametrize(
    "format_name", ["tar", *(pytest.param(name, marks=pytest.mark.stress) for name in ("hdf5", "lmdb"))]
)
def test_killed_anywhere_and_run_again_gives_the_same_bytes(
    packer: FaultServer, source: Path, memory_path: Path, campaign: Campaign, format_name: str
) -> None:
    before, out = tree(source), memory_path / "out"
    args = {"source": os.fspath(source), "out": os.fspath(out), "format": format_name, "shard_bytes": SHARD_BYTES}
    program = Program(packer, PACK_AGAIN, args, out)
    calls = program.undisturbed()
    expected = tree(out)
    assert len(list(out.glob("*-0*"))) > 1, sorted(expected)
    options = PackOptions(format_name, StoreOptions("raw", resize="8x8"), shard_size=SHARD_BYTES)
    # The writers are those of `pack`, which dies at each of their calls elsewhere.
    for _ in campaign(program, calls, Action.KILL, every=8):
        assert_sound_if_finished(out)
        assert_completed(out, expected, lambda out: pack(source, out, options))
    assert tree(source) == before
