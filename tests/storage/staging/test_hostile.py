"""Whatever somebody else put into a root, or in its place: nothing of it is touched, and it stops nobody."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.staging.laws import assert_same, root_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packtrain import StageOptions, open_dataset, stage
from packtrain._readers.dataset.store import RecordStore
from packtrain._storage.staging import root as root_module
from packtrain._storage.staging.entries import scan
from packtrain._storage.staging.root import Root
from packtrain._storage.staging.source import SourceDataset
from packtrain.errors import PacktrainError, StagingError
from packtrain.staging import Entry, entries, evict, lease_on, pin, repair, strays

STRANGER = 12345
CLONE_NEWUSER = 0x10000000
"""Of the kernel; Python knows it from 3.12 on."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices and other people's files")


def seen(folder: Path) -> dict[str, tuple[object, ...]]:
    """The content of a folder, and everything by which one could tell that somebody touched it."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        kept = status.st_mode, status.st_uid, status.st_ino, status.st_nlink, status.st_mtime_ns, status.st_ctime_ns
        found[str(path.relative_to(folder))] = *kept, content
    return found


class Stranger:
    """A folder of somebody else's work, outside of all roots."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "thesis.txt"
        (folder / "deep").mkdir(parents=True)
        for path in (self.file, folder / "deep" / "notes.txt"):
            path.write_text("years of work")
            os.utime(path, (1000, 1000))


@dataclass(frozen=True)
class Stray:
    """Something in a root that packtrain did not put there."""

    place: str
    name: str
    kind: str

    def put(self, root: Path, stranger: Stranger) -> Path:
        path = root / self.place / self.name
        match self.kind:
            case "file":
                path.write_text("a note")
            case "folder":
                path.mkdir()
                (path / "thesis.txt").write_text("years of work")
            case "folder of another":
                path.mkdir(mode=0o700)
                (path / "staged.json").write_text("{}")
                for one in (path, path / "staged.json"):
                    os.chown(one, STRANGER, STRANGER)
            case "link to a file":
                path.symlink_to(stranger.file)
            case "link to a folder":
                path.symlink_to(stranger.folder)
            case "broken link":
                path.symlink_to(stranger.folder / "nothing yet")
            case "hard link":
                path.hardlink_to(stranger.file)
            case "pipe":
                os.mkfifo(path)
            case "socket":
                here = os.getcwd()
                os.chdir(path.parent)  # the path of a socket must be short
                with socket.socket(socket.AF_UNIX) as made:
                    made.bind(path.name)
                os.chdir(here)
            case "device":
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # as /dev/zero
        return path


OWN_KINDS = ("file", "folder", "link to a file", "link to a folder", "broken link", "hard link", "pipe")
KINDS = (*OWN_KINDS, "folder of another", "socket", "device")


@st.composite
def some_strays(draw: st.DrawFn, key: str, entry: str) -> list[Stray]:
    """Strays, under names that packtrain itself would use and others."""
    other = "0123456789abcdef"
    names = {
        "": [entry, f"x-{other}", f"{entry.partition('-')[0]}-2-{key}", "notes", ".hidden"],
        ".tmp": [key, f"{key}.2", other, "notes"],
        ".trash": ["0" * 32, "notes"],
        ".locks": [f"{other}.lease", f"{other}.build", f"{key}.lease", f"{key}.build", f"{key}.pin", "ledger", "notes"],
    }
    slots = [(place, name) for place, some in names.items() for name in some]
    chosen = draw(st.lists(st.sampled_from(slots), unique=True, max_size=6))
    found = [Stray(place, name, draw(st.sampled_from(KINDS))) for place, name in chosen]
    # Folders under these names are packtrain's, and so are plain files that are locks.
    return [
        stray
        for stray in found
        if not (stray.kind == "folder" and stray.place in (".tmp", ".trash") and stray.name != "notes")
        and not (stray.kind == "file" and stray.place == ".locks")
    ]


def made_root(place: Path) -> Path:
    root = root_of(place)
    for path in (root, *(root / name for name in (".tmp", ".trash", ".locks"))):
        path.mkdir(mode=0o700)
    return root


