"""A lease lasts as long as any process that holds it, no matter which others die or what that process does."""

from __future__ import annotations

import ast
import copy
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.staging.children import Child, Children
from helpers.staging.laws import root_of

import packtrain._core
import packtrain._storage.staging
from packtrain import StageOptions, append, drop_rows, drop_version, stage
from packtrain._core.locks import Lock
from packtrain._readers.dataset.store import RecordStore
from packtrain._storage.staging.locks import is_held, lock_path, try_lock
from packtrain._storage.staging.root import Root
from packtrain.errors import Leased, OutputConflict, StagingError
from packtrain.staging import Entry, Staged, StageProgress, entries, evict, lease_on


def the_entry(place: Path) -> Entry:
    (entry,) = entries(place)
    return entry


@pytest.fixture
def staged(dataset: Path, place: Path) -> Staged:
    return stage(dataset, StageOptions(to=place))


class TestInOneProcess:
    def test_closed_twice_it_closes_nothing_else(self, staged: Staged, place: Path) -> None:
        number = staged.lease.fileno()
        staged.lease.close()
        with (place / "other").open("wb") as file:
            os.dup2(file.fileno(), number)
            staged.lease.close()
            assert os.write(number, b"still open")
            os.close(number)

    def test_opening_takes_one(self, staged: Staged, place: Path) -> None:
        store = RecordStore(staged.path)
        staged.lease.close()
        assert the_entry(place).leased
        store.close()
        assert the_entry(place).leased, "closing a store only closes its shards, and it can be read again"
        del store
        assert not the_entry(place).leased

    def test_opening_through_a_link_takes_one(self, staged: Staged, place: Path) -> None:
        (place / "link").symlink_to(staged.path)
        store = RecordStore(place / "link")
        staged.lease.close()
        assert the_entry(place).leased
        del store

    def test_an_ordinary_dataset_has_none(self, dataset: Path, tmp_path: Path) -> None:
        assert lease_on(dataset) is None
        assert lease_on(tmp_path / "nowhere") is None
        before = {path: path.stat().st_mtime_ns for path in dataset.parent.rglob("*")}
        RecordStore(dataset)
        assert {path: path.stat().st_mtime_ns for path in dataset.parent.rglob("*")} == before

    def test_copies_and_pickles_have_their_own(self, staged: Staged, place: Path) -> None:
        store = RecordStore(staged.path)
        copies = [copy.copy(store), pickle.loads(pickle.dumps(store)), pickle.loads(pickle.dumps(staged.lease))]
        staged.lease.close()
        del store
        while copies:
            assert the_entry(place).leased
            copies.pop()
        assert not the_entry(place).leased

    def test_taking_one_is_using_it(self, staged: Staged, place: Path) -> None:
        staged.lease.close()
        lease = root_of(place) / ".locks" / f"{staged.id.rpartition('-')[2]}.lease"
        os.utime(lease, (1, 1))
        entries(place)
        assert the_entry(place).last_used == 1, "listing an entry does not count as using it"
        RecordStore(staged.path)
        assert the_entry(place).last_used > 1

    def test_an_evicted_path(self, staged: Staged, place: Path) -> None:
        staged.lease.close()
        evict(place)
        with pytest.raises(StagingError, match=rf"has been evicted: stage it again.*--to {place}"):
            RecordStore(staged.path)


