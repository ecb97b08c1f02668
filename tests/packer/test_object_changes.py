"""Changing a dataset at an address: what a folder would hold, whatever the store and others do meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.memory_objects import MemoryObjects
from helpers.objects.datasets import behind, objects_of
from helpers.objects.faults import Fault, Reset, Rule, Status, Unconditional
from helpers.objects.servers import Server
from helpers.support import packed, tree
from helpers.versions import labels_of, laid_out, listed, rows_of

from packtrain import (
    FieldColumn,
    add_field,
    append,
    compact,
    drop_rows,
    drop_version,
    open_dataset,
    purge,
    relabel,
    split,
    verify,
)
from packtrain._cli.main import group
from packtrain._core.version_files import has_versions
from packtrain._core.versions import Change, load_version
from packtrain._packer.changing import ChangeReport, without_rows
from packtrain._packer.object_workplace import ObjectWorkplace
from packtrain._storage.remote.urls import Url
from packtrain.errors import CorruptFile, NotADataset, OutputConflict, RemoteError, UsageError

from .conftest import WEEK, meanwhile
from .test_changing import Images

CAPTION = [FieldColumn("caption", "text", "caption", by_path=False)]
ADDRESS = Url.parse("s3://bucket/out")
Stopped = Callable[[Callable[[], object]], Iterator[int]]
SCORE = [FieldColumn("score", "number", "score", by_path=False, optional=True)]


def uploaded(store: Server, folder: Path) -> str:
    """The address of a copy of a dataset."""
    url = store.fresh()
    for name, data in tree(folder).items():
        store.put(f"{store.key(url)}/{name}", data)
    return url


def listed_values(folder: Path, out: Path, more: Sequence[str] = ()) -> tuple[Path, Path]:
    """A list with a caption, and one with a score, for the rows of a dataset; half of them have a score."""
    dataset = open_dataset(out)
    names = [*(dataset.filename(row) for row in range(len(dataset))), *more]
    captions, scores = folder / "captions.csv", folder / "scores.csv"
    captions.write_text("path,caption\n" + "".join(f"{name},of {name}\n" for name in names))
    scores.write_text("path,score\n" + "".join(f"{name},{number}\n" for number, name in enumerate(names[::2])))
    return captions, scores


@pytest.mark.complete
@pytest.mark.parametrize(
    "store",
    ["moto", *(pytest.param(other, marks=pytest.mark.stress) for other in ("azurite", "xml_gcs"))],
    indirect=True,
)
def test_the_same_changes_make_the_same_rows(store: Server, tmp_path: Path) -> None:
    url = check_changes(tmp_path, lambda folder: uploaded(store, folder), partial(objects_of, store))
    (tmp_path / "staged").mkdir()
    there, here = open_dataset(url, stage=tmp_path / "staged"), open_dataset(tmp_path / "here")
    assert [there.filename(row) for row in range(len(there))] == [here.filename(row) for row in range(len(here))]


@pytest.mark.complete
def test_the_same_changes_make_the_same_rows_in_memory(memory: MemoryObjects, tmp_path: Path) -> None:
    check_changes(tmp_path, partial(put, memory), lambda url: objects_in(memory))


def check_changes(tmp_path: Path, upload: Callable[[Path], str], objects_at: Callable[[str], dict[str, bytes]]) -> str:
    """Makes the same changes in a folder and at an address, which it returns, and compares all versions."""
    images = Images(tmp_path)
    here = packed(images.listed(7)[0], tmp_path / "here", "tar", shard_size=1000)
    there = upload(here)
    captions, scores = tmp_path / "captions.csv", tmp_path / "scores.csv"
    more = images.listed(4)[0]

    before = objects_at(there)

    def both(function: Callable[..., ChangeReport], *arguments: Any, **options: Any) -> None:
        nonlocal before
        planned = function(there, *arguments, **options, dry_run=True)
        assert objects_at(there) == before, "a dry run has written something"
        mine, theirs = function(here, *arguments, **options), function(there, *arguments, **options)
        assert (theirs.version, theirs.records, theirs.added, theirs.dropped, theirs.sides) == (
            mine.version,
            mine.records,
            mine.added,
            mine.dropped,
            mine.sides,
        )
        assert str(theirs.dataset) == str(planned.dataset) == there
        after = objects_at(there)
        assert all(after[name] == data for name, data in before.items() if name != "manifest.json")
        for path in (path for path in after.keys() - before.keys() if not path.endswith(".dropped")):
            assert any(path.startswith(each.partition("*")[0]) for each in planned.written), path
        assert not list((tmp_path / "spools").iterdir())
        before = after

    both(append, more)
    assert append(there, more).version == 2, "a list that is there was appended again"
    both(drop_rows, [1, 8])
    listed_values(tmp_path, here)
    both(add_field, captions, CAPTION)
    both(add_field, scores, SCORE)
    both(split, val="20%")
    (tmp_path / "labels.txt").write_text("2.jpg 7\n9.jpg 8\n")
    both(relabel, tmp_path / "labels.txt")
    both(drop_rows, where="score = 2")
    both(append, images.listed(3)[0])
    both(split)
    copy = laid_out(objects_at(there), tmp_path / "copy")
    assert not verify(copy).orphans
    for number in range(1, load_version(here).number + 1):
        assert rows_of(copy, version=number) == rows_of(here, version=number)
    assert rows_of(copy, split="val") == rows_of(here, split="val")
    both(compact)
    both(purge, [0, 5])
    assert rows_of(laid_out(objects_at(there), tmp_path / "again")) == rows_of(here)
    assert drop_version(there, dry_run=True).waiting
    return there


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A dataset whose rows have the labels 0 to 5."""
    return packed(listed(tmp_path, 0, 6), tmp_path / "labelled", "tar")


