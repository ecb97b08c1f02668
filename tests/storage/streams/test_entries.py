"""Laws of caches as entries of a staging root: counted, listed, kept while they are used, evicted as a whole."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from helpers.local_objects import SPEC, LocalObjects
from helpers.staging.laws import packed_pictures
from helpers.streaming import URL, MiB, Remote, fetcher_pid, read, taken, write_plain
from helpers.waiting import wait_until

from packtrain import StageOptions, open_dataset, stage
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.opening import open_stream
from packtrain.errors import Leased, NoRoom, NotADataset, SourceChanged, StagingError, UsageError
from packtrain.staging import entries, evict, pin, repair, strays


def released(cache: ChunkCache) -> None:
    """Ends a cache and its fetcher, and so the leases on it."""
    pid = fetcher_pid(cache)
    cache.close()
    cache._lease.close()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(entry.leased for entry in entries(cache.entry.parents[1])), "nobody leases them")


class TestListed:
    def test_what_it_takes_and_may_take(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[MiB] * 20])
        cache = remote.open(25 * MiB)
        read(cache, 0)
        (entry,) = entries(remote.place)
        assert entry.state == "stream" and entry.finished and entry.leased
        assert entry.path == cache.entry and entry.source == URL
        assert entry.bytes >= taken(cache.entry) - 4096 and entry.bytes + entry.reserved == 25 * MiB
        assert strays(remote.place) == []
        released(cache)
        (entry,) = entries(remote.place)
        assert entry.reserved == 0 and not entry.leased

    def test_a_copy_of_the_same_dataset_is_another_entry(self, remote: Remote, tmp_path: Path) -> None:
        packed_pictures(remote.dataset, 0)
        cache = remote.open(50 * MiB)
        staged = stage(remote.dataset, StageOptions(to=remote.place))
        assert {entry.state for entry in entries(remote.place)} == {"stream", "complete"}
        assert staged.path != cache.entry
        assert stage(remote.dataset, StageOptions(to=remote.place)).copied == 0
        staged.lease.close()
        assert [entry.state for entry in evict(remote.place)] == ["complete"]


class TestEvicted:
    def test_not_while_it_is_used(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[MiB]])
        cache = remote.open(50 * MiB)
        with pytest.raises(Leased):
            evict(remote.place, [cache.entry.name])
        assert evict(remote.place) == []
        assert read(cache, 0) == remote.expected(cache, 0)
        released(cache)
        pin(remote.place, cache.entry.name)
        assert evict(remote.place) == []
        pin(remote.place, cache.entry.name, False)
        assert [entry.path for entry in evict(remote.place)] == [cache.entry]
        assert not cache.entry.exists()
        with pytest.raises(StagingError, match="evicted"):
            ChunkCache(*cache.__reduce__()[1])

    def test_it_makes_room_for_a_copy(self, remote: Remote, tmp_path: Path) -> None:
        write_plain(remote.dataset, [[MiB] * 3])
        cache = remote.open(50 * MiB)
        read(cache, 0)
        released(cache)
        copied = packed_pictures(tmp_path / "set", 0)
        stage(copied, StageOptions(to=remote.place, budget=taken(copied) + MiB // 2))
        assert [entry.state for entry in entries(remote.place)] == ["complete"]

    def test_nobody_repairs_it(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[MiB]])
        cache = remote.open(50 * MiB)
        with pytest.raises(StagingError, match="is a cache of s3://bucket/set"):
            repair(remote.place, cache.entry.name)


class TestOpened:
    def test_the_next_one_finds_it(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[MiB] * 3])
        cache = remote.open(50 * MiB)
        data = read(cache, 0)
        released(cache)
        reads = remote.store.reads()
        again = remote.open(50 * MiB)
        assert again.entry == cache.entry and read(again, 0) == data
        assert remote.store.reads() == reads

    def test_what_is_no_dataset(self, remote: Remote) -> None:
        with pytest.raises(NotADataset, match=r"no dataset at s3://bucket/set"):
            remote.open(50 * MiB)

    @pytest.mark.parametrize("name", ["plan.json", "index/line.npy"])
    def test_what_is_not_as_packed(self, name: str, remote: Remote) -> None:
        write_plain(remote.dataset, [[MiB]])
        path = remote.dataset / name
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
        with pytest.raises(SourceChanged, match=name):
            remote.open(50 * MiB)
        assert not [entry for entry in entries(remote.place) if entry.finished]

    @pytest.mark.parametrize("address", [None, str(URL)])
    def test_a_folder_that_is_not_there(self, address: str | None, remote: Remote, tmp_path: Path) -> None:
        """The message says what to type, in the words of whoever typed it."""
        write_plain(remote.dataset, [[10]])
        with pytest.raises(StagingError, match=r"there is no folder .*nowhere: .*stage=\"/dev/shm\"") as error:
            open_dataset(address or remote.dataset, stage=tmp_path / "nowhere")
        assert "`to`" not in str(error.value)

    @pytest.mark.parametrize(
        ("options", "budget", "error", "message"),
        [
            ({}, 4096, NoRoom, r"the index of s3://bucket/set takes .* raise the budget"),
            ({"budget": 1000}, 50 * MiB, NoRoom, r"raise it \(`StageOptions.budget`\).* \(`open_dataset\(budget=\)`\)"),
            ({"warm": True}, MiB, UsageError, "`packtrain stage`, which accepts it, and open the printed path"),
            ({"threads": 2}, MiB, UsageError, "`packtrain stage`, which accepts it, and open the printed path"),
        ],
    )
    def test_what_does_not_fit_or_is_for_copies_only(
        self, options: dict[str, Any], budget: int, error: type[Exception], message: str, remote: Remote
    ) -> None:
        write_plain(remote.dataset, [[10] * 3000])
        with pytest.raises(error, match=message):
            open_stream(URL, StageOptions(remote.place, **options), budget, LocalObjects(), fetch_with=SPEC)

    def test_it_is_opened_by_its_address(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[MiB]])
        cache = remote.open(50 * MiB)
        said = re.escape(
            f"a cache of {URL}, and no copy: open the address, with open_dataset('{URL}', stage='{remote.place}')"
        )
        with pytest.raises(StagingError, match=said):
            open_dataset(cache.entry)

    def test_a_budget_that_the_file_system_does_not_hold(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[MiB]])
        cache = remote.open(1 << 60)
        assert cache.state()["budget"] == 1 << 60
        (entry,) = entries(remote.place)
        assert entry.bytes + entry.reserved < 20 * MiB, "no more is promised to it than the dataset can take"
