"""A killed or interrupted copy continues where it stopped, and no file looks finished before it is."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.staging.copies import BUFFER, PIECE, SMALL, assert_copied, copied, journaled, made, noise
from helpers.support import soon

from packtrain._storage.staging import kernel, pieces
from packtrain._storage.staging.options import StageProgress

SIZES = (1, 40 * PIECE + 1, 0, 90 * PIECE, PIECE - 1, 50 * PIECE + 7)
PIECES = 1 + 41 + 1 + 90 + 1 + 51

COPY = f"""{SMALL}
import sys
from pathlib import Path
from helpers.staging.copies import copied, made, noise

folder = Path(sys.argv[1])
files = made(folder / "source", noise({SIZES}))
print(flush=True)
copied(folder / "source", folder / "target", files, folder / "journal", threads=4)
"""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", PIECE)
    monkeypatch.setattr(pieces, "BUFFER", BUFFER)


@pytest.mark.parametrize(
    "seed",
    [
        *range(2),
        *(pytest.param(n, marks=pytest.mark.complete) for n in range(2, 10)),
        *(pytest.param(n, marks=pytest.mark.stress) for n in range(10, 200)),
    ],
)
def test_killed(tmp_path: Path, seed: int) -> None:
    """Killed several times after any number of pieces; pieces in the journal are not copied again."""
    contents = noise(SIZES)
    (tmp_path / "target").mkdir()
    journal = tmp_path / "journal"
    for _ in range(random.Random(seed).randrange(1, 4)):
        _kill(tmp_path, after=random.Random(seed).randrange(PIECES))
    files = made(tmp_path / "source", contents)
    known = {(name, offset): length for name, offset, length in journaled(journal)}
    report = copied(tmp_path / "source", tmp_path / "target", files, journal)
    assert report.resumed == sum(known.values())
    assert report.copied == sum(SIZES) - report.resumed
    assert_copied(tmp_path / "target", contents)


def _kill(folder: Path, after: int) -> None:
    """Kills a copying process once its journal has grown by `after` pieces."""
    journal = folder / "journal"
    command = [sys.executable, "-c", COPY, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    before = len(journaled(journal))
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while child.poll() is None and len(journaled(journal)) < before + after:
            time.sleep(0.0005)
        child.kill()


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
    report = copied(tmp_path / "source", tmp_path / "target", files, tmp_path / "journal")
    assert (report.resumed, report.copied) == (known, sum(SIZES) - known)
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