def put(memory: MemoryObjects, folder: Path) -> str:
    return memory.put(ADDRESS, tree(folder))


def objects_in(memory: MemoryObjects) -> dict[str, bytes]:
    return memory.under(ADDRESS)


def contents(memory: MemoryObjects) -> tuple[list[tuple[Any, ...]], list[int]]:
    """The rows of the newest version at the address, all that it names being sound, and the labels of those for val."""
    with tempfile.TemporaryDirectory() as name:
        folder = laid_out(objects_in(memory), Path(name))
        is_split = has_versions(folder) and load_version(folder).split is not None
        return rows_of(folder), labels_of(folder, split="val") if is_split else []


def labels(memory: MemoryObjects) -> list[int]:
    """The labels of these rows."""
    return [label for _, _, label, *_ in contents(memory)[0]]


def of_version(number: int, fault: str) -> Callable[[Url, int], str]:
    """A fault for the request that makes a version."""
    return lambda url, _: fault if str(url).endswith(f"versions/{number:08d}.json") else ""


@pytest.mark.parametrize("fault", ["lost", "denied"], ids=["no answer", "refused because of itself"])
def test_a_version_whose_answer_is_lost_is_ones_own(memory: MemoryObjects, labelled: Path, fault: str) -> None:
    put(memory, labelled)
    memory.fault = of_version(2, fault)
    assert drop_rows(str(ADDRESS), [0]).version == 2
    assert labels(memory) == [1, 2, 3, 4, 5]
    assert f"{ADDRESS}/versions/00000003.json" not in memory.objects


def test_a_version_that_was_not_made_is_none(memory: MemoryObjects, labelled: Path) -> None:
    put(memory, labelled)
    memory.fault = of_version(2, "refused")
    with pytest.raises(RemoteError, match=rf"answers 500.*not known whether version 2 .* `packtrain log {ADDRESS}`"):
        drop_rows(str(ADDRESS), [0])
    assert labels(memory) == [0, 1, 2, 3, 4, 5]


def test_a_store_that_ignores_the_condition_is_refused(memory: MemoryObjects, labelled: Path) -> None:
    put(memory, labelled)
    before = dict(memory.objects)
    memory.fault = lambda url, number: "ignoring"
    with pytest.raises(RemoteError, match=r"ignores `If-None-Match: \*`.*Nothing was changed. Stage the dataset"):
        drop_rows(str(ADDRESS), [0])
    assert memory.objects == before
    memory.fault = lambda url, number: ""
    drop_rows(str(ADDRESS), [0])
    before = dict(memory.objects)
    memory.fault = lambda url, number: "ignoring"
    with pytest.raises(RemoteError, match="ignores"):
        drop_rows(str(ADDRESS), [0])
    assert memory.objects == before


