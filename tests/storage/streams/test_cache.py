"""Laws of the bounded cache, with a real fetcher in a process of its own and a folder in place of an object store."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.datasets import make_dataset
from helpers.local_objects import SPEC, LocalObjects
from helpers.processes import stop
from helpers.streaming import (
    URL,
    MiB,
    Remote,
    assert_whole,
    fetcher_pid,
    kill_fetcher,
    read,
    with_plan,
    write_plain,
)
from helpers.waiting import wait_until

from packtrain._core.locks import Lock, lock_holders
from packtrain._core.manifest import Manifest
from packtrain._readers.dataset.store import RecordStore
from packtrain._storage.staging.folder import Folder
from packtrain._storage.staging.options import StageOptions
from packtrain._storage.streams import connections
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.connections import start_fetcher
from packtrain._storage.streams.layout import CHUNKS, LOCK, address_in, chunk_path
from packtrain._storage.streams.opening import open_stream
from packtrain.errors import CorruptRecord, Denied, NotThere, RemoteError

INDEX_FILES = 10
"""Ranged reads of a dataset of `write_plain` before its chunks."""


pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture
def cache(remote: Remote) -> ChunkCache:
    """A cache of many chunks, none of which is there."""
    write_plain(remote.dataset, [[1000] * 100])
    return remote.open(4 * MiB)


class TestContent:
    def test_chunks_are_the_extents_of_their_shards(self, remote: Remote, format_name: str) -> None:
        with_plan(make_dataset(remote.dataset, format_name, rows=28))
        cache = remote.open(4 * MiB)
        assert len(cache.table) > 1
        for chunk in range(len(cache.table)):
            assert read(cache, chunk) == remote.expected(cache, chunk)

    @pytest.mark.complete
    def test_tiny_shards_fit_without_a_budget(self, remote: Remote) -> None:
        """Each is a chunk of its own, which takes a whole block of the file system."""
        write_plain(remote.dataset, [[1]] * 4000, gap=0)
        cache = open_stream(URL, StageOptions(remote.place), None, LocalObjects(), fetch_with=SPEC)
        assert isinstance(cache, ChunkCache)
        state = cache.state()
        assert cache.table.allocated.sum() <= state["budget"] - state["overhead"]

    def test_records_of_any_size(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[17 * MiB, 3, 0], [], [0], [100] * 300], order=False)
        cache = remote.open(40 * MiB)
        for chunk in range(len(cache.table)):
            assert read(cache, chunk) == remote.expected(cache, chunk)
        assert max(size for _, _, size in remote.store.reads()) <= 16 * MiB

    def test_a_range_is_not_asked_for_twice(self, remote: Remote) -> None:
        """Neighbouring fields and records come with one request, and of what lies between only a little."""
        write_plain(remote.dataset, [[1000] * 100] * 3)
        cache, other = remote.open(4 * MiB), remote.open(4 * MiB)
        for chunk in range(len(cache.table)):
            assert read(cache, chunk) == read(other, chunk)
        assert cache.state()["fetched"] == len(cache.table) and fetcher_pid(cache) == fetcher_pid(other)
        assert len(remote.store.reads()) == len(cache.table) + INDEX_FILES
        fetched = sum(size for name, _, size in remote.store.reads() if name.endswith(".tar"))
        assert fetched == sum(cache.table.bytes)


def spoilt(data: bytes, wrong: str) -> bytes:
    """A shard of which the first record is wrong, or all of them are."""
    return data[:600] + bytes([data[600] ^ 1]) + (data[601:] if wrong == "a record" else bytes(len(data) - 601))


class TestWrongBytes:
    """What the store returns never becomes a chunk unless all of its records are what was packed."""

    @pytest.fixture
    def cache(self, remote: Remote) -> ChunkCache:
        """A cache of two chunks."""
        write_plain(remote.dataset, [[3000] * 8])
        return remote.open(4 * MiB)

    @pytest.mark.parametrize("kind", ["wrong", "shifted", "zeros"])
    def test_they_are_fetched_again_once(self, kind: str, remote: Remote, cache: ChunkCache) -> None:
        before = len(remote.store.reads())
        remote.store.fault(kind)
        assert read(cache, 0) == remote.expected(cache, 0)
        assert len(remote.store.reads()) == before + 2

    @pytest.mark.parametrize("kind", ["shifted", "zeros"])
    def test_then_whoever_waits_gets_an_error_that_names_them(self, kind: str, remote: Remote) -> None:
        write_plain(remote.dataset, [[3000] * 8, [3000] * 8])
        cache = remote.open(4 * MiB)
        remote.store.fault(kind, 2)
        chunk = len(cache.table) - 1
        with pytest.raises(
            CorruptRecord, match=rf"s3://bucket/set/t-000001\.tar: .*row \d+.*chunk {chunk}.*twice"
        ) as error:
            cache.open(chunk)
        assert error.value.file == "t-000001.tar" and error.value.row is not None
        assert not cache.present[chunk] and not list((cache.entry / CHUNKS).iterdir())
        assert read(cache, chunk) == remote.expected(cache, chunk), "the next one who asks has it fetched again"

    def test_a_record_that_is_wrong_in_the_store_takes_no_other_with_it(self, remote: Remote) -> None:
        """Readers that compare records get its chunk, and find it; for the others, the chunk is an error."""
        write_plain(remote.dataset, [[3000] * 8])
        shard = remote.dataset / "t-000000.tar"
        sound = shard.read_bytes()
        shard.write_bytes(spoilt(sound, "a record"))
        cache, careless = remote.open(4 * MiB, check=True), remote.open(4 * MiB)
        manifest = Manifest.load(cache.dataset)
        store = RecordStore(cache.dataset, chunks=cache)
        for row in range(1, 8):
            store.record(row, "blob")
        with pytest.raises(CorruptRecord, match=r"row 0 .*`packtrain verify s3://bucket/set` says whether") as error:
            store.record(0, "blob")
        reads = remote.store.reads()
        with pytest.raises(CorruptRecord, match="row 0 "):
            store.record(0, "blob")
        assert remote.store.reads() == reads and error.value.file == manifest.shards[0].name, "it is not fetched again"
        store.close()
        with pytest.raises(CorruptRecord, match=r"t-000000\.tar: .*row 0 .*in chunk 0"):
            careless.open(0)
        assert_whole(remote, cache)
        assert read(cache, 0) == remote.expected(cache, 0), "as it lies in the store"
        assert (cache.entry / CHUNKS / ".00000000.wrong").exists()
        kill_fetcher(cache)
        shard.write_bytes(sound)
        assert read(careless, 0) == read(cache, 0) == remote.expected(cache, 0)
        assert not (cache.entry / CHUNKS / ".00000000.wrong").exists()

    @pytest.mark.parametrize("wrong", ["a record", "all"])
    def test_what_stays_wrong_is_not_fetched_for_each_of_its_records(self, wrong: str, remote: Remote) -> None:
        write_plain(remote.dataset, [[3000] * 8])
        shard = remote.dataset / "t-000000.tar"
        shard.write_bytes(spoilt(shard.read_bytes(), wrong))
        cache = remote.open(4 * MiB)
        reads = []
        for _ in range(5):
            with pytest.raises(CorruptRecord):
                cache.open(0)
            reads.append(len(remote.store.reads()))
        assert reads[0] < reads[1] == reads[-1], "the second time it may have been mended"

    @pytest.mark.parametrize("wrong", ["a record", "all"])
    def test_whoever_comes_after_it_was_mended_gets_what_was_packed(self, wrong: str, remote: Remote) -> None:
        """The fetcher remembers what was wrong for those who found it, not for a job that begins later."""
        write_plain(remote.dataset, [[3000] * 8])
        shard = remote.dataset / "t-000000.tar"
        sound = shard.read_bytes()
        shard.write_bytes(spoilt(sound, wrong))
        before = remote.open(4 * MiB, check=wrong == "a record")
        records = RecordStore(before.dataset, chunks=before)
        for _ in range(3):
            with pytest.raises(CorruptRecord):
                records.record(0, "blob")
        shard.write_bytes(sound)

        def read_anew() -> bool:
            later = RecordStore(before.dataset, chunks=remote.open(4 * MiB, check=wrong == "a record"))
            try:
                return bytes(later.record(0, "blob")) == sound[512:3512]
            except CorruptRecord:
                return False
            finally:
                later.close()

        reads = len(remote.store.reads())
        wait_until(read_anew, "another job has it fetched again", 30)
        assert len(remote.store.reads()) == reads + 1
        records.close()

    def test_what_is_wrong_in_another_way_each_time_is_an_error(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[3000] * 8])
        cache = remote.open(4 * MiB, check=True)
        remote.store.fault("wrong")
        remote.store.fault("wrong after all")
        with pytest.raises(CorruptRecord, match="twice"):
            cache.open(0)
        assert read(cache, 0) == remote.expected(cache, 0)

    @pytest.mark.parametrize("kind", ["short", "error", "bug"])
    def test_an_error_of_the_store_is_told(self, kind: str, remote: Remote, cache: ChunkCache) -> None:
        remote.store.fault(kind)
        with pytest.raises(RemoteError, match="s3://bucket/set"):
            read(cache, 1)
        assert read(cache, 1) == remote.expected(cache, 1)

    def test_an_object_that_has_become_shorter(self, remote: Remote, cache: ChunkCache) -> None:
        shard = remote.dataset / "t-000000.tar"
        data = shard.read_bytes()
        shard.write_bytes(data[:-1000])
        with pytest.raises(RemoteError, match="t-000000"):
            read(cache, len(cache.table) - 1)
        shard.unlink()
        with pytest.raises(NotThere, match="t-000000"):
            read(cache, 0)
        shard.write_bytes(data)
        for chunk in range(len(cache.table)):
            assert read(cache, chunk) == remote.expected(cache, chunk)

    def test_a_file_that_was_damaged_later_is_fetched_again(self, cache: ChunkCache) -> None:
        whole = read(cache, 0)
        path = chunk_path(cache.entry, 0)
        path.chmod(0o600)
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        cache.damaged(0)
        assert read(cache, 0) == whole
        path.write_bytes(whole[:100])
        assert read(cache, 0) == whole
        path.unlink()
        assert read(cache, 0) == whole

    def test_one_fault_disturbs_no_other_chunk(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[3000] * 40])
        cache = remote.open(4 * MiB)
        remote.store.fault("stall")
        waiting = threading.Thread(target=lambda: read(cache, 0))
        waiting.start()
        wait_until(lambda: len(remote.store.reads()) > INDEX_FILES, "a chunk is being read")
        for chunk in range(1, len(cache.table)):
            assert read(cache, chunk) == remote.expected(cache, chunk)
        (remote.store.folder / "go").touch()
        waiting.join(60)
        assert cache.present[0]


class TestKills:
    @pytest.mark.complete
    def test_a_killed_fetcher_is_replaced(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[1000] * 100] * 3)
        cache = remote.open(4 * MiB)
        first = fetcher_pid(cache)
        for chunk in range(len(cache.table)):
            assert read(cache, chunk) == remote.expected(cache, chunk)
            if chunk % 5 == 2:
                kill_fetcher(cache)
        assert fetcher_pid(cache) != first
        assert_whole(remote, cache)
        assert cache.state()["present"] == len(cache.table)

    @pytest.mark.complete
    def test_one_that_dies_again_and_again_is_given_up(self, remote: Remote, cache: ChunkCache) -> None:
        remote.store.fault("kill", 100)
        with pytest.raises(RemoteError, match="died 5 times"):
            read(cache, 0)
        remote.store.sound()
        assert read(cache, 0) == remote.expected(cache, 0)

    @pytest.mark.complete
    def test_one_that_never_begins_is_given_up_with_the_last_lines_of_its_log(
        self, remote: Remote, cache: ChunkCache
    ) -> None:
        (remote.store.folder / "deaths").write_bytes(bytes(100))
        lines = [f"line {number}" + "." * 90 for number in range(20)]
        (cache.entry / "fetcher.log").write_text("".join(f"{line}\n" for line in lines))
        with pytest.raises(
            RemoteError, match=r"did not begin: its process ended before it began\. The end of .*fetcher\.log: "
        ) as caught:
            read(cache, 0)
        assert lines[-1] in str(caught.value) and lines[0] not in str(caught.value)
        assert type(caught.value) is RemoteError

    def test_two_never_work_at_once(self, cache: ChunkCache) -> None:
        pid = fetcher_pid(cache)
        assert start_fetcher(cache.entry, SPEC) == {"busy": True}
        assert fetcher_pid(cache) == pid
        assert lock_holders((cache.entry / "fetcher.lock").stat()) == (pid,)

    def test_both_sides_of_a_fork_go_on(self, remote: Remote, cache: ChunkCache) -> None:
        read(cache, 0)
        children = []
        for number in range(3):
            child = os.fork()
            if not child:
                try:
                    right = all(
                        read(cache, chunk) == remote.expected(cache, chunk) for chunk in range(len(cache.table))
                    )
                    os._exit(0 if right else 1)
                finally:
                    os._exit(2)
            children.append(child)
            assert read(cache, number + 1) == remote.expected(cache, number + 1)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]

    @pytest.mark.complete
    def test_it_ends_when_nobody_needs_it(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[1000] * 100])
        (remote.store.folder / "impatient").touch()
        cache = remote.open(4 * MiB)
        pid = fetcher_pid(cache)
        cache.close()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the fetcher has ended")
        assert not (cache.entry / "fetcher.sock").exists()
        assert "Traceback" not in (cache.entry / "fetcher.log").read_text()
        assert read(cache, 2) == remote.expected(cache, 2)

    @pytest.mark.complete
    def test_one_that_hangs_is_named(self, remote: Remote, cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
        pid = fetcher_pid(cache)
        monkeypatch.setattr(connections, "_PING_SECONDS", 0.1)
        monkeypatch.setattr(connections, "_SILENT_SECONDS", 1.0)
        stop(pid)
        try:
            with pytest.raises(RemoteError, match=rf"process {pid}\) has not said anything") as caught:
                read(cache, 2)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert type(caught.value) is RemoteError
        assert read(cache, 2) == remote.expected(cache, 2)
        remote.store.fault("slow", 1)
        monkeypatch.setattr(connections, "_SILENT_SECONDS", 0.25)
        assert read(cache, 3) == remote.expected(cache, 3), "one that only waits for the store answers"

    def test_one_that_takes_no_connection_is_named(self, cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
        """As it hangs, more and more connections wait to be accepted, until there is no room for another one."""
        monkeypatch.setattr(connections, "_SILENT_SECONDS", 0.2)
        with (
            Lock(cache.entry / LOCK),
            socket.socket(socket.AF_UNIX) as hanging,
            socket.socket(socket.AF_UNIX) as first,
        ):
            folder = Folder.open(cache.entry)
            where = address_in(folder)
            hanging.bind(where)
            hanging.listen(0)
            first.connect(where)
            with pytest.raises(RemoteError, match=rf"process {os.getpid()}\) has not said anything.*end it") as caught:
                cache.state()
        assert type(caught.value) is RemoteError

    def test_a_fork_while_a_connection_begins(
        self, remote: Remote, cache: ChunkCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The fetcher notices the end of a process that has left a copy of its connection behind."""
        watcher = remote.open(4 * MiB)
        assert watcher.state()["clients"] == 1
        children: list[int] = []

        def connect(line: connections.Connection) -> None:
            connected(line)
            child = os.fork()
            if not child:
                signal.pause()
            children.append(child)

        connected = connections.Connection.connect
        try:
            with monkeypatch.context() as patch:
                patch.setattr(connections.Connection, "connect", connect)
                assert cache.state()["clients"] == 2
            cache.close()
            wait_until(lambda: watcher.state()["clients"] == 1, "the connection has ended", 10)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)

    def test_one_that_cannot_begin_says_why(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[1000] * 100])
        cache = ChunkCache(remote.open(4 * MiB).entry, 4 * MiB, "helpers.no_such_module:Objects")
        with pytest.raises(RemoteError, match="no_such_module"):
            cache.state()


