"""Packing a dataset may be killed at any moment, as packing a list may: the same call gives the very same bytes."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.faults.cases import (
    CLEAN_ERROR,
    DONE,
    assert_same,
    assert_sound_if_finished,
    finished_shards,
    renewed,
    written,
)
from helpers.faults.harness import Action, FaultPoints, FaultServer
from helpers.fields import COLUMNS, field_set
from helpers.support import packed, tree

from packtrain import PackOptions, pack
from packtrain._core.options import StoreOptions

PACK_AGAIN = f"""
from packtrain import PackOptions, StoreOptions, pack
from packtrain._core.errors import PacktrainError

store = StoreOptions("raw", resize="8x8")
try:
    pack(args["source"], args["out"], PackOptions(args["format"], store, shard_bytes=args["shard_bytes"]))
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


def arguments(source: Path, out: Path, format: str) -> dict[str, Any]:
    return {"source": os.fspath(source), "out": os.fspath(out), "format": format, "shard_bytes": SHARD_BYTES}


@pytest.mark.complete
@pytest.mark.parametrize(
    "format_name", ["tar", *(pytest.param(name, marks=pytest.mark.stress) for name in ("hdf5", "lmdb"))]
)
def test_killed_anywhere_and_run_again_gives_the_same_bytes(
    packer: FaultServer, source: Path, memory_path: Path, fault_points: FaultPoints, complete: bool, format_name: str
) -> None:
    before, model = tree(source), memory_path / "undisturbed"
    outcome = packer.run(PACK_AGAIN, arguments(source, model, format_name), model)
    assert outcome.returncode == DONE, outcome.output
    expected = tree(model)
    assert len(list(model.glob("*-0*"))) > 1, sorted(expected)
    options = PackOptions(format_name, StoreOptions("raw", resize="8x8"), shard_bytes=SHARD_BYTES)
    # The writers are those of `pack`, which dies at each of their calls elsewhere.
    for case in fault_points(outcome.calls, Action.KILL)[:: 2 if complete else 5]:
        out = renewed(memory_path / "out")
        died = packer.run(PACK_AGAIN, arguments(source, out, format_name), out, *case)
        assert died.returncode == -signal.SIGKILL, case
        assert_sound_if_finished(out, case)
        finished = finished_shards(out)
        report = pack(source, out, options)
        assert report.complete_before or report.resumed >= len(finished), case
        assert {name: written(out / name) for name in finished} == finished, case
        assert_same(out, expected, case)
    assert tree(source) == before
