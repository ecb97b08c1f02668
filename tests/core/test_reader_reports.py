"""What readers took is counted once, whenever they end and whenever the filler is killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from packtrain._core import reader_reports
from packtrain._core.errors import CorruptFile
from packtrain._core.generations import READERS
from packtrain._core.locks import Lock
from packtrain._core.reader_reports import ENDED, EndedReaders, ReaderReport, reports


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / READERS).mkdir()
    return tmp_path


def _totals(root: Path) -> tuple[int, int]:
    """Counts what all readers took, and the furthest that one has seen, as a filler that starts now finds them."""
    ended = EndedReaders.load(root)
    found = list(reports(root))
    return ended.taken + sum(each.taken for each in found), max([ended.seen, *(each.seen for each in found)])


def test_a_report_says_what_its_reader_said(root: Path) -> None:
    report = ReaderReport(root)
    report.begin(7)
    report.take(3)
    report.take(4)
    report.finish(20)
    report.finish(10)
    (found,) = reports(root)
    assert (found.taken, found.seen, found.generation, found.alive) == (7, 20, 7, True)
    report.close()
    (found,) = reports(root)
    assert not found.alive


def test_ended_readers_are_added_to_the_total_and_living_ones_stay(root: Path) -> None:
    first, second = ReaderReport(root), ReaderReport(root)
    first.take(5)
    first.finish(9)
    second.take(2)
    first.close()
    total = EndedReaders.load(root).with_ended(root, list(reports(root)))
    assert (total.taken, total.seen) == (5, 9)
    assert total.with_ended(root, list(reports(root))) is total
    second.take(1)
    assert _totals(root) == (8, 9)
    assert len(list(reports(root))) == 1


@pytest.mark.parametrize("step", ["save", "unlink"])
def test_a_filler_that_is_killed_while_it_adds_them_up_counts_none_twice(
    step: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for taken in (5, 6):
        report = ReaderReport(root)
        report.take(taken)
        report.close()

    class Killed(BaseException):
        """Stands for SIGKILL."""

    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if step == "save":
            patch.setattr(reader_reports, "write_file", kill)
        else:
            patch.setattr(Path, "unlink", kill)
        with pytest.raises(Killed):
            EndedReaders.load(root).with_ended(root, list(reports(root)))
    assert _totals(root) == (11, 0)


def test_a_forked_child_does_not_keep_a_report_alive(root: Path) -> None:
    report = ReaderReport(root)
    ready, end = os.pipe(), os.pipe()
    if not (child := os.fork()):
        os.write(ready[1], b".")
        os.close(end[1])
        os.read(end[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        report.close()
        assert [each.alive for each in reports(root)] == [False]
    finally:
        os.close(end[1])
        os.waitpid(child, 0)
        for descriptor in (*ready, end[0]):
            os.close(descriptor)


def test_other_files_and_short_ones_are_no_reports(root: Path) -> None:
    (root / READERS / "notes.txt").write_text("mine")
    (root / READERS / ("a" * 32)).touch()
    assert [(each.taken, each.alive) for each in reports(root)] == [(0, False)]


def test_a_reader_whose_file_was_removed_before_it_was_locked_makes_another(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Lock

    class Late(Lock):
        """The filler looks between opening and locking, once."""

        def __init__(self, path: Path, **options: Any) -> None:
            super().__init__(path, **options)
            monkeypatch.setattr(reader_reports, "Lock", before)
            path.unlink()

    monkeypatch.setattr(reader_reports, "Lock", Late)
    ReaderReport(root).take(4)
    assert _totals(root) == (4, 0)


def test_a_damaged_total_is_an_error_that_says_what_to_do(root: Path) -> None:
    (root / READERS / ENDED).write_text("{")
    with pytest.raises(CorruptFile, match=r"ended\.json.* Remove this file"):
        EndedReaders.load(root)


@pytest.mark.parametrize("content", [b"", b"\xff", b"\xff" * 31, b"\xff" * 32, (1 << 62).to_bytes(8, "little") * 4])
def test_a_total_with_reports_of_any_bytes_can_be_read_again(root: Path, content: bytes) -> None:
    for number in range(3):
        (root / READERS / f"{number:032x}").write_bytes(content)
    total = EndedReaders.load(root).with_ended(root, list(reports(root)))
    assert EndedReaders.load(root) == total
    assert not list(reports(root))


def test_no_link_leads_readers_elsewhere(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whoever makes a cache cannot have a reader make a file, or look for one and lock it, in another folder."""
    report = ReaderReport(root)
    assert len(list(reports(root))) == 1
    elsewhere = tmp_path_factory.mktemp("other") / "elsewhere"
    (root / READERS).rename(elsewhere)
    (root / READERS).symlink_to(elsewhere)
    before = os.listdir(elsewhere)
    with pytest.raises(OSError, match="symbolic links"):
        ReaderReport(root)
    with pytest.raises(OSError, match="symbolic links"):
        list(reports(root))
    assert os.listdir(elsewhere) == before
    (root / READERS).unlink()
    (root / READERS).mkdir()
    (root / READERS / before[0]).symlink_to(elsewhere / before[0])
    assert not list(reports(root))
    report.close()
