"""Indexing into a finished dataset: the same again is complete, and anything else is refused by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.shards import jpeg, npy, write_shards, write_tar
from helpers.support import encoded, picture, tree

from packtrain import index_shards
from packtrain._core.manifest import Manifest
from packtrain.errors import OutputConflict, PackError, UsageError

MASK = encoded(picture(1, 24, 16, "L"), "PNG")
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "the usual label": {"label": "cls"},
    "no label": {"label": "none"},
    "another label": {"label": "json:class"},
    "a mask by name": {"masks": ["seg"]},
    "a mask by kind": {"fields": ["seg=seg.png:mask"]},
    "the usual field": {"fields": ["text=txt"]},
    "another field": {"fields": ["caption=txt"]},
    "another kind": {"fields": ["text=txt:bytes"]},
    "bytes as found": {"fields": ["odd=odd.npy:bytes"]},
    "bytes that could be arrays": {"fields": ["emb=emb.npy:bytes"]},
    "grey": {"mode": "L"},
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with an extension of each kind; arrays that fit together, and such that do not."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(2):
        members = [("jpg", jpeg(number)), ("seg.png", MASK), ("cls", b"%d" % number), ("txt", b"x")]
        members += [("json", b'{"class": 7}'), ("emb.npy", npy(np.ones(3))), ("odd.npy", npy(np.ones((2, number + 1))))]
        write_tar(folder / f"{number}.tar", [(f"{number}.{extension}", data) for extension, data in members])
    return folder


@pytest.fixture(scope="module")
def made(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset by each of the rules."""
    folder = tmp_path_factory.mktemp("made")
    for name, options in RULES.items():
        index_shards(shards, folder / name, **options)
    return {name: folder / name for name in RULES}


def content(out: Path) -> object:
    """All that readers see of a dataset."""
    manifest = Manifest.load(out)
    index = {name: data for name, data in tree(out).items() if name.startswith("index/")}
    fields = sorted(manifest.fields, key=lambda field: field.name)
    return fields, manifest.labels, manifest.classes, index


@pytest.mark.product
@pytest.mark.parametrize("asked", RULES)
@pytest.mark.parametrize("given", RULES)
def test_rules_are_the_same_if_they_make_the_same_dataset(
    shards: Path, made: dict[str, Path], given: str, asked: str
) -> None:
    before = tree(made[given])
    # Each two rules also in parts, one way round.
    part = "1/2" if given < asked else None
    if content(made[given]) == content(made[asked]):
        report = index_shards(shards, made[given], part=part, **RULES[asked])
        assert (report.complete_before, report.indexed, report.part, report.records) == (True, 0, part, 2)
    else:
        with pytest.raises(OutputConflict, match=r"was indexed by another plan \(.* there, .* asked for"):
            index_shards(shards, made[given], part=part, **RULES[asked])
    assert tree(made[given]) == before


@pytest.mark.parametrize("part", [None, "1/1"])
def test_rules_for_what_is_not_there_are_refused(shards: Path, made: dict[str, Path], part: str | None) -> None:
    with pytest.raises(UsageError, match="no member has the extension 'jpgg'"):
        index_shards(shards, made["none"], part=part, fields=["x=jpgg"])


@pytest.mark.parametrize("part", [None, "1/2"])
def test_a_shard_that_has_changed_since_is_named(tmp_path: Path, part: str | None) -> None:
    shards, out = write_shards(tmp_path / "shards", 2), tmp_path / "out"
    index_shards(shards, out)
    os.utime(shards[1], ns=(0, 0))
    with pytest.raises(PackError, match=rf"{shards[1]} has another time .*`packtrain index --update {out}`"):
        index_shards(shards, out, part=part)
    index_shards((), out, update=True)
    assert index_shards(shards, out, part=part).complete_before
    shards[1].write_bytes(shards[1].read_bytes() + bytes(10240))
    with pytest.raises(PackError, match=rf"{shards[1]} has changed since it was indexed. Index all shards again"):
        index_shards(shards, out, part=part)
