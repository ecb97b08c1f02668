"""A writer of a new version may be killed at any moment, or meet another one: nothing is lost, or there twice.

Names, times and writers of versions are random, so what the versions hold is compared, and not their bytes.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import re
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from helpers.faults.campaign import Campaign, Program, renewed
from helpers.faults.harness import Action, FaultServer
from helpers.objects.datasets import objects_of
from helpers.objects.servers import Server
from helpers.support import encoded, packed, picture, tree

from packtrain import (
    append,
    compact,
    drop_rows,
    drop_version,
    merge_datasets,
    open_dataset,
    purge,
    relabel,
    split,
    verify,
)
from packtrain._core.files import is_temporary
from packtrain._core.versions import load_version
from packtrain._packer import removing
from packtrain._storage.remote.bucket import Bucket
from packtrain._storage.remote.urls import Url
from packtrain.errors import NotADataset, OutputConflict, UsageError

from .test_disk_full import give

APPEND = """
from packtrain import append
append(args["OUT"], args["LIST"])
"""
ADD = """
from packtrain import FieldColumn, add_field
add_field(args["OUT"], args["LIST"], [FieldColumn("caption", "text", "caption", by_path=False)])
"""
DROP = """
from packtrain import drop_rows
drop_rows(args["OUT"], [1, 4])
"""

DROP_VERSIONS = """
from packtrain import drop_version
drop_version(args["OUT"], args["VERSIONS"])
"""

COMPACT = """
from packtrain import compact
compact(args["OUT"])
"""

PURGE = """
from packtrain import purge
purge(args["OUT"], args["ROWS"])
"""


def listed(folder: Path, first: int, count: int) -> Path:
    """A list of images with the labels `first`, `first` + 1 and so on, by which they are known."""
    for number in range(first, first + count):
        (folder / f"{number}.jpg").write_bytes(encoded(picture(number, 16, 12)))
    listing = folder / f"{first}.txt"
    listing.write_text("".join(f"{number}.jpg {number}\n" for number in range(first, first + count)))
    return listing


@pytest.fixture(params=["packed", "changed"])
def before(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset with the labels 0 to 5, as it was packed or changed since."""
    out = packed(listed(tmp_path, 0, 4), tmp_path / "before", "tar")
    if request.param == "changed":
        append(out, listed(tmp_path, 4, 2))
        return out
    shutil.rmtree(out)
    return packed(listed(tmp_path, 0, 6), out, "tar")


def labels(out: Path) -> list[int]:
    return [int(label) for label in open_dataset(out).targets]


@pytest.mark.parametrize("code", [APPEND, DROP], ids=["append", "drop"])
def test_killed_anywhere_and_run_again(
    packer: FaultServer, before: Path, tmp_path: Path, memory_path: Path, campaign: Campaign, code: str
) -> None:
    out, more = memory_path / "out", listed(tmp_path, 10, 3)
    program = Program(packer, code, {"OUT": str(out), "LIST": str(more)}, out).starting_from(before)
    old = labels(before)
    calls = program.undisturbed()
    new = labels(out)
    assert new == ([*old, 10, 11, 12] if code == APPEND else [0, 2, 3, 5])
    for _ in campaign(program, calls, Action.KILL, Action.TEAR, every=8):
        found = labels(out)
        assert found in (old, new)
        assert not verify(out).problems
        # What is done is not done again.
        if code == APPEND or found == old:
            assert program.run().returncode == 0
        assert labels(out) == new
        assert not verify(out).problems


def test_killed_while_a_field_is_added(
    packer: FaultServer, before: Path, tmp_path: Path, memory_path: Path, campaign: Campaign
) -> None:
    out, listing = memory_path / "out", tmp_path / "captions.csv"
    listing.write_text("path,caption\n" + "".join(f"{number}.jpg,n{number}\n" for number in range(6)))
    program = Program(packer, ADD, {"OUT": str(out), "LIST": str(listing)}, out).starting_from(before)
    old = labels(before)
    for _ in campaign(program, program.undisturbed(), Action.KILL, Action.TEAR, every=8):
        assert labels(out) == old
        assert not verify(out).problems
        if "caption" not in open_dataset(out).schema.names:
            assert program.run().returncode == 0
        dataset = open_dataset(out, fields=["caption", "label"])
        assert [dataset[row] for row in range(6)] == [(f"n{number}", number) for number in range(6)]
        assert not verify(out).problems


