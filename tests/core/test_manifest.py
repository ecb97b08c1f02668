"""Manifests of version 2: what they hold survives, and what they may not hold is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.damage import forge

from packtrain._core.manifest import FieldInfo, FileInfo, Link, Manifest, ShardInfo
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import RESERVED, Field, Schema, check_name, image_field
from packtrain.errors import CorruptFile, UnsupportedVersion, UsageError

IMAGE = FieldInfo.of(image_field(StoreOptions()))
FIELDS = (
    IMAGE,
    FieldInfo.of(Field("seg", "mask", encoding="png", dtype="<u2", classes=("sky", "road")), bytes=9, maximum=9),
    FieldInfo.of(Field("boxes", "array", optional=True, dtype="<f4", shape=(None, 4)), bytes=0, maximum=0, missing=3),
)
ALONE = Manifest(
    name="t",
    format="tar",
    fields=(IMAGE,),
    labels=LabelSpec(),
    classes=None,
    records=3,
    lines=3,
    rejects=0,
    duplicates=0,
    plan_sha256="0" * 64,
    written_by="a test",
    rejects_file=FileInfo("rejects.jsonl", 0, 0),
    columns=(),
    shards=(ShardInfo("t-000000.tar", 4, 5, 3),),
)
LINKED = replace(ALONE, base="../shards", shards=(ShardInfo("a-b.tar", 4, 5, 3, (), Link("x/a b.tar", -7)),))


def loaded(folder: Path, manifest: Manifest) -> Manifest:
    (folder / "manifest.json").write_bytes(manifest.dump())
    return Manifest.load(folder)


def forged(folder: Path, manifest: Manifest, change: Callable[[Any], object]) -> Manifest:
    """Loads a manifest that was changed, and has the checksum of what it is now."""
    (folder / "manifest.json").write_bytes(manifest.dump())
    forge(folder / "manifest.json", change)
    return Manifest.load(folder)


@pytest.mark.parametrize(
    ("manifest", "version"),
    [
        pytest.param(ALONE, 1, id="image"),
        pytest.param(replace(ALONE, fields=FIELDS), 2, id="more"),
        pytest.param(replace(ALONE, fields=FIELDS[1:]), 2, id="no image"),
        pytest.param(replace(ALONE, fields=(replace(IMAGE, optional=True),)), 2, id="optional image"),
        pytest.param(LINKED, 2, id="linked"),
        pytest.param(
            replace(ALONE, fields=(FieldInfo.of(image_field(StoreOptions("coefficients", quality=3))),)),
            1,
            id="a quality that the store mode ignores, which packing refuses",
        ),
    ],
)
def test_it_is_loaded_as_it_was_dumped_in_the_lowest_version_that_can_say_it(
    tmp_path: Path, manifest: Manifest, version: int
) -> None:
    assert loaded(tmp_path, manifest) == manifest
    assert json.loads((tmp_path / "manifest.json").read_bytes())["version"] == version


def test_a_linked_shard_is_found_by_its_base_unless_a_copy_lies_in_the_folder(tmp_path: Path) -> None:
    assert LINKED.shard_path(tmp_path, 0) == tmp_path / "../shards/x/a b.tar"
    assert replace(LINKED, base="/data").shard_path(tmp_path, 0) == Path("/data/x/a b.tar")
    (tmp_path / "a-b.tar").touch()
    assert LINKED.shard_path(tmp_path, 0) == tmp_path / "a-b.tar"


def test_keys_of_later_packtrains_are_ignored_if_their_names_say_so(tmp_path: Path) -> None:
    def later(body: Any) -> None:
        for place in (body, body["fields"][0], body["shards"][0], body["shards"][0]["link"], body["rejects_file"]):
            place["x-later"] = {"any": ["thing"]}

    assert forged(tmp_path, LINKED, later) == LINKED
    with pytest.raises(UnsupportedVersion, match=r"shards\[0\]\.link: has an unknown key \"region\".*newer packtrain"):
        forged(tmp_path, LINKED, lambda body: body["shards"][0]["link"].update(region="eu"))


def test_version_1_knows_no_such_keys(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="unknown key"):
        forged(tmp_path, ALONE, lambda body: body.update({"x-later": 1}))


WRONG: dict[str, Callable[[Any], None]] = {
    "a field twice": lambda body: body["fields"].append(body["fields"][0]),
    "no field": lambda body: body.update(fields=[]),
    "an image without a store mode": lambda body: body["fields"][0].update(store=None),
    "samples without a field that all have": lambda body: body["fields"][0].update(missing=1),
    "a reserved name": lambda body: body["fields"][0].update(name="class"),
    "links without a base": lambda body: body.update(base=None),
    "a base with credentials": lambda body: body.update(base="https://user:secret@host/a"),
    "a base of another kind with credentials": lambda body: body.update(base="ftp://user:secret@host/a"),
    "a base with a query": lambda body: body.update(base="https://host/a?sig=secret"),
    "an empty base": lambda body: body.update(base=""),
    "a base that no file system can hold": lambda body: body.update(base="\ud800"),
    "a link called like a file of the dataset": lambda body: body["shards"][0].update(name="manifest.json"),
    "a link called like a file of its staged copy": lambda body: body["shards"][0].update(name="staged.json"),
    "a shard outside": lambda body: body["shards"][0].update(name="../a.tar"),
}


@pytest.mark.parametrize("change", WRONG)
def test_what_no_writer_writes_is_refused(tmp_path: Path, change: str) -> None:
    with pytest.raises(CorruptFile) as caught:
        forged(tmp_path, LINKED, WRONG[change])
    assert "secret" not in str(caught.value)


def test_a_link_whose_address_has_a_query_is_refused_in_the_web_and_a_key_in_a_bucket(tmp_path: Path) -> None:
    links = (ShardInfo("a-b.tar", 4, 5, 3, (), Link("a.tar?sig=secret", -7)),)
    assert loaded(tmp_path, replace(LINKED, base="s3://bucket/what?#", shards=links)).shards == links
    with pytest.raises(CorruptFile, match="credentials or a query") as caught:
        loaded(tmp_path, replace(LINKED, base="https://host/a", shards=links))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../a", "a/../b", "a/..", "", ".", "./a", "a/./b", "a//b", "a/", "a\0b", "\ud800"]
)
def test_a_link_leads_nowhere_but_down(tmp_path: Path, path: str) -> None:
    with pytest.raises(CorruptFile, match=r"path|surrogates"):
        forged(tmp_path, LINKED, lambda body: body["shards"][0]["link"].update(path=path))


@pytest.mark.parametrize("name", [*sorted(RESERVED), "", "A", "1a", "_a", "a-b", "a.b", "ä", "a" * 65])
def test_names_that_samples_or_python_take_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize(
    "field",
    [
        {"kind": "array", "dtype": "|O", "shape": ()},
        {"kind": "array", "dtype": ">f4", "shape": ()},
        {"kind": "array", "dtype": "<f4", "shape": (2, None)},
        {"kind": "array", "dtype": "<f4", "shape": (1,) * 9},
        {"kind": "array", "dtype": "<f4"},
        {"kind": "mask", "encoding": "jpeg", "dtype": "|u1"},
        {"kind": "mask", "encoding": "png", "dtype": "<i4"},
        {"kind": "text", "dtype": "<f4"},
        {"kind": "image"},
        {"kind": "film"},
    ],
    ids=str,
)
def test_fields_that_cannot_be_stored_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Field("a", **field)


def test_a_schema_names_each_field_once_and_the_image_first() -> None:
    text = Field("a", "text")
    for fields in ((text, text), (text, image_field(StoreOptions()))):
        with pytest.raises(UsageError):
            Schema(fields, LabelSpec())
    with pytest.raises(UsageError, match="a dataset without a field"):
        Schema((), LabelSpec("none"))
    # A layer of other labels.
    assert Schema((), LabelSpec()).names == ()
