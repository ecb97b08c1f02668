"""A killed or interrupted copy continues where it stopped, and no file looks finished before it is."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from helpers.staging.copies import BUFFER, PIECE, assert_copied, copied, journaled, made, noise
from helpers.support import soon

from packtrain._storage.staging import kernel, pieces
from packtrain._storage.staging.options import StageProgress

SIZES = (1, 40 * PIECE + 1, 0, 90 * PIECE, PIECE - 1, 50 * PIECE + 7)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", PIECE)
    monkeypatch.setattr(pieces, "BUFFER", BUFFER)


def test_interrupted_by_control_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives while threads read from a slow source: all stop soon, and the next call continues."""
    before = set(threading.enumerate())
    contents = noise(SIZES)
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
    assert 0 < known < sum(SIZES)
    monkeypatch.undo()
    monkeypatch.setattr(pieces, "PIECE", PIECE)
    counts = copied(tmp_path / "source", tmp_path / "target", files, tmp_path / "journal")
    assert counts == (sum(SIZES) - known, known)
    assert_copied(tmp_path / "target", contents)


def test_the_first_failure_stops_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    files = made(tmp_path / "source", noise(SIZES))
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


def test_an_error_of_the_caller_stops_the_copy(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    files = made(tmp_path / "source", noise(SIZES))
    (tmp_path / "target").mkdir()

    def fail(progress: StageProgress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        copied(tmp_path / "source", tmp_path / "target", files, tmp_path / "journal", on_progress=fail)
    assert set(threading.enumerate()) <= before