@pytest.mark.complete
@needs_root
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_strays_are_left_alone_and_block_nothing(dataset: Path, data: st.DataObject) -> None:
    source = SourceDataset.load(dataset)
    chosen = data.draw(some_strays(source.key, f"{dataset.name}-{source.key}"))
    with tempfile.TemporaryDirectory(prefix="packtrain-test-", dir=memory()) as folder:
        place = Path(folder, "place")
        place.mkdir()
        stranger, root = Stranger(Path(folder, "stranger")), made_root(place)
        paths = [stray.put(root, stranger) for stray in chosen]
        outside, before = seen(stranger.folder), [touched(path) for path in paths]
        # A lock is agreed upon by its name, so there is no way around what has taken that name.
        in_the_way = {stray.name for stray in chosen if stray.place == ".locks"} & {
            "ledger",
            f"{source.key}.lease",
            f"{source.key}.build",
        }
        for again in range(2):
            with suppress_if(bool(in_the_way), StagingError):
                staged = stage(dataset, StageOptions(to=place))
                assert_same(staged.path, dataset)
                staged.lease.close()
            with suppress_if("ledger" in in_the_way, StagingError):
                assert set(strays(place)) == set(paths)
            with suppress(PacktrainError):
                pin(place, source.key, bool(again))
            with suppress_if(bool(in_the_way), StagingError):
                repair(place, source.key)
            with suppress_if("ledger" in in_the_way, StagingError):
                known, gone = entries(place), evict(place, force=True)
                assert not known or known[0].key == source.key
                if not in_the_way and f"{source.key}.pin" not in {stray.name for stray in chosen}:
                    assert len(gone) == (1 if not again else 0)
            assert seen(stranger.folder) == outside
            assert [touched(path) for path in paths] == before


@pytest.fixture
def stranger(place: Path) -> Stranger:
    """On the same file system as the root, so that there can be hard links."""
    return Stranger(place / "stranger")


