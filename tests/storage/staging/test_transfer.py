"""A copy is identical to what was packed, or there is an error that says why not."""

from __future__ import annotations

import errno
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.staging.copies import BUFFER, PIECE, SIZES, assert_copied, copied, journaled, made, noise
from helpers.support import flip, soon, spoil
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packtrain._storage.staging import kernel, pieces
from packtrain._storage.staging.options import StageProgress
from packtrain._storage.staging.origin import Origin
from packtrain._storage.staging.transfer import check_files, warm_files
from packtrain.errors import NoSpace, SourceChanged, StagingError


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", PIECE)
    monkeypatch.setattr(pieces, "BUFFER", BUFFER)


class Copying:
    """A source, a target and a journal in one folder."""

    def __init__(self, folder: Path, contents: dict[str, bytes]) -> None:
        self.source, self.target, self.journal = folder / "source", folder / "target", folder / "journal"
        self.source.mkdir()
        self.target.mkdir()
        self.contents = contents
        self.files = made(self.source, contents)

    def __call__(self, **options: Any) -> tuple[int, int]:
        """Copies the files and returns the numbers of bytes copied and resumed."""
        return copied(self.source, self.target, self.files, self.journal, **options)

    def assert_copied(self) -> None:
        assert_copied(self.target, self.contents)


