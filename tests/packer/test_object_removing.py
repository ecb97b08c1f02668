"""Laws of removing and writing again at an address, whatever others do meanwhile, and wherever it stops.

Nothing goes that a version names, and all else goes when it is a week old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.memory_objects import MemoryObjects
from helpers.support import held, image_set, packed, tree
from helpers.versions import laid_out, listed
from typing_extensions import override

from packtrain import append, compact, drop_rows, drop_version, open_dataset, purge, verify
from packtrain._packer import object_workplace
from packtrain._storage.remote.objects import Head, ListedObject
from packtrain._storage.remote.urls import Url
from packtrain.errors import OutputConflict, RemoteError

from .conftest import WEEK, meanwhile

ADDRESS = Url.parse("s3://bucket/out")
Stopped = Callable[[Callable[[], object]], Iterator[int]]


class Watched(MemoryObjects):
    """Objects that others change when all of them have been listed."""

    def __init__(self, objects: dict[str, bytes], listed: Callable[[], None]) -> None:
        super().__init__(objects)
        self._listed = listed

    @override
    def list(self, url: Url) -> Iterator[ListedObject]:
        yield from list(super().list(url))
        if url == ADDRESS:
            self._listed()


@pytest.fixture
def out(memory: MemoryObjects, tmp_path: Path) -> str:
    """A dataset of four versions at an address, of which the newest one has nothing of the first one."""
    folder = packed(image_set(tmp_path / "first", 4), tmp_path / "out", "tar")
    append(folder, image_set(tmp_path / "second", 5))
    drop_rows(folder, [0, 1, 2, 3])
    drop_rows(folder, [1])
    return memory.put(ADDRESS, tree(folder))


def sound(memory: MemoryObjects, folder: Path) -> list[object]:
    """The samples of the newest version at the address. All that versions name has to be there."""
    return list(held(open_dataset(laid_out(memory.under(ADDRESS), folder))))


def test_objects_go_a_week_after_their_version(memory: MemoryObjects, out: str, tmp_path: Path) -> None:
    samples, before = sound(memory, tmp_path / "copy"), dict(memory.objects)
    planned = drop_version(out, [1, 2, 3], dry_run=True)
    assert memory.objects == before
    memory.age(2 * WEEK)
    report = drop_version(out, [1, 2, 3])
    assert (planned.versions, planned.waiting) == (report.versions, report.waiting)
    assert not report.removed and "base" in report.waiting
    marks = {f"{ADDRESS}/versions/0000000{number}.dropped" for number in (1, 2, 3)}
    assert memory.objects == {**before, **dict.fromkeys(marks, b"")}
    memory.age(WEEK - 60)
    assert not drop_version(out).removed
    memory.age(120)
    expected = drop_version(out, dry_run=True)
    found = drop_version(out)
    assert set(found.removed) == set(report.waiting) == set(expected.removed)
    assert found.bytes == expected.bytes > 0
    left = memory.under(ADDRESS)
    assert {name.partition("/")[0] for name in left} == {"manifest.json", "versions", "segments", "dropped"}
    assert sound(memory, tmp_path / "copy") == samples
    assert not verify(tmp_path / "copy").orphans
    assert not drop_version(out).removed


def test_what_is_listed_lies_in_the_spool(memory: MemoryObjects, out: str, tmp_path: Path) -> None:
    """A key may hold anything."""
    mine = tmp_path / "mine.json"
    mine.write_text("mine")
    up = "/".join([".."] * 20)
    for place in ("versions", "pins"):
        for name in (f"{up}{mine}", f"{up}{tmp_path}/new.dropped", "a\0b.json", "00000001.json/a.json", ".."):
            memory.objects[f"{ADDRESS}/{place}/{name}"] = b"theirs"
    assert not drop_version(out).versions
    assert mine.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"mine.json", "spools", "first", "second", "out"}


def test_a_page_at_every_address_is_no_version(
    memory: MemoryObjects, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "head", lambda url: Head(5, ""))
    with pytest.raises(RemoteError, match="or a page at every address: have the server answer with status 404"):
        drop_version(out, 1)


@pytest.mark.complete
def test_a_version_that_is_made_while_objects_are_listed_keeps_what_it_names(
    memory: MemoryObjects, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if what it names has been there for longer than a week, as that of a writer that was suspended."""
    before = dict(memory.objects)
    append(out, image_set(tmp_path / "third", 3))
    samples, name = sound(memory, tmp_path / "copy"), f"{ADDRESS}/versions/00000005.json"
    document = memory.objects.pop(name)
    assert memory.objects.keys() > before.keys()

    def publish() -> None:
        memory.objects[name] = document

    watched = Watched(memory.objects, publish)
    watched.age(2 * WEEK)
    monkeypatch.setattr(object_workplace, "ObjectStore", lambda: watched)
    assert not drop_version(out).removed
    assert sound(memory, tmp_path / "copy") == samples
    # What no version names is removed.
    del memory.objects[name]
    monkeypatch.setattr(object_workplace, "ObjectStore", lambda: memory)
    memory.age(2 * WEEK)
    assert len(drop_version(out).removed) == 1
    assert memory.objects == before


