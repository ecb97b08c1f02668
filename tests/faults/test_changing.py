"""A writer of a new version may be killed at any moment, or find no room: nothing is lost, or there twice.

Names, times and writers of versions are random, so what the versions hold is compared, and not their bytes.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.faults.campaign import Campaign, Program, renewed
from helpers.faults.harness import Action, FaultServer
from helpers.objects.datasets import objects_of
from helpers.objects.servers import Server
from helpers.support import packed, tree
from helpers.versions import labels_of, laid_out, listed, rows_of

from packtrain import append, drop_rows, drop_version, open_dataset, purge, relabel, split, verify
from packtrain._core.files import is_temporary
from packtrain._core.version_files import has_versions, is_dropped, version_numbers
from packtrain._core.versions import load_version
from packtrain._packer import removing
from packtrain._storage.remote.bucket import Bucket
from packtrain._storage.remote.urls import Url
from packtrain.errors import NotADataset, UsageError

from .test_disk_full import give


@dataclass(frozen=True)
class Change:
    """A change of a dataset with the labels 0 to 5.

    Attributes:
        code: What makes it, after ``import packtrain``.
        labels: The labels after it.
        more: True if 20 and 21 are appended before, and 5 is dropped.
    """

    code: str
    labels: list[int]
    more: bool = False


CHANGES = {
    "append": Change("packtrain.append(args['OUT'], args['LIST'])", [0, 1, 2, 3, 4, 5, 10, 11]),
    "add-field": Change(
        "caption = packtrain.FieldColumn('caption', 'text', 'caption', False)\n"
        "packtrain.add_field(args['OUT'], args['CAPTIONS'], [caption])",
        [0, 1, 2, 3, 4, 5],
    ),
    "drop-rows": Change("packtrain.drop_rows(args['OUT'], [1, 4])", [0, 2, 3, 5]),
    "relabel": Change("packtrain.relabel(args['OUT'], args['LABELS'])", [0, 101, 2, 3, 4, 105]),
    "split": Change("packtrain.split(args['OUT'], val=0.5, stratified=False)", [0, 1, 2, 3, 4, 5]),
    "compact": Change("packtrain.compact(args['OUT'])", [0, 1, 2, 3, 4, 20, 21], more=True),
    "purge": Change("packtrain.purge(args['OUT'], args['ROWS'])", [0, 2, 3, 4, 20], more=True),
    "drop-version": Change("packtrain.drop_version(args['OUT'], args['VERSIONS'])", [0, 1, 2, 3, 4, 20, 21], more=True),
}
MERGE = "packtrain.merge_datasets(args['SOURCES'], args['OUT'])"
BEFORE = [(state, name) for name, change in CHANGES.items() for state in ("packed", "changed")[change.more :]]
"""The state of a dataset, and a change of it. For some changes, there have to be others before."""
# The first change makes a packed dataset one of versions; `append` shows that for all.
SAMPLE = ("changed", "drop-version")
OF_PACKED = [each for each in BEFORE if each[0] == "packed" and each[1] != "append"]
KILLED = [
    pytest.param(*each, marks=[pytest.mark.stress] * (each in OF_PACKED) or [pytest.mark.complete] * (each != SAMPLE))
    for each in BEFORE
]
ONCE = ("add-field", "drop-rows", "purge")
"""Changes that cannot be asked for again once they are done: rows have other numbers, or the field is there."""


@pytest.fixture(params=["packed", "changed"])
def before(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset with the labels 0 to 5, as it was packed or changed since."""
    is_changed = request.param == "changed"
    out = packed(listed(tmp_path, 0, 4 if is_changed else 6), tmp_path / "before", "tar")
    if is_changed:
        append(out, listed(tmp_path, 4, 2))
    return out


def program_of(server: FaultServer, name: str, before: Path, out: Path) -> Program:
    """The program that makes a change of a copy of a dataset, which is made ready for that."""
    folder = before.parent
    if CHANGES[name].more:
        append(before, listed(folder, 20, 2))
        drop_rows(before, [5])
    captions, labels = folder / "captions.csv", folder / "labels.txt"
    captions.write_text("path,caption\n" + "".join(f"{number}.jpg,n{number}\n" for number in range(6)))
    labels.write_text("1.jpg 101\n5.jpg 105\n")
    args: dict[str, Any] = {"OUT": str(out), "LIST": str(listed(folder, 10, 2)), "LABELS": str(labels)}
    args |= {"CAPTIONS": str(captions), "ROWS": [1, 6], "VERSIONS": version_numbers(before)[:-1]}
    return Program(server, f"import packtrain\n{CHANGES[name].code}", args, out).starting_from(before)