class TestCredentials:
    def test_new_ones_of_the_same_process_are_used(self, remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
        write_plain(remote.dataset, [[1000] * 100])
        monkeypatch.setenv("AWS_SESSION_TOKEN", "old-token")
        cache = remote.open(4 * MiB)
        read(cache, 0)
        first = fetcher_pid(cache)
        (remote.store.folder / "token").write_text("new-token")
        with pytest.raises(Denied, match="expired"):
            read(cache, 1)
        assert fetcher_pid(cache) == first
        monkeypatch.setenv("AWS_SESSION_TOKEN", "new-token")
        for chunk in range(len(cache.table)):
            assert read(cache, chunk) == remote.expected(cache, chunk)
        assert fetcher_pid(cache) != first
        assert "-token" not in (cache.entry / "fetcher.log").read_text()

    def test_old_ones_of_another_process_do_no_harm(self, remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
        write_plain(remote.dataset, [[1000] * 100])
        monkeypatch.setenv("AWS_SESSION_TOKEN", "old-token")
        other = remote.open(4 * MiB)
        read(other, 0)
        monkeypatch.setenv("AWS_SESSION_TOKEN", "new-token")
        cache = remote.open(4 * MiB)
        assert fetcher_pid(cache) == fetcher_pid(other)
        (remote.store.folder / "token").write_text("new-token")
        assert read(cache, 1) == remote.expected(cache, 1)

    def test_a_copy_of_the_dataset_is_read_when_the_first_one_is_gone(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[1000] * 100])
        shutil.copytree(remote.dataset, remote.dataset.with_name("copy"))
        cache = remote.open(4 * MiB)
        read(cache, 0)
        (remote.dataset / "t-000000.tar").unlink()
        copy = remote.open(4 * MiB, URL.parent / "copy")
        assert copy.entry == cache.entry and str(copy.url) == "s3://bucket/copy"
        assert len(read(copy, 1)) == copy.table.bytes[1]

    def test_the_first_one_is_read_when_a_copy_that_was_opened_later_is_gone(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[1000] * 100])
        shutil.copytree(remote.dataset, remote.dataset.with_name("copy"))
        cache = remote.open(4 * MiB)
        copy = remote.open(4 * MiB, URL.parent / "copy")
        read(copy, 0)
        shutil.rmtree(remote.dataset.with_name("copy"))
        copied = pickle.loads(pickle.dumps(cache))
        assert read(copied, 1) == remote.expected(cache, 1)
        assert str(copied.url) == str(URL)