def test_killed_while_versions_are_dropped(
    packer: FaultServer, before: Path, memory_path: Path, campaign: Campaign
) -> None:
    drop_rows(before, [5])
    append(before, listed(before.parent, 20, 2))
    out = memory_path / "out"
    newest = len(list((before / "versions").glob("*.json")))
    others = list(range(1, newest))
    program = Program(packer, DROP_VERSIONS, {"OUT": str(out), "VERSIONS": others}, out).starting_from(before)
    expected = labels(before)
    calls = program.undisturbed()
    for _ in campaign(program, calls, Action.KILL, Action.TEAR, every=8):
        for number in others:
            try:
                open_dataset(out, version=number)
            except UsageError:
                assert (out / f"versions/{number:08d}.dropped").exists()
        assert labels(out) == expected
        assert not verify(out).problems
        assert program.run().returncode == 0
        assert drop_version(out).removed == ()
        assert labels(out) == expected
        assert not verify(out).problems


def test_killed_while_segments_are_joined(
    packer: FaultServer, before: Path, memory_path: Path, campaign: Campaign
) -> None:
    append(before, listed(before.parent, 20, 2))
    drop_rows(before, [5])
    out = memory_path / "out"
    program = Program(packer, COMPACT, {"OUT": str(out)}, out).starting_from(before)
    expected = labels(before)
    for _ in campaign(program, program.undisturbed(), Action.KILL, Action.TEAR, every=8):
        assert labels(out) == expected
        assert not verify(out).problems
        assert program.run().returncode == 0
        assert labels(out) == expected
        assert len(load_version(out).segments) == 1
        assert not verify(out).problems
        drop_version(out)
        assert not verify(out).orphans


def test_killed_while_rows_are_purged(packer: FaultServer, before: Path, memory_path: Path, campaign: Campaign) -> None:
    append(before, listed(before.parent, 20, 2))
    out = memory_path / "out"
    program = Program(packer, PURGE, {"OUT": str(out), "ROWS": [1, 7]}, out).starting_from(before)
    old, new = labels(before), [0, 2, 3, 4, 5, 20]
    gone = [(before.parent / f"{number}.jpg").read_bytes() for number in (1, 21)]
    for _ in campaign(program, program.undisturbed(), Action.KILL, Action.TEAR, every=8):
        found = labels(out)
        assert found in (old, new)
        assert not verify(out).problems
        with suppress(UsageError):
            # Rows only while they are there; without, it is finished.
            purge(out, [1, 7] if found == old else None)
        assert labels(out) == new
        assert not verify(out).problems
        drop_version(out)
        assert not [name for name, data in tree(out).items() if any(image in data for image in gone)]


def said(function: Callable[..., object], *arguments: object) -> str:
    """What a change says that is refused."""
    try:
        function(*arguments)
    except OutputConflict as error:
        return str(error)
    return ""


def test_segments_are_joined_beside_appends_and_drops(before: Path, tmp_path: Path) -> None:
    """Whoever loses says why, and what the others did is there."""
    append(before, listed(tmp_path, 20, 2))
    expected = labels(before)
    for turn in range(3):
        with multiprocessing.get_context("fork").Pool(3) as pool:
            compacting = pool.apply_async(said, (compact, str(before)))
            dropping = pool.apply_async(said, (drop_rows, str(before), [0]))
            appending = pool.apply_async(appended, (str(before), str(listed(tmp_path, 50 + 10 * turn, 2))))
            appending.get()
            assert re.fullmatch("(.*somebody else has just changed what is joined.*)?", compacting.get())
            lost = dropping.get()
            assert re.fullmatch("(.*has just been replaced by somebody else.*)?", lost)
        expected = expected[0 if lost else 1 :]
        expected += [50 + 10 * turn, 51 + 10 * turn]
        assert labels(before) == expected
        assert not verify(before).problems


RELABEL = """
from packtrain import relabel
relabel(args["OUT"], args["LIST"])
"""


def test_killed_while_it_is_relabelled(
    packer: FaultServer, before: Path, tmp_path: Path, memory_path: Path, campaign: Campaign
) -> None:
    out, listing = memory_path / "out", tmp_path / "labels.txt"
    listing.write_text("1.jpg 101\n5.jpg 105\n")
    program = Program(packer, RELABEL, {"OUT": str(out), "LIST": str(listing)}, out).starting_from(before)
    old, new = labels(before), [0, 101, 2, 3, 4, 105]
    for _ in campaign(program, program.undisturbed(), Action.KILL, Action.TEAR, every=24):
        assert labels(out) in (old, new)
        assert not verify(out).problems
        assert program.run().returncode == 0
        assert labels(out) == new
        assert not verify(out).problems
        drop_version(out)
        assert not verify(out).orphans