def state(out: Path) -> tuple[object, ...]:
    """Returns what a dataset holds, which has to be sound."""
    assert not verify(out).problems
    return held(out)


def held(out: Path) -> tuple[object, ...]:
    """Labels, captions, and the labels of the rows that are for val."""
    dataset, version = open_dataset(out), load_version(out) if has_versions(out) else None
    has_captions, is_split = "caption" in dataset.schema.names, version is not None and version.split is not None
    captions = [dataset.value(row, "caption") for row in range(len(dataset))] if has_captions else None
    return labels_of(out), captions, labels_of(out, split="val") if is_split else None


@pytest.mark.parametrize(("before", "name"), KILLED, indirect=["before"])
def test_killed_anywhere_and_run_again(
    packer: FaultServer,
    before: Path,
    memory_path: Path,
    campaign: Campaign,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """The newest version is the old or the new one, the same command makes the new one, and nothing is left over."""
    out, change = memory_path / "out", CHANGES[name]
    program = program_of(packer, name, before, out)
    old, calls = state(before), program.undisturbed()
    new = state(out)
    assert new[0] == change.labels
    assert new[1] == ([f"n{number}" for number in range(6)] if name == "add-field" else None)
    assert (new[2] is None) == (name != "split")
    gone = [(before.parent / f"{number}.jpg").read_bytes() for number in (1, 5, 21) if change.more]
    monkeypatch.setattr(removing, "GRACE_SECONDS", -60.0)
    for _ in campaign(program, calls, Action.KILL, Action.TEAR, every=24):
        found = state(out)
        assert found in (old, new)
        if name == "purge":
            with suppress(UsageError):
                # Rows only while they are there; without, it is finished.
                purge(out, [1, 6] if found == old else None)
        elif found == old or name not in ONCE:
            assert program.run().returncode == 0
        assert held(out) == new
        if name == "drop-version":
            assert all(is_dropped(out, number) for number in program.args["VERSIONS"])
            assert all(is_temporary(Path(left)) for left in drop_version(out).removed)
        drop_version(out)
        report = verify(out)
        assert not report.problems and not report.orphans
        assert name != "compact" or len(load_version(out).segments) == 1
        assert name != "purge" or not [image for image in gone for data in tree(out).values() if image in data]


@pytest.mark.complete
def test_killed_while_datasets_are_merged(
    packer: FaultServer, tmp_path: Path, memory_path: Path, campaign: Campaign
) -> None:
    """There is no dataset until all of it is there; then it is whole."""
    one, other = (packed(listed(tmp_path, first, 2), tmp_path / f"{first}", "hdf5") for first in (10, 20))
    (tmp_path / "labels.txt").write_text("20.jpg 99\n")
    relabel(other, tmp_path / "labels.txt")
    drop_rows(other, [1])
    split(other, val=0.5, stratified=False)
    out, expected = memory_path / "out", [10, 11, 99]
    args = {"OUT": str(out), "SOURCES": [str(one), str(other)]}
    program = Program(packer, f"import packtrain\n{MERGE}", args, out)
    for _ in campaign(program, program.undisturbed(), Action.KILL, Action.TEAR, every=24):
        if (out / "manifest.json").exists():
            assert labels_of(out) == expected
        else:
            with pytest.raises(NotADataset):
                open_dataset(out)
        assert program.run().returncode == 0
        assert labels_of(out) == expected
        report = verify(out)
        assert not report.problems and not report.orphans
        assert not list(out.rglob(".*"))


def appended(out: str, listing: str) -> None:
    append(out, listing)


def relabelled(out: str, listing: str) -> int:
    return relabel(out, listing).version


@pytest.mark.complete
def test_several_relabel_beside_an_append(before: Path, tmp_path: Path) -> None:
    """Each changes rows of the same segment, and what all of them say is there."""
    expected = labels_of(before)
    for turn in range(3):
        lists = []
        for row in range(3):
            lists.append(tmp_path / f"labels {row}.txt")
            expected[row] = 1000 * (turn + 1) + row
            lists[row].write_text(f"{row}.jpg {expected[row]}\n")
        with multiprocessing.get_context("fork").Pool(4) as pool:
            found = pool.starmap_async(relabelled, [(str(before), str(each)) for each in lists])
            more = pool.apply_async(appended, (str(before), str(listed(tmp_path, 50 + 10 * turn, 1))))
            more.get()
            assert len(set(found.get())) == 3
        expected.append(50 + 10 * turn)
        assert labels_of(before) == expected
        assert not verify(before).problems


def halved(out: str) -> int:
    return split(out, val=0.5, stratified=False).version


def test_several_split_beside_an_append(before: Path, tmp_path: Path) -> None:
    """Who comes second finds every row on a side, and makes no version."""
    number = 1 + len(list((before / "versions").glob("*.json")) or [1])
    with multiprocessing.get_context("fork").Pool(3) as pool:
        splits = [pool.apply_async(halved, (str(before),)) for _ in range(2)]
        more = pool.apply_async(appended, (str(before), str(listed(tmp_path, 50, 2))))
        found = {each.get() for each in splits}
        more.get()
    assert found <= {number, number + 1, number + 2}
    halved(str(before))
    sides = [[int(label) for label in open_dataset(before, split=name).targets] for name in ("train", "val")]
    assert sorted(sides[0] + sides[1]) == [0, 1, 2, 3, 4, 5, 50, 51]
    assert len(sides[0]) == len(sides[1])
    assert not verify(before).problems


APPEND = """
from packtrain import append
append(args["OUT"], args["LIST"])
"""
ADD = """
from packtrain import FieldColumn, add_field
add_field(args["OUT"], args["LIST"], [FieldColumn("caption", "text", "caption", by_path=False)])
"""
AT_ADDRESS = """
import os, tempfile
os.environ.update(args["STORE"])
tempfile.tempdir = args["SPOOLS"]
"""


@pytest.mark.complete
@pytest.mark.campaign
@pytest.mark.parametrize("before", ["changed"], indirect=True)
@pytest.mark.parametrize("code", [APPEND, ADD], ids=["append", "add-field"])
def test_killed_anywhere_at_an_address(
    request: pytest.FixtureRequest,
    packer: FaultServer,
    before: Path,
    tmp_path: Path,
    memory_path: Path,
    moto_server: Server,
    code: str,
) -> None:
    """The newest version is the old or the new one, and all that it names is there."""
    url, listing = moto_server.fresh(), listed(tmp_path, 10, 3)
    if code == ADD:
        listing = tmp_path / "captions.csv"
        listing.write_text("path,caption\n" + "".join(f"{number}.jpg,n{number}\n" for number in range(6)))

    def prepare(spools: Path) -> None:
        renewed(spools).mkdir()
        with moto_server.in_environment(), closing(Bucket()) as bucket:
            for name in objects_of(moto_server, url):
                bucket.remove(Url.parse(f"{url}/{name}"))
        for name, data in tree(before).items():
            moto_server.put(f"{moto_server.key(url)}/{name}", data)

    spools = memory_path / "spools"
    environment = dict(moto_server.environment)
    arguments = {"OUT": url, "LIST": str(listing), "SPOOLS": str(spools), "STORE": environment}
    # Nothing rests on the spools.
    program = Program(packer, AT_ADDRESS + code, arguments, spools, prepare, lost=("*",))

    def found() -> list[tuple[Any, ...]]:
        return rows_of(laid_out(objects_of(moto_server, url), tmp_path / "copy"))

    calls = program.undisturbed()
    new = found()
    assert not list(spools.iterdir())
    prepare(spools)
    old = found()
    points = range(1, len(calls) + 1)
    chosen = points if request.config.getoption("--every-point") else random.Random(url).sample(points, 3)
    for at in chosen:
        prepare(spools)
        program.run(Action.KILL, at)
        state = found()
        assert state in (old, new), at
        if state == old:
            assert program.run().returncode == 0, at
            assert not list(spools.iterdir()), "the spool of a run that was killed is left"
        assert found() == new, at


@pytest.mark.stress
@pytest.mark.parametrize(
    ("before", "name"), [each for each in BEFORE if "drop-version" not in each], indirect=["before"]
)
def test_a_disk_that_is_full_from_any_call_on(
    packer: FaultServer, before: Path, memory_path: Path, campaign: Campaign, name: str
) -> None:
    """The command says so, the newest version stays, and the same command goes on once there is room."""
    out = memory_path / "out"
    program = program_of(packer, name, before, out)
    old, calls = state(before), program.undisturbed()
    new, versions = state(out), len(list((out / "versions").iterdir()))
    for trial in campaign(program, calls, Action.FAIL_FROM, error=errno.ENOSPC, every=32):
        found = state(out)
        assert found in (old, new)
        assert not [path for path in out.rglob("*") if is_temporary(path)]
        if trial.outcome.returncode == 0:
            continue
        assert f"NoSpace: no space left for {out}" in trial.outcome.output
        if found == old or name not in ONCE:
            assert program.run().returncode == 0
        assert state(out) == new
        assert name == "purge" or len(list((out / "versions").iterdir())) == versions


@pytest.mark.complete
@pytest.mark.parametrize("before", ["changed"], indirect=True)
@pytest.mark.parametrize(
    ("name", "limit", "step"),
    [
        ("compact", "size", 9),
        ("merge", "nr_inodes", 9),
        *(
            pytest.param(name, limit, 1, marks=pytest.mark.stress)
            for name in ("add-field", "compact", "purge", "merge")
            for limit in ("size", "nr_inodes")
        ),
    ],
)
def test_a_small_disk(
    packer: FaultServer,
    before: Path,
    tmp_path: Path,
    mounted: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    campaign: Campaign,
    name: str,
    limit: str,
    step: int,
) -> None:
    """With any room that is left: the command says that it is not enough, and goes on once there is more."""
    append(before, listed(tmp_path, 20, 2))
    captions, other = tmp_path / "captions.csv", packed(listed(tmp_path, 30, 2), tmp_path / "other", "hdf5")
    captions.write_text("path,caption\n" + "".join(f"{row}.jpg,n{row}\n" for row in (*range(6), 20, 21)))
    disk = mounted("size=64m,nr_inodes=10000")
    out = disk / "out"
    args = {"OUT": str(out), "CAPTIONS": str(captions), "ROWS": [1, 5], "SOURCES": [str(before), str(other)]}
    code = MERGE if name == "merge" else CHANGES[name].code
    program = Program(packer, f"import packtrain\n{code}", args, out)
    old = labels_of(before)
    new = {"purge": [0, 2, 3, 4, 20, 21], "merge": [*old, 30, 31]}.get(name, old)
    monkeypatch.setattr(removing, "GRACE_SECONDS", -60.0)
    for room in range(1, 1000, step):
        give(disk, "size=64m,nr_inodes=10000")
        renewed(out, None if name == "merge" else before)
        give(disk, with_room(disk, limit, room))
        outcome = program.run()
        if outcome.returncode == 0:
            break
        print(room, "free pages" if limit == "size" else "free inodes")
        campaign.counts["SMALL DISK"] += 1
        assert f"NoSpace: no space left for {out}" in outcome.output, outcome.output
        assert not [path for path in out.rglob("*") if is_temporary(path)]
        is_there = (out / "manifest.json").exists()
        assert labels_of(out) in (old, new) if is_there else name == "merge"
        assert not is_there or not verify(out).problems
        give(disk, "size=64m,nr_inodes=10000")
        if name == "purge" and labels_of(out) == new:
            with suppress(UsageError):
                purge(out)
        else:
            assert program.run().returncode == 0
        assert_changed(out, name, new)
    assert campaign.counts.total() > 2
    assert_changed(out, name, new)


def with_room(disk: Path, limit: str, room: int) -> str:
    """The option of a tmpfs that leaves so many free pages, or inodes."""
    status = os.statvfs(disk)
    if limit == "size":
        return f"size={(status.f_blocks - status.f_bfree + room) * status.f_frsize}"
    return f"nr_inodes={status.f_files - status.f_ffree + room}"


def assert_changed(out: Path, name: str, new: list[int]) -> None:
    """The dataset is what the command is to make of it, and what it left when it was stopped goes."""
    drop_version(out)
    report = verify(out)
    assert not report.problems and not report.orphans
    assert labels_of(out) == new
    assert ("caption" in open_dataset(out).schema.names) == (name == "add-field")
    assert name != "compact" or len(load_version(out).segments) == 1


@pytest.mark.parametrize("name", ["drop-rows", "split", "purge"])
def test_a_disk_that_is_full(packer: FaultServer, before: Path, memory_path: Path, name: str) -> None:
    """Nothing can be written at all: the command says so, and the dataset stays as it is."""
    program = program_of(packer, name, before, memory_path / "out")
    out = renewed(program.folder, before)
    outcome = program.run(Action.FAIL_FROM, 1, errno.ENOSPC)
    assert f"NoSpace: no space left for {out} (" in outcome.output, outcome.output
    assert labels_of(out) == labels_of(before)
    assert not verify(out).problems