class TestMachine:
    def test_a_path_too_long_for_a_socket(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[1000] * 100])
        remote.place = remote.place.joinpath(*["a" * 40] * 6)
        remote.place.mkdir(parents=True)
        cache = remote.open(4 * MiB)
        assert len(str(cache.entry)) > 200
        assert read(cache, 0) == remote.expected(cache, 0)

    def test_a_stranger_understands_nothing(self, remote: Remote, cache: ChunkCache) -> None:
        """Whatever is sent, the fetcher answers with an error or ends the connection, and goes on."""
        read(cache, 0)
        folder = Folder.open(cache.entry)
        where = address_in(folder)
        for line in (
            b"nothing",
            b"[]",
            b"{}",
            b'{"do": "ask"}',
            b'{"do": "ask", "chunk": -1}',
            b'{"do": "ask", "chunk": 1e9}',
            b'{"do": "ask", "chunk": 123456}',
            b'{"do": "ask", "chunk": true}',
            b'{"do": "hello", "budget": "much"}',
            b'{"do": "read", "job": "x", "reading": {"rank": 0}}',
            b'{"do": "read", "job": "x", "reading": null}',
            b'{"do": "ahead", "chunks": 3}',
            b'{"do": "ahead", "chunks": [null]}',
            b"[" * 100_000,
            b"\xff\xfe",
        ):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(where)
                stranger.settimeout(30)
                stranger.sendall(line + b"\n")
                assert "error" in json.loads(stranger.recv(1 << 16).splitlines()[0]), line
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(where)
            stranger.settimeout(30)
            with suppress(BrokenPipeError, ConnectionResetError):
                stranger.sendall(b"x" * (3 << 20))
                assert not stranger.recv(1)
        assert read(cache, 1) == remote.expected(cache, 1)
        assert cache.state()["clients"] <= 2

    def test_no_credential_is_written_anywhere(
        self, remote: Remote, cache: ChunkCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SeCrEt")
        remote.store.fault("error", 1)
        with pytest.raises(RemoteError) as error:
            read(cache, 0)
        read(cache, 0)
        assert "SeCrEt" not in str(error.value)
        for path in cache.entry.rglob("*"):
            assert not path.is_file() or b"SeCrEt" not in path.read_bytes(), path
        pid = fetcher_pid(cache)
        assert b"SeCrEt" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"SeCrEt" in Path(f"/proc/{pid}/environ").read_bytes(), "but the fetcher has it"
