"""Laws of eviction: which entries are evicted, in which order, and which ones are always kept."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers.staging.children import Child
from helpers.staging.laws import assert_tidy, big_dataset, packed_pictures, root_of, until_pieces_are_noted
from helpers.staging.unused import budget_of, staged
from helpers.waiting import wait_until

from packtrain import StageOptions, stage
from packtrain._readers.dataset.store import RecordStore
from packtrain._storage.staging.documents import write_reservation
from packtrain._storage.staging.entries import scan
from packtrain._storage.staging.folder import Folder
from packtrain._storage.staging.root import Root
from packtrain.errors import Leased, NoRoom, StagingError, UsageError
from packtrain.staging import Entry, entries, evict, pin


def used_at(place: Path, entry: Path, seconds: float) -> None:
    """Sets the time when an entry was last used, in seconds since 1970."""
    os.utime(root_of(place) / ".locks" / f"{entry.name.rpartition('-')[2]}.lease", (seconds, seconds))


def staged_and_released(datasets: Sequence[Path], place: Path) -> list[Path]:
    """Entries that nobody uses, least recently used first."""
    paths = []
    for number, dataset in enumerate(datasets, start=1):
        paths.append(staged(dataset, place))
        used_at(place, paths[-1], number)
    return paths


def entry_of(place: Path, path: Path) -> Entry:
    return next(entry for entry in entries(place) if entry.path == path)


def there(place: Path) -> set[Path]:
    return set(root_of(place).glob("[!.]*"))


class TestOrder:
    @pytest.mark.complete
    def test_interrupted_copies_go_before_anything(
        self, datasets: tuple[Path, ...], place: Path, tmp_path: Path, start: Callable[[], Child]
    ) -> None:
        paths = staged_and_released(datasets[:2], place)
        child = start()
        child.send("stage", dataset=big_dataset(tmp_path / "big", [40 << 20] * 2), to=place)
        until_pieces_are_noted(place)
        child.kill()
        (copy,) = [entry for entry in entries(place) if not entry.finished]
        assert copy.state == "interrupted" and copy.bytes > 40 << 20
        small = sum(entry.bytes for entry in entries(place) if entry.finished)
        new = stage(datasets[2], StageOptions(to=place, budget=copy.bytes + small + 8192))
        assert_tidy(place, new.path, *paths)

    def test_what_a_killed_copier_had_reserved_is_nobodys(self, datasets: tuple[Path, ...], place: Path) -> None:
        """So its files need not be evicted, and its copy can be continued."""
        (path,) = staged_and_released(datasets[:1], place)
        copy = root_of(place) / ".tmp" / ("0" * 16)
        copy.mkdir()
        write_reservation(Folder.open(copy), datasets[1], 1 << 40)
        new = stage(datasets[2], StageOptions(to=place, budget=budget_of(place, 2)))
        assert there(place) == {path, new.path}
        assert [entry.path for entry in entries(place) if entry.state == "interrupted"] == [copy]

    def test_room_on_the_file_system_counts_too(
        self, datasets: tuple[Path, ...], mounted: Callable[[str], Path]
    ) -> None:
        """Without a budget, and with room for three entries if nothing were reserved for others."""
        reserve = 200 << 10
        measured = mounted("size=64m")
        staged_and_released(datasets[:3], measured)
        place = mounted(f"size={sum(entry.bytes for entry in entries(measured)) + reserve - 8192}")
        first, second = staged_and_released(datasets[:2], place)
        new = stage(datasets[2], StageOptions(to=place, reserve=reserve))
        assert there(place) == {second, new.path}
        assert not first.exists()
        status = os.statvfs(place)
        assert status.f_bavail * status.f_frsize >= reserve, "what is reserved for others stays free"


class TestStays:
    """What must be kept is kept, and if that leaves too little room, nothing at all is evicted."""

    @pytest.mark.parametrize(
        ("why", "message"),
        [
            ("in use", "being read by process"),
            ("pinned", r"pinned: .*staged unpin \S+ --to "),
            ("in its grace period", "was printed recently"),
        ],
    )
    def test_what_somebody_keeps(self, datasets: tuple[Path, ...], place: Path, why: str, message: str) -> None:
        first, second = staged_and_released(datasets[:2], place)
        store = RecordStore(first) if why == "in use" else None
        if why == "pinned":
            assert pin(place, first.name).pinned
        elif why == "in its grace period":
            staged(datasets[0], place, grace=3600)
            assert time.time() + 3590 < entry_of(place, first).promised_until < time.time() + 3610
        used_at(place, first, 1)
        new = stage(datasets[2], StageOptions(to=place, budget=budget_of(place, 2)))
        assert there(place) == {first, new.path} and not second.exists()
        with pytest.raises(NoRoom, match=rf"These copies cannot make room: .*{first.name} \({why}\)"):
            stage(datasets[3], StageOptions(to=place, budget=budget_of(place, 2)))
        assert there(place) == {first, new.path}
        with pytest.raises(StagingError, match=message):
            evict(place, [first.name], force=why != "in its grace period")
        del store
        assert not pin(place, str(first), False).pinned
        promise = root_of(place) / ".locks" / f"{entry_of(place, first).key}.promise"
        if promise.exists():
            os.utime(promise, (time.time() - 1, time.time() - 1))
        assert [entry.path for entry in evict(place, [first.name])] == [first]

    def test_a_longer_promise_is_kept(self, dataset: Path, place: Path) -> None:
        for grace in (7200, 60, 0):
            staged(dataset, place, grace=grace)
        (entry,) = entries(place)
        assert entry.promised_until > time.time() + 7000

    @pytest.mark.parametrize("how", ["removed", "replaced", "note lost", "note damaged", "manifest damaged"])
    def test_what_may_be_the_only_copy(self, datasets: tuple[Path, ...], place: Path, tmp_path: Path, how: str) -> None:
        source = packed_pictures(tmp_path / "only", 90)
        (only,) = staged_and_released([source], place)
        if how in ("removed", "replaced"):
            shutil.rmtree(source)
            if how == "replaced":
                shutil.copytree(datasets[3], source)
        elif how == "manifest damaged":
            (source / "manifest.json").chmod(0o644)
            (source / "manifest.json").write_bytes(b"{}")
        else:
            (only / "staged.json").unlink()
            if how == "note damaged":
                (only / "staged.json").write_text("{")
        staged(datasets[0], place)
        new = stage(datasets[1], StageOptions(to=place, budget=budget_of(place, 2)))
        assert there(place) == {only, new.path}
        with pytest.raises(NoRoom, match=rf"{only.name} \(may be the only copy: "):
            stage(datasets[2], StageOptions(to=place, budget=budget_of(place, 1)))
        with pytest.raises(StagingError, match=rf"may be the only copy: .*staged evict {only.name} --force"):
            evict(place, [only.name])
        new.lease.close()
        kept: list[Path] = []
        # Whoever is told may ask what there is.
        gone = evict(place, on_kept=lambda entry, why: kept.extend(each.path for each in entries(place)))
        assert ([entry.path for entry in gone], kept) == ([new.path], [only])
        assert len(RecordStore(only)) > 0

    @pytest.mark.parametrize("replaced", [False, True])
    def test_it_may_go_when_there_is_a_source_again(
        self, datasets: tuple[Path, ...], place: Path, tmp_path: Path, replaced: bool
    ) -> None:
        source = packed_pictures(tmp_path / "first", 90)
        (only,) = staged_and_released([source], place)
        source.rename(tmp_path / "second")
        if replaced:
            shutil.copytree(datasets[0], source)
        assert evict(place) == []
        again = stage(tmp_path / "second", StageOptions(to=place))
        assert (again.path, again.copied) == (only, 0)
        again.lease.close()
        assert [entry.path for entry in evict(place)] == [only]


class TestByName:
    def test_what_is_read_names_who_reads_it(self, dataset: Path, place: Path, start: Callable[[], Child]) -> None:
        readers = [start(), start()]
        (path,) = {reader.do("stage", dataset=dataset, to=place, name="staged")["path"] for reader in readers}
        pids = ", ".join(str(reader.pid) for reader in sorted(readers, key=lambda reader: reader.pid))
        for force in (False, True):
            with pytest.raises(Leased, match=f"being read by process {pids}"):
                evict(place, [path], force=force)

    @pytest.mark.complete
    def test_what_is_copied(self, place: Path, tmp_path: Path, start: Callable[[], Child]) -> None:
        child = start()
        child.send("stage", dataset=big_dataset(tmp_path / "big", [60 << 20] * 4), to=place, name="staged")
        wait_until(lambda: any(root_of(place).glob(".tmp/*/journal")), "it has begun to copy")
        (copy,) = entries(place)
        with pytest.raises(Leased, match=f"being (copied|read) by process {child.pid}"):
            evict(place, [copy.key])
        assert evict(place) == []
        assert child.answer()["copied"]

    def test_all_or_none(self, datasets: tuple[Path, ...], place: Path) -> None:
        first, second = staged_and_released(datasets[:2], place)
        store = RecordStore(second)
        try:
            evict(place, [first.name, second.name])
        except Leased:
            # Nothing is locked any more, not even while the error is handled.
            assert [entry.leased for entry in entries(place)] == [False, True]
        else:
            pytest.fail("one of them is read")
        assert there(place) == {first, second}
        del store
        assert {entry.path for entry in evict(place, [first.name, second.name, first.name])} == {first, second}

    def test_a_beginning_that_two_have_or_that_is_too_short(
        self, datasets: tuple[Path, ...], place: Path, tmp_path: Path
    ) -> None:
        too = shutil.copytree(datasets[1], tmp_path / f"{datasets[0].name}-too")
        first, second = staged_and_released([datasets[0], too], place)
        with pytest.raises(StagingError, match=rf"matches several copies: {first.name}, {second.name}"):
            evict(place, [datasets[0].name])
        for short in ("", first.name[:3]):
            with pytest.raises(UsageError, match="too short"):
                pin(place, short)
        assert there(place) == {first, second}

    def test_where_nothing_was_ever_staged(self, place: Path) -> None:
        assert entries(place) == evict(place) == []
        for call in (lambda: pin(place, "anything"), lambda: evict(place, ["anything"])):
            with pytest.raises(StagingError, match="nothing is staged in"):
                call()
        assert not root_of(place).exists()


def test_a_reader_that_comes_between_looking_and_evicting_is_seen(
    datasets: tuple[Path, ...], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only taking the lock decides whether somebody reads the entry."""
    first, second = staged_and_released(datasets[:2], place)
    stores: list[RecordStore] = []
    scans = []

    def scan_and_open(root: Root) -> list[Entry]:
        scans.append(known := scan(root))
        # The first finds that there is no room, the second looks for sources, the third chooses.
        if len(scans) == 3:
            stores.append(RecordStore(first))
        return known

    monkeypatch.setattr("packtrain._storage.staging.eviction.scan", scan_and_open)
    new = stage(datasets[2], StageOptions(to=place, budget=budget_of(place, 2)))
    assert there(place) == {first, new.path}
    assert not second.exists()