def test_who_comes_second_makes_the_next_version(memory: MemoryObjects, labelled: Path, tmp_path: Path) -> None:
    """Nothing is packed again, and both changes are there."""
    put(memory, labelled)
    more, other = listed(tmp_path, 10, 3), listed(tmp_path, 20, 2)
    written: list[str] = []

    def meanwhile(url: Url, number: int) -> str:
        first = str(url) not in written
        written.append(str(url))
        if first and url.name == "00000002.json":
            append(str(ADDRESS), other)
            drop_rows(str(ADDRESS), [1])
        return ""

    memory.fault = meanwhile
    assert append(str(ADDRESS), more).version == 4
    assert labels(memory) == [0, 2, 3, 4, 5, 20, 21, 10, 11, 12]
    parts = [name for name in written if "/segments/" in name and "/parts/" not in name]
    assert len(parts) == len(set(parts))


def test_the_same_list_is_appended_once(memory: MemoryObjects, labelled: Path, tmp_path: Path) -> None:
    put(memory, labelled)
    more = listed(tmp_path, 10, 3)
    meanwhile(memory, "00000002.json", lambda: append(str(ADDRESS), more))
    with pytest.raises(OutputConflict, match="somebody else has just appended the same list, in version 2"):
        append(str(ADDRESS), more)
    assert labels(memory) == [0, 1, 2, 3, 4, 5, 10, 11, 12]
    assert append(str(ADDRESS), more) == ChangeReport(ADDRESS, 2, 9)
    # That of the dataset itself is there as well.
    assert append(str(ADDRESS), tmp_path / "0.txt") == ChangeReport(ADDRESS, 2, 9)


def test_a_field_that_somebody_else_has_just_added_stays(memory: MemoryObjects, labelled: Path, tmp_path: Path) -> None:
    """As one that was there before, unless it is to be replaced."""
    put(memory, labelled)
    captions, _ = listed_values(tmp_path, labelled)
    theirs = tmp_path / "theirs.csv"
    theirs.write_text(captions.read_text().replace(",of", ",their"))
    meanwhile(memory, "00000002.json", lambda: add_field(str(ADDRESS), theirs, CAPTION))
    with pytest.raises(UsageError, match=r"version 2 has a field caption already: .* --replace"):
        add_field(str(ADDRESS), captions, CAPTION)
    assert [caption for *_, caption in contents(memory)[0]] == [f"their {number}.jpg" for number in range(6)]


@pytest.mark.complete
def test_many_writers_at_once(memory: MemoryObjects, tmp_path: Path) -> None:
    """Each drops a row of its own, and all are gone."""
    writers = 20
    put(memory, packed(listed(tmp_path, 0, writers + 1), tmp_path / "labelled", "tar"))
    drop_rows(str(ADDRESS), [0])

    def dropped(row: int) -> None:
        place = ObjectWorkplace(ADDRESS, Path(tempfile.mkdtemp(dir=tmp_path)), memory)
        place.begin()
        place.publish(partial(without_rows, place, {"base": np.array([row])}, Change("drop-rows", str(row))))

    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(dropped, range(1, writers)))
    assert labels(memory) == [writers]


CHANGES: dict[str, Callable[[Path], object]] = {
    "append": lambda folder: append(str(ADDRESS), listed(folder, 10, 3)),
    "add-field": lambda folder: add_field(str(ADDRESS), folder / "captions.csv", CAPTION),
    "add-number": lambda folder: add_field(str(ADDRESS), folder / "scores.csv", SCORE),
    "drop-rows": lambda folder: drop_rows(str(ADDRESS), [1, 4]),
    "split": lambda folder: split(str(ADDRESS), val=0.5, stratified=False),
}


@pytest.mark.complete
@pytest.mark.campaign
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("begun", [False, True], ids=["packed", "changed"])
def test_stopped_before_any_request(
    memory: MemoryObjects, stopped: Stopped, labelled: Path, tmp_path: Path, name: str, begun: bool
) -> None:
    """The newest version is the old or the new one, all that it names is there, and the same call makes the new one.

    What was written in vain goes in a week.
    """
    listed_values(tmp_path, labelled)
    put(memory, labelled)
    if begun:
        append(str(ADDRESS), listed(tmp_path, 6, 2))
        listed_values(tmp_path, labelled, more=["6.jpg", "7.jpg"])
    old = new = contents(memory)
    for number in stopped(lambda: CHANGES[name](tmp_path)):
        found = contents(memory)
        if not number:
            new = found
            assert new != old
        assert found in (old, new)
        if found == old:
            CHANGES[name](tmp_path)
        assert contents(memory) == new
        memory.age(2 * WEEK)
        drop_version(str(ADDRESS))
        assert contents(memory) == new
        assert not verify(laid_out(objects_in(memory), tmp_path / "copy")).orphans