class TestInThePlaceOfTheRoot:
    @pytest.mark.parametrize("below", ["", "deep/inside"])
    @pytest.mark.parametrize("mode", [0o775, 0o777, 0o757])
    def test_a_place_where_others_may_rename(self, dataset: Path, place: Path, mode: int, below: str) -> None:
        used = place / below
        used.mkdir(parents=True, exist_ok=True)
        place.chmod(mode)
        for call in (lambda: stage(dataset, used), lambda: entries(used), lambda: evict(used)):
            with pytest.raises(StagingError, match=rf"other users may rename files in {place}.*chmod \+t {place}`"):
                call()
        assert not root_of(used).exists()
        place.chmod(mode | stat.S_ISVTX)
        stage(dataset, used).lease.close()
        assert len(evict(used)) == 1

    @needs_root
    @pytest.mark.parametrize("where", ["the place", "above", "a link"])
    @pytest.mark.parametrize("mode", [0o755, 0o1777])
    def test_a_place_that_another_user_could_exchange(self, dataset: Path, place: Path, where: str, mode: int) -> None:
        """Whoever owns a folder may rename what is in it, whatever its mode says."""
        above, link = place / "above", place / "link"
        named = above / "inside"
        named.mkdir(parents=True)
        link.symlink_to("above/inside")
        staged = stage(dataset, named)
        staged.lease.close()
        theirs = {"the place": named, "above": above, "a link": link}[where]
        if where != "a link":
            theirs.chmod(mode)
        os.chown(theirs, STRANGER, STRANGER, follow_symlinks=False)
        used = link if where == "a link" else named
        refusal = rf"{theirs} (is a link that )?belongs to user {STRANGER}, who can "
        for call in (lambda: stage(dataset, used), lambda: entries(used), lambda: evict(used)):
            with pytest.raises(StagingError, match=refusal):
                call()
        assert (lease_on(staged.path) is None) == (where != "a link")
        if where != "a link":
            os.chown(theirs, 0, 0)
            theirs.chmod(0o1777)
        stage(dataset, named).lease.close()
        assert len(evict(named)) == 1

    @needs_root
    def test_a_folder_on_the_way_that_is_exchanged_after_its_check(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is opened is what was checked: the check of a folder is followed by no second look at its path."""
        sound, theirs = place / "sound", place / "theirs"
        for folder in (sound, theirs):
            (folder / "inside").mkdir(parents=True)
        os.chown(theirs / "inside", STRANGER, STRANGER)
        was = (sound / "inside").stat().st_ino
        checked = root_module._require_safe

        def exchange(path: Path, status: os.stat_result) -> None:
            checked(path, status)
            if path == sound:
                sound.rename(place / "away")
                theirs.rename(sound)

        monkeypatch.setattr(root_module, "_require_safe", exchange)
        opened = root_module._open_outer(sound / "inside")
        assert os.fstat(opened.fileno()).st_ino == was

    def test_links_without_end(self, place: Path) -> None:
        (place / "round").symlink_to("round")
        with pytest.raises(StagingError, match=r"cannot open .*symbolic links"):
            entries(place / "round" / "about")

    @needs_root
    @pytest.mark.parametrize(
        ("inside", "users"),
        [(STRANGER, f"{STRANGER} {STRANGER} 1"), (0, f"0 {STRANGER} 1\n1 100000 65536")],
        ids=["one user", "as rootless Podman has it"],
    )
    def test_in_a_container_that_does_not_know_root(self, inside: int, users: str) -> None:
        """Root is shown there as nobody, and owns /dev/shm all the same."""
        ready, go = os.pipe(), os.pipe()
        with tempfile.TemporaryDirectory(prefix="packtrain-test-", dir=memory()) as folder:
            Path(folder).chmod(0o1777)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.write(ready[1], b"n" if ctypes.CDLL(None).unshare(CLONE_NEWUSER) else b"y")
                    os.read(go[0], 1)
                    os.setresuid(inside, inside, inside)
                    Root.make(folder)
                    status = 0
                finally:
                    os._exit(status)
            made = os.read(ready[0], 1) == b"y"
            if made:
                Path(f"/proc/{child}/uid_map").write_text(users)
            os.write(go[1], b"!")
            status = os.waitpid(child, 0)[1]
            for descriptor in (*ready, *go):
                os.close(descriptor)
            if not made:
                pytest.skip("the kernel makes no user namespace")
            assert status == 0
            assert Path(folder, f"packtrain-{inside}").stat().st_uid == STRANGER

    @pytest.mark.parametrize("when", ["copying", "evicting"])
    def test_a_link_that_comes_after_the_check(
        self, datasets: tuple[Path, ...], place: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, when: str
    ) -> None:
        """Somebody who may write to a folder above exchanges the root while it is used."""
        root, kept = root_of(place), place / "kept"
        first = stage(datasets[0], place)
        first.lease.close()
        path = first.path
        for name in (".tmp", ".trash", ".locks", path.name):
            shutil.copytree(stranger.folder / "deep", stranger.folder / "root" / name)
        (stranger.folder / "root").chmod(0o700)
        before = seen(stranger.folder)

        def exchange(*_: object) -> None:
            if not kept.exists():
                root.rename(kept)
                root.symlink_to(stranger.folder / "root")

        def scan_and_exchange(opened: Root) -> list[Entry]:
            found = scan(opened)
            exchange()
            return found

        if when == "copying":
            with suppress(PacktrainError):
                stage(datasets[1], place, on_progress=exchange)
        else:
            monkeypatch.setattr("packtrain._storage.staging.eviction.scan", scan_and_exchange)
            with suppress(PacktrainError):
                evict(place, force=True)
        assert root.is_symlink(), "it was exchanged"
        assert seen(stranger.folder) == before


def test_what_cannot_be_deleted_blocks_nothing(
    datasets: tuple[Path, ...], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file that an administrator made immutable."""
    stage(datasets[0], place).lease.close()
    delete = shutil.rmtree
    refused: list[str] = []

    def refuse(name: str, **options: Any) -> None:
        if name in (refused or [name]):
            refused[:] = [name]
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        delete(name, **options)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(StagingError, match="Operation not permitted"):
        evict(place)
    assert entries(place) == []
    grave = root_of(place) / ".trash" / refused[0]
    warned: list[str] = []
    staged = stage(datasets[1], place, on_warning=warned.append)
    assert_same(staged.path, datasets[1])
    assert [warning for warning in warned if str(grave) in warning and "leaves them alone" in warning]
    staged.lease.close()
    assert len(evict(place)) == 1
    assert strays(place) == [grave]
    monkeypatch.setattr(shutil, "rmtree", delete)
    assert strays(place) == []


class TestForeignRoots:
    """A dataset that lies in a folder that looks like somebody's root."""

    def foreign(self, dataset: Path, folder: Path) -> tuple[Path, Path]:
        """Path of the dataset, and of its lease."""
        root = folder / f"packtrain-{STRANGER}"
        (root / ".locks").mkdir(parents=True)
        key = SourceDataset.load(dataset).key
        return shutil.copytree(dataset, root / f"{dataset.name}-{key}"), root / ".locks" / f"{key}.lease"

    @pytest.mark.parametrize("kind", ["link to a file", "broken link", "pipe", "hard link", "missing"])
    @pytest.mark.parametrize("owner", [pytest.param("another", marks=needs_root), "everybody", "the user"])
    def test_opened_there_nothing_is_touched(
        self, dataset: Path, place: Path, stranger: Stranger, kind: str, owner: str
    ) -> None:
        path, lease = self.foreign(dataset, place)
        if kind != "missing":
            Stray(".locks", lease.name, kind).put(path.parent, stranger)
        path.parent.chmod(0o755 if owner == "everybody" else 0o700)
        if owner == "another":
            for one in (path.parent, *path.parent.rglob("*")):
                os.chown(one, STRANGER, STRANGER, follow_symlinks=False)
        before = seen(stranger.folder), sorted((path.parent / ".locks").iterdir())
        if owner == "the user" and kind != "missing":
            with pytest.raises(StagingError, match=rf"{lease} is not a lock file made by packtrain"):
                open_dataset(path)
        else:
            assert len(open_dataset(path)) == len(RecordStore(dataset))
            assert (lease_on(path) is not None) == (owner == "the user")
        assert seen(stranger.folder) == before[0]
        if owner != "the user":
            assert sorted((path.parent / ".locks").iterdir()) == before[1]


class TestInACopy:
    """What is in the folder of an interrupted copy, or of an entry, has names that packtrain gave."""

    @pytest.mark.parametrize("kind", OWN_KINDS)
    @pytest.mark.parametrize("name", ["data", "journal", "reservation.json"])
    def test_instead_of_its_parts(self, dataset: Path, place: Path, stranger: Stranger, kind: str, name: str) -> None:
        copy = made_root(place) / ".tmp" / SourceDataset.load(dataset).key
        copy.mkdir()
        Stray(f".tmp/{copy.name}", name, kind).put(root_of(place), stranger)
        before = {**seen(stranger.folder), "thesis.txt": None}
        staged = stage(dataset, place)
        assert_same(staged.path, dataset)
        assert not copy.exists()
        assert {**seen(stranger.folder), "thesis.txt": None} == before
        assert stranger.file.read_text() == "years of work"
        assert (stranger.file.stat().st_nlink, stranger.file.stat().st_mtime) == (1, 1000)

    @pytest.mark.parametrize("kind", OWN_KINDS)
    @pytest.mark.parametrize("name", ["staged.json", "manifest.json", "index", "index/label.npy", "rejects.jsonl"])
    def test_instead_of_files_of_an_entry(
        self, dataset: Path, place: Path, stranger: Stranger, kind: str, name: str
    ) -> None:
        staged = stage(dataset, place)
        target = staged.path / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        Stray(staged.id, name, kind).put(root_of(place), stranger)
        for call in (
            lambda: entries(place),
            lambda: stage(dataset, place),
            lambda: repair(place, staged.id),
            lambda: evict(place),
            lambda: evict(place, [staged.id], force=True),
        ):
            with suppress(PacktrainError):
                call()
        assert stranger.file.read_text() == "years of work"
        assert stranger.file.stat().st_mtime == 1000
        assert sorted(path.name for path in stranger.folder.rglob("*")) == ["deep", "notes.txt", "thesis.txt"]
        staged.lease.close()
        evict(place, [staged.id], force=True)
        assert not staged.path.exists()


def touched(path: Path) -> tuple[object, ...]:
    """The facts that would change if somebody touched a stray."""
    status = path.lstat()
    kept = status.st_mode, status.st_uid, status.st_ino, status.st_nlink, status.st_mtime_ns, status.st_ctime_ns
    return *kept, sorted(os.listdir(path)) if path.is_dir() else None


def memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture(autouse=True)
def end_soon() -> Iterator[None]:
    """Nothing may wait for a pipe or a device."""

    def fail(*_: object) -> None:
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def suppress_if(condition: bool, error: type[Exception]) -> AbstractContextManager[None]:
    return suppress(error) if condition else nullcontext()
