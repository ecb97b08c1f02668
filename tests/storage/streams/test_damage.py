"""Laws of caches that somebody has changed, or removed, by hand, or that a disk has damaged."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.local_objects import SPEC, LocalObjects
from helpers.streaming import MiB, Remote, fetcher_pid, kill_fetcher, read, write_plain
from helpers.support import flip, spoil
from helpers.waiting import wait_until

from packtrain._core.locks import lock_holders
from packtrain._core.opening import open_regular
from packtrain._core.processes import boot_id
from packtrain._readers.dataset.store import RecordStore
from packtrain._storage.streams import client
from packtrain._storage.streams.chunk_files import ChunkFiles
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.connections import start_fetcher
from packtrain._storage.streams.layout import CHUNKS, LOCK, LOG, PRESENT, SOCKET, chunk_path
from packtrain._storage.streams.manager import CacheManager
from packtrain.errors import StagingError

TABLE = [f"table-{name}.npy" for name in ("bounds", "shard", "bytes", "firsts", "start", "stop", "chunk", "position")]
FOLLOWS = [*TABLE, "table.json", PRESENT, "origin.json", "dataset/manifest.json"]
"""Files of an entry that follow from the rest of it, or from the object store."""


@pytest.fixture
def cache(remote: Remote, small_chunks: None) -> ChunkCache:
    """A cache of five chunks, none of which is there, without a fetcher."""
    write_plain(remote.dataset, [[3000] * 12, [3000] * 8], order=False)
    return remote.open(4 * MiB)


class TestTables:
    """What follows from index and object store is compared with its checksum, and made anew."""

    @pytest.mark.parametrize("damage", ["flipped", "short", "missing", "folder"])
    def test_whoever_opens_mends_them(self, damage: str, remote: Remote, cache: ChunkCache) -> None:
        sound = {name: (cache.entry / name).read_bytes() for name in FOLLOWS}
        for name in FOLLOWS:
            if (damage, name) in [("flipped", PRESENT), ("missing", "origin.json"), ("folder", "origin.json")]:
                # The next fetcher's business; no entry at all.
                continue
            spoil(cache.entry / name, damage)
            remote.open(4 * MiB)
            assert {name: (cache.entry / name).read_bytes() for name in FOLLOWS} == sound

    def test_what_a_killed_process_left_of_a_document_goes(self, remote: Remote, cache: ChunkCache) -> None:
        left = cache.entry / ".reservation.json.tmp-01234567"
        left.touch()
        remote.open(5 * MiB)
        assert not left.exists()

    def test_a_fetcher_mends_them(self, cache: ChunkCache) -> None:
        sound = {name: (cache.entry / name).read_bytes() for name in FOLLOWS}
        for name in ["table-position.npy", "table.json", PRESENT]:
            spoil(cache.entry / name, "short")
        spoil(cache.entry / "table-start.npy", "flipped")
        CacheManager(cache.entry, LocalObjects()).close()
        assert {name: (cache.entry / name).read_bytes() for name in FOLLOWS} == sound

    def test_a_byte_that_says_too_much(self, remote: Remote, cache: ChunkCache) -> None:
        """Nobody believes it without the file, and the next fetcher corrects it."""
        (cache.entry / PRESENT).write_bytes(b"\1\7\1\0\1")
        other = remote.open(4 * MiB)
        assert read(other, 1) == remote.expected(other, 1)
        assert bytes(other.present) == b"\0\1\0\0\0"


class TestRemoved:
    """Somebody cleans up by hand, and removes a part of a cache."""

    def test_whoever_opens_it_next_fetches_what_is_gone(self, remote: Remote, cache: ChunkCache) -> None:
        whole = {path.relative_to(cache.entry) for path in cache.entry.rglob("*")}
        sound = {name: (cache.entry / name).read_bytes() for name in whole if (cache.entry / name).is_file()}
        names = sorted(map(str, whole - {Path("origin.json")}))
        assert {"dataset", "dataset/index", "dataset/index/line.npy", "dataset/plan.json", CHUNKS, PRESENT} < {*names}
        for name in names:
            path = cache.entry / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            remote.open(4 * MiB).close()
            assert {path.relative_to(cache.entry) for path in cache.entry.rglob("*")} >= whole - {Path(CHUNKS)}, name
        assert {name: (cache.entry / name).read_bytes() for name in sound} == sound
        again = remote.open(4 * MiB)
        for chunk in range(len(again.table)):
            assert read(again, chunk) == remote.expected(again, chunk)
        assert not list(cache.entry.parent.glob(".tmp/*"))

    @pytest.mark.parametrize("column", ["line", "field.blob.length"])
    def test_whoever_opens_it_next_fetches_an_index_whose_header_is_damaged(
        self, remote: Remote, cache: ChunkCache, column: str
    ) -> None:
        path = cache.dataset / f"index/{column}.npy"
        sound = path.read_bytes()
        path.chmod(0o600)
        flip(path, 20)
        remote.open(4 * MiB).close()
        assert path.read_bytes() == sound

    def test_without_its_address_or_all_of_it_another_is_made(self, remote: Remote, cache: ChunkCache) -> None:
        (cache.entry / "origin.json").unlink()
        other = remote.open(4 * MiB)
        assert other.entry != cache.entry
        shutil.rmtree(other.entry)
        third = remote.open(4 * MiB)
        assert read(third, 0) == remote.expected(third, 0)

    def test_who_has_it_open_reads_on(self, remote: Remote, cache: ChunkCache) -> None:
        store = RecordStore(cache.dataset, chunks=cache)
        records = [bytes(store.record(row, "blob")) for row in range(20)]
        for name in ("dataset", CHUNKS, PRESENT):
            path = cache.entry / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            if name != PRESENT:
                assert [bytes(store.record(row, "blob")) for row in range(20)] == records, name
        again = RecordStore(cache.dataset, chunks=remote.open(4 * MiB))
        assert [bytes(again.record(row, "blob")) for row in range(20)] == records


class TestChunks:
    def test_what_lies_in_the_place_of_a_chunk_is_replaced(self, remote: Remote, cache: ChunkCache) -> None:
        """While the chunk is there and while it is not, with a fetcher and before it begins."""
        kinds = ["folder", "pipe", "device"]
        for chunk, kind in enumerate(kinds):
            spoil(cache.entry / CHUNKS / f"{chunk:08d}", kind)
        for _ in range(2):
            for chunk, kind in enumerate(kinds):
                assert read(cache, chunk) == remote.expected(cache, chunk)
                spoil(cache.entry / CHUNKS / f"{chunk:08d}", kind)
        for chunk in range(4):
            assert read(cache, chunk) == remote.expected(cache, chunk)
        assert {path.name for path in (cache.entry / CHUNKS).iterdir()} == {f"{chunk:08d}" for chunk in range(4)}

    @pytest.mark.parametrize("replace", ["missing", "file", "device"])
    def test_their_folder_is_made_anew(self, replace: str, remote: Remote, cache: ChunkCache) -> None:
        shutil.rmtree(cache.entry / CHUNKS)
        if replace == "file":
            (cache.entry / CHUNKS).touch()
        else:
            spoil(cache.entry / CHUNKS, replace)
        manager = CacheManager(cache.entry, LocalObjects())
        manager.allow(4 * MiB)
        for chunk in range(3):
            if chunk == 2:
                shutil.rmtree(cache.entry / CHUNKS)
            fetch(manager, chunk)
            assert (cache.entry / CHUNKS / f"{chunk:08d}").read_bytes() == remote.expected(cache, chunk)
        fetch(manager, 0)
        assert (cache.entry / CHUNKS / "00000000").read_bytes() == remote.expected(cache, 0), "it is missed"
        manager.close()


def fetch(manager: CacheManager, chunk: int) -> None:
    """Has a chunk fetched, as a client would."""
    assert not manager.ask(chunk)
    manager.decide()
    wait_until(lambda: any(outcome[:2] == (chunk, None) for outcome in manager.results()), "it is fetched")


class TestPowerCuts:
    """A chunk is shown before it is on the medium, and counts after a power cut only if it was."""

    @pytest.fixture
    def manager(self, cache: ChunkCache) -> Iterator[CacheManager]:
        """A manager without a fetcher."""
        manager = CacheManager(cache.entry, LocalObjects())
        manager.allow(4 * MiB)
        yield manager
        manager.close()

    @staticmethod
    def power_cut(cache: ChunkCache) -> None:
        (cache.entry / "boot").write_text("another")

    def test_what_was_synced_counts_and_the_rest_is_fetched_again(
        self, cache: ChunkCache, manager: CacheManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fetch(manager, 0)
        fetch(manager, 1)
        manager.close()
        lost = CacheManager(cache.entry, LocalObjects())
        lost.allow(4 * MiB)
        monkeypatch.setattr(ChunkFiles, "sync", lambda *_: None)
        fetch(lost, 2)
        lost.close()
        same = CacheManager(cache.entry, LocalObjects())
        assert same.figures()["present"] == 3, "a fetcher that dies loses nothing"
        same.close()
        os.truncate(cache.entry / CHUNKS / "00000002", 0)
        os.truncate(cache.entry / CHUNKS / "00000002", int(cache.table.bytes[2]))
        self.power_cut(cache)
        after = CacheManager(cache.entry, LocalObjects())
        assert [after.ask(chunk) for chunk in range(3)] == [True, True, False]
        assert bytes(cache.present) == b"\1\1\0\0\0"
        after.close()
        assert (cache.entry / "boot").read_text() == boot_id()

    def test_whoever_opens_it_has_a_fetcher_look_first(self, remote: Remote, cache: ChunkCache) -> None:
        """Readers that compare nothing would take what was not synced for what was packed."""
        whole = read(cache, 0)
        kill_fetcher(cache)
        cache.close()
        path = cache.entry / CHUNKS / "00000000"
        path.chmod(0o600)
        path.write_bytes(bytes(len(whole)))
        self.power_cut(cache)
        assert read(remote.open(4 * MiB), 0) == whole

    def test_the_next_fetcher_syncs_what_the_last_one_did_not(
        self, cache: ChunkCache, manager: CacheManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ChunkFiles, "sync", lambda *_: None)
            fetch(manager, 0)
            manager.close()
        CacheManager(cache.entry, LocalObjects()).close()
        self.power_cut(cache)
        after = CacheManager(cache.entry, LocalObjects())
        assert after.ask(0)
        after.close()

    def test_a_chunk_that_the_disk_does_not_take_is_given_up(
        self, cache: ChunkCache, manager: CacheManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(descriptor: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            fetch(manager, 0)
            wait_until(lambda: not manager.fetching, "it has been tried")
        manager.results()
        assert not cache.present[0]
        fetch(manager, 0)
        assert cache.present[0]

    @pytest.mark.parametrize("code", [errno.EIO, errno.EDQUOT])
    def test_a_disk_that_takes_nothing_is_left_alone_for_a_while(
        self, code: int, remote: Remote, cache: ChunkCache, manager: CacheManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What nobody waits for is fetched again after pauses, each longer than the one before."""

        def fails(descriptor: int) -> None:
            raise OSError(code, os.strerror(code))

        def settled() -> bool:
            manager.results()
            manager.reclaim()
            manager.decide()
            return not manager.fetching

        now = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        manager.fill(True)
        counts = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            for second in range(12):
                now[0] = 1000.0 + second * 1.001
                while not (settled() and settled()):
                    time.sleep(0.001)
                counts.append(sum(name.endswith(".tar") for name, *_ in remote.store.reads()) // len(cache.table))
        # After 1, 2, 4 and 8 seconds more.
        assert counts == [1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]
        now[0] += 60
        while not (settled() and settled()):
            time.sleep(0.001)
        assert all(cache.present)

    def test_it_is_not_idle_before_everything_is_on_the_medium(
        self, manager: CacheManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A fetcher that ended now would hold its lock, and answer nobody, until it is."""
        slow = threading.Event()
        monkeypatch.setattr(ChunkFiles, "sync", lambda *_: slow.wait(60))
        try:
            fetch(manager, 0)
            assert manager.fetching
        finally:
            slow.set()
        wait_until(lambda: not manager.fetching, "it is on the medium")

    def test_one_that_came_back_while_it_was_opened(
        self, remote: Remote, cache: ChunkCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is read is the file that has the name, not the one that went, whose bytes nobody counts."""
        whole = read(cache, 0)
        swapped: list[int] = []

        def swapping(path: Path, *, follow: bool) -> int:
            descriptor = open_regular(path, follow=follow)
            if not swapped:
                swapped.append(os.fstat(descriptor).st_ino)
                path.unlink()
                path.write_bytes(whole)
            return descriptor

        monkeypatch.setattr(client, "open_regular", swapping)
        descriptor = cache.open(0)
        assert os.fstat(descriptor).st_ino == chunk_path(cache.entry, 0).stat().st_ino != swapped[0]
        os.close(descriptor)


class TestEntries:
    @pytest.mark.complete
    def test_an_entry_that_is_removed_and_made_anew(self, remote: Remote, cache: ChunkCache) -> None:
        """The old fetcher ends, and takes nothing of the new one's away; the old readers are told what to do."""
        read(cache, 0)
        old = fetcher_pid(cache)
        cache.entry.rename(remote.place / "away")
        new = remote.open(4 * MiB)
        assert new.entry == cache.entry
        pid = fetcher_pid(new)
        wait_until(lambda: not Path(f"/proc/{old}").exists(), "the old fetcher has ended")
        assert (new.entry / SOCKET).exists() and fetcher_pid(new) == pid != old
        with pytest.raises(StagingError, match="open the dataset again"):
            read(cache, 1)
        assert read(new, 1) == remote.expected(new, 1)

    def test_a_socket_that_is_not_its_own(self, cache: ChunkCache) -> None:
        """A fetcher whose socket is replaced ends, since nobody finds it, and leaves the other one alone."""
        assert start_fetcher(cache.entry, SPEC) == {"ok": True}
        (cache.entry / SOCKET).unlink()
        (cache.entry / SOCKET).write_text("another's")
        wait_until(lambda: not lock_holders((cache.entry / LOCK).stat()), "the fetcher has ended")
        assert (cache.entry / SOCKET).read_text() == "another's"
        assert SOCKET in (cache.entry / LOG).read_text()

    def test_an_entry_that_is_removed(self, cache: ChunkCache) -> None:
        shutil.rmtree(cache.entry)
        with pytest.raises(StagingError, match=r"removed .*: open the dataset again"):
            read(cache, 1)

    @pytest.mark.complete
    def test_a_lock_that_is_removed(self, remote: Remote, cache: ChunkCache) -> None:
        """There are not two fetchers for longer than it takes to notice."""
        old = fetcher_pid(cache)
        (cache.entry / "fetcher.lock").unlink()
        wait_until(lambda: not Path(f"/proc/{old}").exists(), "the old fetcher has ended")
        assert read(cache, 1) == remote.expected(cache, 1)

    def test_what_lies_in_the_place_of_the_socket(self, remote: Remote, cache: ChunkCache) -> None:
        spoil(cache.entry / SOCKET, "folder")
        assert read(cache, 1) == remote.expected(cache, 1)