@pytest.mark.complete
@pytest.mark.parametrize("fault", [Status(500, done=True), Reset(0)], ids=["500", "broken off"])
def test_an_answer_of_a_server_is_lost(store: Server, labelled: Path, tmp_path: Path, fault: Fault) -> None:
    """The client asks again, and is refused because of its own first request."""
    url = uploaded(store, labelled)
    with behind(store, Rule(fault, "PUT", "versions/00000002.json")) as between:
        assert drop_rows(url, [0]).version == 2
        answers = between.traffic().of("versions/00000002.json", "PUT").exchanges
        assert [each.status for each in answers[1:]] == [412]
    copy = laid_out(objects_of(store, url), tmp_path / "copy")
    assert labels_of(copy) == [1, 2, 3, 4, 5]


def test_a_server_that_ignores_the_condition_is_refused(store: Server, labelled: Path, tmp_path: Path) -> None:
    url, more = uploaded(store, labelled), listed(tmp_path, 10, 1)
    before = objects_of(store, url)
    with behind(store, Rule(Unconditional(), "PUT", times=None)), pytest.raises(RemoteError, match="ignores"):
        append(url, more)
    assert objects_of(store, url) == before


@pytest.mark.complete
def test_commands_take_addresses(store: Server, labelled: Path, tmp_path: Path) -> None:
    """With several workers, each of which asks the store by itself."""
    url, out = uploaded(store, labelled), store.fresh()
    other = packed(listed(tmp_path, 40, 3), tmp_path / "other", "tar")
    append(url, listed(tmp_path, 10, 3))

    def said(*words: str) -> str:
        return CliRunner().invoke(group, words, standalone_mode=False, catch_exceptions=False).output

    assert "version 1 has the 12 rows of 2 datasets" in said("merge", url, str(other), out)
    assert "version 2 has the same 12 rows, 3 segments joined" in said("compact", out, "--workers", "2")
    assert "version 1 is kept for me" in said("pin", out, "1", "--by", "me")
    assert "merged" in said("log", out) and "(needed by me)" in said("log", out)
    assert "is not kept for me any longer" in said("unpin", out, "1", "--by", "me")
    assert "would have 11 rows" in said("purge", out, "--rows", "0", "--workers", "2", "--dry-run")
    purged = said("purge", out, "--rows", "0", "--workers", "2")
    assert "version 4 has 11 rows" in purged and "versions dropped: 1, 2, 3" in purged
    assert f"to be removed by `packtrain drop-version {out}` in a week: segments/" in purged
    assert "no version dropped" in said("drop-version", out)
    copy = laid_out(objects_of(store, out), tmp_path / "copy")
    assert labels_of(copy) == [*range(1, 6), 10, 11, 12, 40, 41, 42]


def test_who_only_reads_is_refused() -> None:
    for change in (partial(drop_rows, rows=[0]), compact, partial(purge, rows=[0]), drop_version):
        with pytest.raises(UsageError, match="https://host/out cannot be written to"):
            change("https://host/out")


def test_texts_are_not_read_for_a_split(memory: MemoryObjects, labelled: Path, tmp_path: Path) -> None:
    put(memory, labelled)
    captions, _ = listed_values(tmp_path, labelled)
    add_field(str(ADDRESS), captions, CAPTION)
    with pytest.raises(UsageError, match=f"`by` caption needs records, which are not fetched from {ADDRESS}"):
        split(str(ADDRESS), val=0.5, by="caption")


def test_damage_is_named_by_its_address(memory: MemoryObjects, labelled: Path) -> None:
    put(memory, labelled)
    drop_rows(str(ADDRESS), [0])
    memory.objects[f"{ADDRESS}/index/width.npy"] = b"damaged"
    with pytest.raises(CorruptFile, match=f"^{ADDRESS}/index/width.npy is damaged"):
        drop_rows(str(ADDRESS), where="width > 2")
    del memory.objects[f"{ADDRESS}/index/width.npy"]
    with pytest.raises(CorruptFile, match=f"^{ADDRESS}/index/width.npy is missing"):
        drop_rows(str(ADDRESS), where="width > 2")
    with pytest.raises(NotADataset, match=f"^there is no dataset at {ADDRESS}/none"):
        drop_rows(f"{ADDRESS}/none", [0])