MERGE = """
from packtrain import merge_datasets
merge_datasets(args["SOURCES"], args["OUT"])
"""


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
    program = Program(packer, MERGE, {"OUT": str(out), "SOURCES": [str(one), str(other)]}, out)
    for _ in campaign(program, program.undisturbed(), Action.KILL, Action.TEAR, every=24):
        if (out / "manifest.json").exists():
            assert labels(out) == expected
        else:
            with pytest.raises(NotADataset):
                open_dataset(out)
        assert program.run().returncode == 0
        assert labels(out) == expected
        report = verify(out)
        assert not report.problems and not report.orphans
        assert not list(out.rglob(".*"))


def relabelled(out: str, listing: str) -> int:
    return relabel(out, listing).version


def test_several_relabel_beside_an_append(before: Path, tmp_path: Path) -> None:
    """Each changes rows of the same segment, and what all of them say is there."""
    expected = labels(before)
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
        assert labels(before) == expected
        assert not verify(before).problems


def merged(sources: list[str], out: str) -> str:
    return said(merge_datasets, sources, out)


def test_several_merge_the_same(before: Path, tmp_path: Path) -> None:
    """One makes it; another one says that it is at work, or finds it done."""
    other, out = packed(listed(tmp_path, 20, 2), tmp_path / "other", "tar"), tmp_path / "out"
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.starmap(merged, [([str(before), str(other)], str(out))] * 3)
    assert "" in found
    assert all(re.fullmatch("(another process is writing .*)?", each) for each in found)
    assert labels(out) == [*labels(before), 20, 21]
    assert not verify(out).problems


SPLIT = """
from packtrain import split
split(args["OUT"], val=0.5, stratified=False)
"""


def test_killed_while_it_is_split(packer: FaultServer, before: Path, memory_path: Path, campaign: Campaign) -> None:
    """Either no row is on a side or each is, and it is the same one however often the run was stopped."""
    out = memory_path / "out"
    program = Program(packer, SPLIT, {"OUT": str(out)}, out).starting_from(before)
    calls = program.undisturbed()
    val = [int(label) for label in open_dataset(out, split="val").targets]
    assert len(val) == 3
    for _ in campaign(program, calls, Action.KILL, Action.TEAR, every=8):
        assert len(labels(out)) == 6
        assert not verify(out).problems
        assert program.run().returncode == 0
        assert [int(label) for label in open_dataset(out, split="val").targets] == val
        assert not verify(out).problems


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


def appended(out: str, listing: str) -> None:
    append(out, listing)


def test_several_append_at_the_same_time(before: Path, tmp_path: Path) -> None:
    """Each has its own segment, and all are there, whoever comes first."""
    writers, rounds = 3, 4
    with multiprocessing.get_context("fork").Pool(writers) as pool:
        for turn in range(rounds):
            firsts = [100 * (turn + 1) + 10 * writer for writer in range(writers)]
            pool.starmap(appended, [(str(before), str(listed(tmp_path, first, 2))) for first in firsts])
    expected = [
        100 * (turn + 1) + 10 * writer + each for turn in range(rounds) for writer in range(3) for each in (0, 1)
    ]
    assert sorted(labels(before)) == [0, 1, 2, 3, 4, 5, *expected]
    assert not verify(before).orphans