@pytest.mark.complete
def test_versions_that_are_made_while_objects_are_removed_lose_nothing(
    memory: MemoryObjects, out: str, tmp_path: Path
) -> None:
    drop_version(out, [1, 2, 3])
    memory.age(2 * WEEK)
    more = image_set(tmp_path / "third", 3)
    meanwhile(memory, "", lambda: (append(out, more), drop_rows(out, [0, 5])))
    assert "base" in drop_version(out).removed
    assert len(sound(memory, tmp_path / "copy")) == 5
    assert not verify(tmp_path / "copy").orphans


@pytest.mark.campaign
def test_stopped_before_any_request(memory: MemoryObjects, stopped: Stopped, out: str, tmp_path: Path) -> None:
    samples, after = sound(memory, tmp_path / "copy"), dict[str, bytes]()

    def drop() -> None:
        drop_version(out, [1, 2, 3])
        memory.age(2 * WEEK)
        drop_version(out)

    for number in stopped(drop):
        assert sound(memory, tmp_path / "copy") == samples
        drop() if number else after.update(memory.objects)
        assert memory.objects == after


@pytest.fixture
def three(memory: MemoryObjects, tmp_path: Path) -> str:
    """A dataset of three segments at an address, two of which have dropped rows."""
    folder = packed(listed(tmp_path, 10, 4), tmp_path / "three", "tar")
    append(folder, listed(tmp_path, 20, 3))
    append(folder, listed(tmp_path, 30, 2))
    drop_rows(folder, [0, 5])
    return memory.put(ADDRESS, tree(folder))


@pytest.mark.complete
@pytest.mark.parametrize("rewritten", [compact, purge])
def test_what_others_append_meanwhile_is_there(
    memory: MemoryObjects, three: str, tmp_path: Path, rewritten: Callable[[str], object]
) -> None:
    samples = sound(memory, tmp_path / "copy")
    more = listed(tmp_path, 40, 3)
    meanwhile(memory, "00000005.json", lambda: append(three, more))
    rewritten(three)
    assert sound(memory, tmp_path / "copy")[: len(samples)] == samples
    assert len(open_dataset(tmp_path / "copy")) == len(samples) + 3
    # And the other way round.
    samples = sound(memory, tmp_path / "copy")
    meanwhile(memory, "00000007.json", lambda: compact(three))
    append(three, listed(tmp_path, 50, 2))
    assert sound(memory, tmp_path / "copy")[: len(samples)] == samples
    assert len(open_dataset(tmp_path / "copy")) == len(samples) + 2


@pytest.mark.complete
def test_what_others_change_meanwhile_is_not_joined(memory: MemoryObjects, three: str, tmp_path: Path) -> None:
    meanwhile(memory, "00000005.json", lambda: drop_rows(three, [1]))
    with pytest.raises(
        OutputConflict, match=f"^{ADDRESS}: somebody else has just changed what is joined, in version 5"
    ):
        compact(three)
    assert len(sound(memory, tmp_path / "copy")) == 6
    meanwhile(memory, "00000006.json", lambda: compact(three))
    with pytest.raises(OutputConflict, match="somebody else has just changed what is joined, in version 6"):
        compact(three)
    assert len(sound(memory, tmp_path / "copy")) == 6
    # What was written in vain goes.
    memory.age(2 * WEEK)
    drop_version(three)
    sound(memory, tmp_path / "copy")
    assert not verify(tmp_path / "copy").orphans


@pytest.mark.complete
@pytest.mark.campaign
@pytest.mark.parametrize("name", ["compact", "purge"])
def test_rewriting_stopped_before_any_request(
    memory: MemoryObjects, stopped: Stopped, three: str, tmp_path: Path, name: str
) -> None:
    """The rows are the old or the new ones, all that versions name is there, and the same command finishes it."""
    old = sound(memory, tmp_path / "copy")
    dataset = open_dataset(tmp_path / "copy")
    gone = [bytes(dataset.record(1)), dataset.filename(1).encode()]
    del dataset

    def run() -> None:
        compact(three) if name == "compact" else purge(three, [1])

    new = old
    for number in stopped(run):
        found = sound(memory, tmp_path / "copy")
        new = new if number else found
        assert found in (old, new)
        if found == old:
            run()
        elif name == "purge" and not all(mark in memory.under(ADDRESS) for mark in MARKS):
            purge(three)
        assert sound(memory, tmp_path / "copy") == new
        memory.age(2 * WEEK)
        drop_version(three)
        assert sound(memory, tmp_path / "copy") == new
        assert not verify(tmp_path / "copy").orphans
        if name == "purge":
            left = memory.under(ADDRESS)
            assert not [file for file, data in left.items() for part in gone if part in data]


MARKS = [f"versions/{number:08d}.dropped" for number in range(1, 6)]


@pytest.mark.complete
def test_rows_of_segments_that_are_joined_meanwhile_are_not_dropped(
    memory: MemoryObjects, three: str, tmp_path: Path
) -> None:
    samples = sound(memory, tmp_path / "copy")
    meanwhile(memory, "00000005.json", lambda: compact(three))
    with pytest.raises(OutputConflict, match=f"^{ADDRESS}: segment base has just been replaced by somebody else"):
        drop_rows(three, [0])
    assert sound(memory, tmp_path / "copy") == samples