@pytest.fixture
def copying(tmp_path: Path) -> Copying:
    return Copying(tmp_path, noise())


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 3 * PIECE), max_size=6), st.integers(1, 5))
def test_any_sizes(sizes: Sequence[int], threads: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copying = Copying(Path(folder), noise(sizes))
        assert copying(threads=threads) == (sum(sizes), 0)
        copying.assert_copied()


def test_progress(copying: Copying) -> None:
    seen: list[StageProgress] = []
    copying(on_progress=seen.append)
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert seen[-1] == StageProgress("copy", sum(SIZES), sum(SIZES), 0)
    copying(on_progress=seen.append)
    assert seen[-1] == StageProgress("copy", sum(SIZES), sum(SIZES), sum(SIZES))


@pytest.mark.complete
@settings(max_examples=20)
@given(st.data())
def test_goes_on_from_any_journal(data: st.DataObject) -> None:
    """With any combination of damage to the journal and the copies."""
    with tempfile.TemporaryDirectory() as folder:
        copying = Copying(Path(folder), noise((0, 5, PIECE, 4 * PIECE + 9)))
        copying(threads=1)  # makes the journal deterministic
        journal = copying.journal.read_bytes()
        torn = data.draw(st.integers(0, len(journal)), "journal torn after")
        copying.journal.write_bytes(journal[:torn] + data.draw(st.sampled_from([b"", b"\0\0\0", b"[1]\n", b'[["x"]]'])))
        known = {(name, offset): length for name, offset, length in journaled(copying.journal) if length}
        for name in data.draw(st.sets(st.sampled_from(sorted(copying.contents))), "files lost"):
            (copying.target / name).unlink()
            known = {place: length for place, length in known.items() if place[0] != name}
        damaged = data.draw(st.sets(st.sampled_from(sorted(known))) if known else st.just(set()), "pieces damaged")
        for name, offset in damaged:
            flip(copying.target / name, offset + data.draw(st.integers(0, known[name, offset] - 1)))
            del known[name, offset]
        resumed = sum(known.values())
        total = sum(map(len, copying.contents.values()))
        assert copying() == (total - resumed, resumed)
        copying.assert_copied()
        assert copying() == (0, total)


def test_a_longer_file_in_the_way_is_cut(copying: Copying) -> None:
    (copying.target / "index").mkdir()
    for file in copying.files:
        (copying.target / file.name).write_bytes(b"x" * (file.bytes + 7))
    copying()
    copying.assert_copied()


@pytest.mark.parametrize("longer", [True, False])
def test_a_journal_of_other_files_does_no_harm(copying: Copying, longer: bool) -> None:
    copying()
    other = {name: bytes(len(content) + longer) for name, content in copying.contents.items()}
    copying.contents, copying.files = other, made(copying.source, other)
    assert copying() == (sum(map(len, other.values())), 0) or not longer
    copying.assert_copied()


@pytest.mark.parametrize("what", ["flipped", "short", "long", "missing", "folder", "pipe"])
def test_source_changed(copying: Copying, what: str) -> None:
    name = "10.tar"
    victim = copying.source / name
    spoil(victim, what)
    with pytest.raises(SourceChanged, match=f"{re.escape(str(victim))} .*packtrain verify") as caught:
        copying()
    assert caught.value.file == name
    if what == "flipped":
        assert f"{copying.files[10].crc32c:08x}" in str(caught.value)
        assert os.stat(copying.target / name).st_mode & 0o777 == 0o600, "it must not look finished"


def test_a_finished_copy_that_is_made_anew_does_not_pass_for_finished(copying: Copying) -> None:
    copying()
    copying.journal.unlink()
    flip(copying.source / "10.tar", 0)
    with pytest.raises(SourceChanged):
        copying()
    assert os.stat(copying.target / "10.tar").st_mode & 0o777 == 0o600


def test_a_file_read_wrongly_once_is_read_again(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = copying.files[10]
    read = kernel.Reader.read
    lies = [BUFFER]

    def lie(self: kernel.Reader, view: memoryview, offset: int) -> int:
        count = read(self, view, offset)
        if view[:16] == copying.contents[victim.name][BUFFER : BUFFER + 16] and lies:
            view[lies.pop() // 2] ^= 1
        return count

    monkeypatch.setattr(kernel.Reader, "read", lie)
    seen: list[StageProgress] = []
    assert copying(on_progress=seen.append) == (sum(SIZES) + victim.bytes, 0)
    assert not lies
    assert seen[-1].done == sum(SIZES)
    copying.assert_copied()


def test_source_that_shrinks_while_it_is_read(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel.Reader, "read", lambda self, view, offset: len(view) // 2)
    with pytest.raises(SourceChanged, match=r"it ends after \d+ of \d+ bytes"):
        copying()


def test_unreadable_source(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: kernel.Reader, view: memoryview, offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(kernel.Reader, "read", fail)
    with pytest.raises(StagingError, match=f"cannot read {copying.source}.*Input/output error"):
        copying()


def test_read_only_target(copying: Copying, mounted: Callable[[str], Path]) -> None:
    copying.target = mounted("ro")
    with pytest.raises(StagingError, match=f"cannot write to {copying.target}: Read-only file system"):
        copying()


@pytest.mark.parametrize("how", ["link", "hard link", "link to a folder", "pipe", "folder"])
def test_nothing_is_written_through_what_is_there(copying: Copying, tmp_path: Path, how: str) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_bytes(b"years of work")
    (precious / "thesis").chmod(0o440)
    before = (precious / "thesis").stat()
    match how:
        case "link":
            (copying.target / "0.tar").symlink_to(precious / "thesis")
        case "hard link":
            (copying.target / "0.tar").hardlink_to(precious / "thesis")
        case "link to a folder":
            (copying.target / "index").symlink_to(precious)
        case "pipe":
            os.mkfifo(copying.target / "0.tar")
        case "folder":
            (copying.target / "0.tar").mkdir()
    copying()
    copying.assert_copied()
    after = (precious / "thesis").stat()
    assert [path.name for path in precious.iterdir()] == ["thesis"]
    assert (precious / "thesis").read_bytes() == b"years of work"
    assert (after.st_mode, after.st_nlink, after.st_mtime_ns) == (before.st_mode, 1, before.st_mtime_ns)


class TestFullTarget:
    """The target is a tmpfs of half the size needed."""

    @pytest.fixture(autouse=True)
    def small(self, copying: Copying, mounted: Callable[[str], Path]) -> None:
        copying.target = mounted(f"size={sum(SIZES) // 2}")

    def assert_refused(self, copying: Copying, figures: str) -> None:
        with pytest.raises(NoSpace, match=figures):
            copying()

    def assert_given_back(self, copying: Copying) -> None:
        assert [path for path in copying.target.rglob("*") if path.is_file()] == []
        assert journaled(copying.journal) == []

    def test_is_seen_before_a_byte_is_copied(self, copying: Copying) -> None:
        self.assert_refused(copying, r"1\.1 MiB more needed; \d+\.\d KiB free")
        self.assert_given_back(copying)

    def test_is_seen_by_allocating(self, copying: Copying, roomy: None) -> None:
        """As with a quota, which the reported free space does not include."""
        self.assert_refused(copying, "No space left on device")
        self.assert_given_back(copying)

    def test_is_seen_by_writing(self, copying: Copying, roomy: None, no_allocation: None, tmp_path: Path) -> None:
        """As on file systems that cannot allocate; finished pieces are kept."""
        self.assert_refused(copying, "No space left on device")
        assert journaled(copying.journal)
        for path in copying.target.rglob("*.*"):
            whole = path.read_bytes() == copying.contents[str(path.relative_to(copying.target))]
            assert whole or os.stat(path).st_mode & 0o222, "it looks finished"
        os.system(f"mount -o remount,size={4 * sum(SIZES)} {copying.target}")
        copied, resumed = copying()
        assert copied + resumed == sum(SIZES)
        assert resumed > 0
        copying.assert_copied()

    @pytest.fixture
    def roomy(self, copying: Copying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The file system reports more free space than there is."""
        statvfs = os.statvfs
        monkeypatch.setattr(os, "statvfs", lambda path: statvfs(tmp_path))

    @pytest.fixture
    def no_allocation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The file system does not support fallocate."""
        refuse_calls(monkeypatch, "fallocate")


def refuse_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Makes a system call fail as if the kernel did not support it."""
    call = kernel._call

    def refuse(called: str, *arguments: object) -> None:
        if called == name:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        call(called, *arguments)

    monkeypatch.setattr(kernel, "_call", refuse)


@pytest.mark.parametrize("name", ["fallocate", "sync_file_range", "mincore"])
def test_copies_without_what_a_kernel_may_lack(copying: Copying, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    refuse_calls(monkeypatch, name)
    copying()
    copying.assert_copied()


def test_all_room_is_taken_before_the_first_byte(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> int:
        raise KeyError("the first byte")

    monkeypatch.setattr(kernel.Reader, "read", stop)
    with pytest.raises(KeyError):
        copying()
    for file in copying.files:
        assert os.stat(copying.target / file.name).st_blocks * 512 >= file.bytes


class TestChecking:
    """`check_files` finds damaged files, and no others."""

    @settings(max_examples=25)
    @given(
        st.dictionaries(
            st.integers(0, len(SIZES) - 1),
            st.sampled_from(["flipped", "short", "long", "missing", "link", "broken link", "folder", "pipe"]),
        ),
        st.integers(1, 4),
    )
    def test_check(self, damage: dict[int, str], threads: int) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            files = made(folder, noise())
            # What is empty cannot be damaged in each way.
            damage = {n: how for n, how in damage.items() if files[n].bytes or how not in ("flipped", "short")}
            for number, how in damage.items():
                spoil(folder / files[number].name, how)
            expected = [files[number] for number in sorted(damage) if damage[number] != "link"]
            assert check_files(Origin(folder), files, threads=threads) == expected

    def test_unreadable(self, copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(kernel.Reader, "read", fail)
        assert check_files(Origin(copying.source), copying.files) == [file for file in copying.files if file.bytes]

    def test_not_to_be_opened(self, copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
        open_file = os.open

        def refuse(path: Any, *arguments: Any, **options: Any) -> int:
            if str(path).endswith("10.tar"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return open_file(path, *arguments, **options)

        monkeypatch.setattr(os, "open", refuse)
        assert check_files(Origin(copying.source), copying.files) == [copying.files[10]]


def test_warming_says_how_much(copying: Copying) -> None:
    seen: list[StageProgress] = []
    assert warm_files(copying.source, copying.files, on_progress=seen.append) == sum(SIZES)
    assert seen[-1] == StageProgress("warm", sum(SIZES), sum(SIZES), 0)
    (copying.source / "0.tar").unlink()
    with pytest.raises(StagingError, match=r"cannot read .*0\.tar: No such file"):
        warm_files(copying.source, copying.files)


LONG = (1, 40 * PIECE + 1, 0, 90 * PIECE, PIECE - 1, 50 * PIECE + 7)


def test_interrupted_by_control_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives while threads read from a slow source: all stop soon, and the next call continues."""
    before = set(threading.enumerate())
    contents = noise(LONG)
    files = made(tmp_path / "source", contents)
    (tmp_path / "target").mkdir()
    read = kernel.Reader.read

    def slow(self: kernel.Reader, view: memoryview, offset: int) -> int:
        time.sleep(0.01)
        return read(self, view, offset)

    def interrupt(progress: StageProgress) -> None:
        if progress.done > 20 * PIECE:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(kernel.Reader, "read", slow)
    with soon(20), pytest.raises(KeyboardInterrupt):
        copied(tmp_path / "source", tmp_path / "target", files, tmp_path / "journal", on_progress=interrupt)
    assert set(threading.enumerate()) <= before
    known = sum(length for *_, length in journaled(tmp_path / "journal"))
    assert 0 < known < sum(LONG)
    monkeypatch.undo()
    monkeypatch.setattr(pieces, "PIECE", PIECE)
    counts = copied(tmp_path / "source", tmp_path / "target", files, tmp_path / "journal")
    assert counts == (sum(LONG) - known, known)
    assert_copied(tmp_path / "target", contents)


def test_the_first_failure_stops_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    files = made(tmp_path / "source", noise(LONG))
    (tmp_path / "target").mkdir()
    reads: list[int] = []
    read = kernel.Reader.read

    def fail_once(self: kernel.Reader, view: memoryview, offset: int) -> int:
        reads.append(offset)
        number = len(reads)
        time.sleep(0.01)
        if number == 20:
            raise ZeroDivisionError
        return read(self, view, offset)

    monkeypatch.setattr(kernel.Reader, "read", fail_once)
    with pytest.raises(ZeroDivisionError):
        copied(tmp_path / "source", tmp_path / "target", files, tmp_path / "journal", threads=4)
    assert set(threading.enumerate()) <= before
    assert len(reads) < 20 + 3 * 4
