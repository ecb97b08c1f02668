"""Laws of packing into an output folder that is there already."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.damage import forge
from helpers.faults.cases import Job, assert_same, written
from helpers.packing import Stopped, stop_after
from helpers.support import FORMATS, image_set, shard_bytes, tree

from packtrain import PackOptions, pack
from packtrain._core.manifest import NEWEST
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain.errors import CorruptFile, OutputConflict, UnsupportedVersion
from packtrain.reports import PackProgress

State = dict[str, tuple[int, int]]


def state(out: Path) -> State:
    """Changes when anything in the folder, or the folder itself, is written, replaced, made or removed."""
    return {str(path): written(path) for path in (out, *out.rglob("*"))}


def pack_until(job: Job, out: Path, lines: int) -> None:
    """Packs, and stops as soon as that many lines are done."""
    with pytest.raises(Stopped):
        pack(job.source, out, job.options, max_rejects="1", on_progress=stop_after(lines))


def test_a_new_an_empty_and_a_nested_folder_are_packed_into(small_job: Job, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new", tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        small_job.run(out)
        assert_same(out, tree(tmp_path / "new"))


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "train-000000.tar", "index", "manifest.json"])
def test_a_folder_of_somebody_else_is_refused(small_job: Job, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    before = state(tmp_path)
    with pytest.raises(OutputConflict, match=rf"is not empty \({re.escape(name)}\), and has no plan\.json"):
        small_job.run(tmp_path)
    assert state(tmp_path) == before


def test_a_file_is_refused(small_job: Job, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputConflict, match="out is a file"):
        small_job.run(tmp_path / "out")
    assert tree(tmp_path) == {"out": b"mine"}


def test_a_link_that_leads_nowhere_is_refused(small_job: Job, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "gone")
    with pytest.raises(OutputConflict, match="out is a link that leads nowhere"):
        small_job.run(tmp_path / "out")
    assert not (tmp_path / "gone").exists()


Change = Callable[[PackOptions, Path], PackOptions]
CHANGES: dict[str, Change] = {
    "format": lambda options, _: replace(options, format="lmdb"),
    "store": lambda options, _: replace(options, store=StoreOptions(store="raw")),
    "resize": lambda options, _: replace(options, store=StoreOptions(store="jpeg", resize="short=32")),
    "quality": lambda options, _: replace(options, store=StoreOptions(store="jpeg", quality=91)),
    "mode": lambda options, _: replace(options, store=StoreOptions(mode="L")),
    "orientation": lambda options, _: replace(options, store=StoreOptions(store="jpeg", orientation="apply")),
    "check": lambda options, _: replace(options, store=StoreOptions(check=True)),
    "labels": lambda options, _: replace(options, labels=LabelSpec("float")),
    "classes": lambda options, folder: replace(options, classes=folder / "classes.txt"),
    "shard_bytes": lambda options, _: replace(options, shard_size=(options.shard_size or 0) + 1),
    "seed": lambda options, _: replace(options, seed=None),
}


@pytest.mark.complete
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
@pytest.mark.parametrize("name", [*CHANGES, "list_sha256"])
def test_another_plan_is_refused_and_what_differs_is_named(tmp_path: Path, name: str, finished: bool) -> None:
    source = image_set(tmp_path / "images", 6)
    (tmp_path / "classes.txt").write_text("cat\ndog\nowl\n")
    job = Job(source, shard_bytes(source, 2))
    out = tmp_path / "out"
    if finished:
        job.run(out)
    else:
        pack_until(job, out, 3)
    before = state(out)
    options = PackOptions(format=job.format, shard_size=job.shard_bytes)
    if name == "list_sha256":
        source.write_text(source.read_text().replace("image 3.jpg 0", "image 3.jpg 1"))
    else:
        options = CHANGES[name](options, tmp_path)
    with pytest.raises(OutputConflict, match=rf"another plan \(.*\b{name}: .+ there, .+ asked for"):
        pack(source, out, options)
    assert state(out) == before


def test_a_complete_pack_is_reported_and_left_alone(job: Job, tmp_path: Path) -> None:
    first = job.run(tmp_path)
    before = state(tmp_path)
    again = job.run(tmp_path)
    assert again == replace(first, complete_before=True, packed=0, resumed=3)
    assert state(tmp_path) == before


# On the command line, many fields would take many options.
@pytest.mark.parametrize("content", ["images"], indirect=True)
def test_a_second_packer_is_sent_away(job: Job, tmp_path: Path) -> None:
    """It may be in the process of the first or in another."""
    job.run(tmp_path / "undisturbed")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "packtrain", "pack", str(job.source), str(out), "--json"]
    command += ["--format", job.format, "--shard-size", str(job.shard_bytes), "--max-rejects", "1"]
    met: list[Any] = []

    def try_too(progress: PackProgress) -> None:
        before = state(out)
        with pytest.raises(OutputConflict, match="another packer is working"):
            job.run(out)
        if not met:
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            met.append((ended.returncode, json.loads(ended.stdout)["error"]))
        assert state(out) == before

    pack(job.source, out, job.options, max_rejects="1", on_progress=try_too)
    assert met == [(1, "OutputConflict")]
    assert_same(out, tree(tmp_path / "undisturbed"))


Damage = Callable[[Path], object]
DAMAGES: dict[str, Damage] = {
    "deleted": lambda shard: shard.unlink(),
    "cut by a byte": lambda shard: shard.write_bytes(shard.read_bytes()[:-1]),
    "emptied": lambda shard: shard.write_bytes(b""),
    "longer": lambda shard: shard.write_bytes(shard.read_bytes() + b"\0"),
}
LOST = [(name, suffix) for name, suffix in zip(FORMATS, (".tar", ".h5", ".mdb"), strict=True)] + [("tar", ".idx")]


@pytest.mark.parametrize(("format", "suffix"), LOST)
def test_a_lost_shard_is_packed_again(small_job: Job, tmp_path: Path, format: str, suffix: str) -> None:
    job = replace(small_job, format=format)
    first = job.run(tmp_path)
    expected = tree(tmp_path)
    for place, damage in enumerate(DAMAGES.values()):
        number = place % 3
        others = {path: written(path) for path in tmp_path.glob(f"train-*[!{number}].*")}
        assert len(others) in (2, 4)
        damage(tmp_path / f"train-{number:06d}{suffix}")
        assert job.run(tmp_path) == replace(first, packed=1, resumed=2)
        assert {path: written(path) for path in others} == others
        assert_same(tmp_path, expected)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_damaged_note_costs_its_shard_alone(job: Job, tmp_path: Path, keep: int) -> None:
    job.run(tmp_path / "undisturbed")
    out = tmp_path / "out"
    pack_until(job, out, 3)
    note = min((out / "parts").iterdir())
    note.write_bytes(note.read_bytes()[:keep])
    assert job.run(out).packed == 2
    assert_same(out, tree(tmp_path / "undisturbed"))


@pytest.mark.complete
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_a_damaged_plan_is_refused(small_job: Job, tmp_path: Path, finished: bool) -> None:
    if finished:
        small_job.run(tmp_path)
    else:
        pack_until(small_job, tmp_path, 3)
    plan = tmp_path / "plan.json"
    sound = plan.read_bytes()
    offsets = range(0, len(sound), 3)
    damaged = [sound[:offset] + bytes([sound[offset] ^ 0x15]) + sound[offset + 1 :] for offset in offsets]
    damaged += [sound[:size] for size in (0, 1, 2, len(sound) // 2, len(sound) - 1)]
    damaged += [sound + b"\n", b"{}\n", b"[]\n", b"null", b"\xff\xfe", b"[" * 100_000, b'{"version": 1}\n']
    for data in damaged:
        plan.write_bytes(data)
        before = state(tmp_path)
        with pytest.raises((CorruptFile, UnsupportedVersion), match=r"plan\.json") as caught:
            small_job.run(tmp_path)
        assert caught.value.file == "plan.json"
        assert state(tmp_path) == before


def test_a_plan_of_a_newer_version_is_refused_by_number(small_job: Job, tmp_path: Path) -> None:
    small_job.run(tmp_path)
    forge(tmp_path / "plan.json", lambda body: body.update(version=NEWEST + 7))
    with pytest.raises(UnsupportedVersion, match=rf"plan.json has version {NEWEST + 7}; .* up to {NEWEST}\b"):
        small_job.run(tmp_path)