def test_rows_are_dropped_beside_an_append(before: Path, tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        dropped = pool.apply_async(drop_rows, (str(before), [0, 5]))
        more = pool.apply_async(appended, (str(before), str(listed(tmp_path, 50, 2))))
        dropped.get()
        more.get()
    assert labels(before) == [1, 2, 3, 4, 50, 51]


AT_ADDRESS = """
import os, tempfile
os.environ.update(args["STORE"])
tempfile.tempdir = args["SPOOLS"]
"""


@pytest.mark.complete
@pytest.mark.campaign
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

    def there(folder: Path) -> Path:
        for name, data in objects_of(moto_server, url).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

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
    program = Program(packer, AT_ADDRESS + code, arguments, spools, prepare)

    def found(number: int) -> list[tuple[object, ...]]:
        copy = there(tmp_path / f"copy-{number}")
        assert not verify(copy).problems
        dataset = open_dataset(copy)
        names = [name for name in ("label", "caption") if name == "label" or name in dataset.schema.names]
        rows = open_dataset(copy, fields=names)
        return [(dataset.filename(row), rows[row]) for row in range(len(rows))]

    calls = program.undisturbed()
    new = found(0)
    assert not list(spools.iterdir())
    prepare(spools)
    old = found(1)
    points = range(1, len(calls) + 1)
    chosen = points if request.config.getoption("--every-point") else random.Random(url).sample(points, 3)
    for number, at in enumerate(chosen, 2):
        prepare(spools)
        program.run(Action.KILL, at)
        state = found(2 * number)
        assert state in (old, new), at
        if state == old:
            assert program.run().returncode == 0, at
            assert not list(spools.iterdir()), "the spool of a run that was killed is left"
        assert found(2 * number + 1) == new, at


FULL: dict[str, tuple[str, list[int]]] = {
    "append": (APPEND, [0, 1, 2, 3, 4, 5, 10, 11]),
    "add-field": (ADD, [0, 1, 2, 3, 4, 5]),
    "drop-rows": (DROP, [0, 2, 3, 5]),
    "relabel": (RELABEL, [0, 101, 2, 3, 4, 105]),
    "split": (SPLIT, [0, 1, 2, 3, 4, 5]),
    "compact": (COMPACT, [0, 1, 2, 3, 4, 5, 20]),
    "purge": (PURGE, [0, 2, 3, 4]),
}


@pytest.mark.stress
@pytest.mark.parametrize("name", FULL)
def test_a_disk_that_is_full_from_any_call_on(
    packer: FaultServer, before: Path, tmp_path: Path, memory_path: Path, campaign: Campaign, name: str
) -> None:
    """The command says so, the newest version stays, and the same command goes on once there is room."""
    out, listing = memory_path / "out", tmp_path / "list"
    if name == "compact":
        append(before, listed(tmp_path, 20, 1))
    if name == "append":
        listing = listed(tmp_path, 10, 2)
    elif name == "add-field":
        listing.write_text("path,caption\n" + "".join(f"{number}.jpg,n{number}\n" for number in range(6)))
        listing = listing.rename(tmp_path / "captions.csv")
    else:
        listing.write_text("1.jpg 101\n5.jpg 105\n")
    code, new = FULL[name]
    program = Program(packer, code, {"OUT": str(out), "LIST": str(listing), "ROWS": [1, 5]}, out).starting_from(before)
    old = labels(before)
    calls = program.undisturbed()
    assert labels(out) == new
    versions = len(list((out / "versions").iterdir()))
    for trial in campaign(program, calls, Action.FAIL_FROM, error=errno.ENOSPC, every=32):
        said = trial.outcome.output
        assert labels(out) in (old, new)
        assert not verify(out).problems
        assert not [path for path in out.rglob("*") if is_temporary(path)]
        if trial.outcome.returncode == 0:
            continue
        assert f"NoSpace: no space left for {out}" in said, said
        # What is done cannot be asked for again: other rows would have these numbers.
        done = labels(out) == new != old
        if not done or name not in ("drop-rows", "purge"):
            assert program.run().returncode == 0
        assert labels(out) == new
        assert not verify(out).problems
        assert name == "purge" or len(list((out / "versions").iterdir())) == versions


@pytest.mark.complete
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
    args = {"OUT": str(out), "LIST": str(captions), "ROWS": [1, 5], "SOURCES": [str(before), str(other)]}
    program = Program(packer, MERGE if name == "merge" else FULL[name][0], args, out)
    old = labels(before)
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
        assert labels(out) in (old, new) if is_there else name == "merge"
        assert not is_there or not verify(out).problems
        give(disk, "size=64m,nr_inodes=10000")
        if name == "purge" and labels(out) == new:
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
    assert labels(out) == new
    assert ("caption" in open_dataset(out).schema.names) == (name == "add-field")
    assert name != "compact" or len(load_version(out).segments) == 1


@pytest.mark.parametrize("name", ["drop-rows", "split", "purge"])
def test_a_disk_that_is_full(packer: FaultServer, before: Path, memory_path: Path, name: str) -> None:
    """Nothing can be written at all: the command says so, and the dataset stays as it is."""
    out = renewed(memory_path / "out", before)
    program = Program(packer, FULL[name][0], {"OUT": str(out), "ROWS": [1, 5]}, out)
    outcome = program.run(Action.FAIL_FROM, 1, errno.ENOSPC)
    assert f"NoSpace: no space left for {out} (" in outcome.output, outcome.output
    assert labels(out) == labels(before)
    assert not verify(out).problems