class TestKilled:
    @pytest.mark.parametrize("what", ["staged", "opened"])
    def test_a_worker_outlives_its_parent(
        self, dataset: Path, place: Path, children: Children, start: Callable[[], Child], what: str
    ) -> None:
        parent = start()
        path = parent.do("stage", dataset=dataset, to=place, name="staged")["path"]
        parent.do("open_store", path=path, name="store")
        before = parent.do("records", name="store")
        parent.do("drop", name="staged" if what == "opened" else "store")
        worker = children.fork(parent)
        parent.kill()
        assert the_entry(place).leased
        with pytest.raises(Leased):
            evict(place, [path])
        if what == "opened":
            assert worker.do("records", name="store") == before
        worker.kill()
        assert not the_entry(place).leased

    def test_a_worker_that_ends_takes_nothing_away(
        self, dataset: Path, place: Path, children: Children, start: Callable[[], Child]
    ) -> None:
        """However the child ends; LOCK_UN in the child would also have released its parent's lease."""
        parent = start()
        parent.do("stage", dataset=dataset, to=place, name="staged")
        for way in ("kill", "end", "drop"):
            worker = children.fork(parent)
            if way == "drop":
                worker.do("drop", name="staged")
            getattr(worker, "end" if way == "end" else "kill")()
            assert the_entry(place).leased, way
            assert evict(place) == []
        parent.do("drop", name="staged")
        assert not the_entry(place).leased


class TestForks:
    """This process forks directly, so that nothing else happens in between."""

    @pytest.fixture
    def fork(self) -> Callable[[Callable[[], object]], int]:
        """Runs a function in a forked process and returns its exit status."""

        def run(function: Callable[[], object]) -> int:
            child = os.fork()
            if child == 0:
                try:
                    function()
                except BaseException:
                    os._exit(1)
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        return run

    def test_closed_in_a_child(self, staged: Staged, place: Path, fork: Callable[..., int]) -> None:
        assert fork(staged.lease.close) == 0
        assert the_entry(place).leased
        assert evict(place) == []

    def test_exclusive_locks_are_not_inherited(self, tmp_path: Path, fork: Callable[..., int]) -> None:
        """A worker that is started while another thread copies must not hold that lock for the rest of its life."""
        root = Root.make(tmp_path)
        (reading, writing), (ready, begun) = os.pipe(), os.pipe()
        with root.ledger(), Lock(lock_path(root, "key", "build")):
            child = os.fork()
            if child == 0:
                os.close(writing)
                os.write(begun, b".")
                os.read(reading, 1)  # until the parent is done
                os._exit(0)
            os.read(ready, 1)
        try:
            Lock(root.locks.path / "ledger", wait=False).close()
            assert not is_held(root, "key", "build")
        finally:
            for descriptor in (writing, reading, ready, begun):
                os.close(descriptor)
            os.waitpid(child, 0)

    def test_a_child_does_not_give_up_its_parents_locks(self, tmp_path: Path, fork: Callable[..., int]) -> None:
        root = Root.make(tmp_path)
        with Lock(lock_path(root, "key", "build")) as lock:
            assert fork(lock.close) == 0
            assert try_lock(root, "key", "build") is None
            assert fork(lambda: None) == 0
            assert try_lock(root, "key", "build") is None


def test_a_lease_file_is_never_removed(staged: Staged, place: Path) -> None:
    locks = root_of(place) / ".locks"
    numbers = {path.name: path.stat().st_ino for path in locks.iterdir()}
    staged.lease.close()
    evict(place)
    after = {path.name: path.stat().st_ino for path in locks.iterdir()}
    assert {name: after.get(name) for name in numbers} == numbers


def test_nothing_is_ever_unlocked() -> None:
    """`flock` locks end when their last descriptor is closed; LOCK_UN in a forked worker would release its parent's."""
    for package in (*packtrain._core.__path__, *packtrain._storage.staging.__path__):
        for path in Path(package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
                assert name not in ("LOCK_UN", "lockf", "F_SETLK", "F_SETLKW"), f"{path}:{node}"


def test_a_version_stays_while_it_is_copied(datasets: tuple[Path, ...], place: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(datasets[0], tmp_path / "changed")
    append(changed, datasets[1])
    drop_rows(changed, [0])
    refused = list[str]()

    def meanwhile(progress: StageProgress) -> None:
        with pytest.raises(OutputConflict) as caught:
            drop_version(changed, 2)
        refused.append(str(caught.value))

    copied = stage(changed, place, version=2, on_progress=meanwhile)
    assert refused and f"version 2 is open by process {os.getpid()}" in refused[0]
    assert len(copied.parts) == 2
    assert drop_version(changed, 2).versions == (2,)
