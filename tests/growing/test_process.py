"""Laws of a filler's process: it begins before `start` returns, and ends with its job, unless it is to outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import fillers
from helpers.fillers import BUDGET, SHARD, ready, trainer, wait_until_unfilled

from packtrain._core.errors import FillError, UsageError
from packtrain._core.generations import LOG, generation_numbers
from packtrain._core.launching import Launched
from packtrain._growing.cache_folder import is_filled
from packtrain._growing.options import FillOptions
from packtrain._growing.process import run, start
from packtrain._growing.status import read_status

OPTIONS = FillOptions(BUDGET, shard_size=SHARD)
# A signal that comes just before a sleep is acted on only after it.
NAPS = "for _ in range(600): time.sleep(0.1)"


@pytest.fixture
def filler(root: Path) -> Iterator[Launched]:
    started = start(root, fillers.steady, OPTIONS, outlive=False)
    assert started is not None
    yield started
    started.close()


def test_a_filler_in_this_process_fills_until_its_source_ends(root: Path) -> None:
    status = run(root, fillers.few, OPTIONS)
    assert (status.state, status.alive) == ("ended", False)
    assert generation_numbers(root)
    read = read_status(root)
    assert (read.doing, read.figures) == (status.doing, status.figures)


class TestBegin:
    def test_it_gives_way_to_training(self, filler: Launched) -> None:
        assert os.getpriority(os.PRIO_PROCESS, filler.pid) > os.getpriority(os.PRIO_PROCESS, 0)

    @pytest.mark.parametrize("source", [lambda: iter(()), fillers.few()], ids=["lambda", "iterator"])
    def test_a_source_that_cannot_be_sent_is_refused(self, root: Path, source: Any) -> None:
        with pytest.raises(UsageError, match="source"):
            start(root, source, OPTIONS, outlive=False)
        assert not root.exists()

    @pytest.mark.parametrize("outlive", [False, True])
    def test_a_source_that_is_not_found_is_refused(self, root: Path, outlive: bool) -> None:
        with pytest.raises(UsageError, match="no_such_function"):
            start(root, "helpers.fillers:no_such_function", OPTIONS, outlive=outlive)
        assert not is_filled(root)

    def test_a_folder_that_cannot_be_made_is_named(self, root: Path) -> None:
        root.write_text("a file")
        with pytest.raises(FillError, match=str(root)):
            start(root, fillers.steady, OPTIONS, outlive=False)

    def test_a_process_that_dies_at_once_is_reported(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: "/bin/false")
        with pytest.raises(FillError, match="did not begin: its process ended with exit code 1"):
            start(root, fillers.steady, OPTIONS, outlive=False)


def program(tmp_path: Path, root: Path, text: str, *flags: str) -> str:
    """The standard error of a program that fills a cache from a source of its own."""
    (tmp_path / "program.py").write_text(text)
    words = [sys.executable, *(flags or ["program.py"])]
    environment = {**fillers.environment(), "ROOT": str(root)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    return done.stderr


PROGRAM = """\
import os
from helpers import fillers
from packtrain import GrowingCache

def source():
    return fillers.steady()

GUARD
    with GrowingCache(os.environ["ROOT"], "4MiB", shard_size="128KiB") as cache:
        cache.fill(source)
"""


class TestMainProgram:
    @pytest.mark.complete
    def test_a_source_may_lie_in_it(self, tmp_path: Path, root: Path) -> None:
        text = PROGRAM.replace("GUARD", 'if __name__ == "__main__":')
        assert program(tmp_path, root, text) == ""
        assert read_status(root).state == "ended"

    @pytest.mark.complete
    def test_without_a_guard_it_is_told_what_to_do(self, tmp_path: Path, root: Path) -> None:
        text = PROGRAM.replace("GUARD", "if True:")
        assert "Put the program's actions under `if __name__ == " in program(tmp_path, root, text).splitlines()[-1]

    def test_in_an_interactive_session_it_is_told_what_to_do(self, tmp_path: Path, root: Path) -> None:
        text = PROGRAM.replace("GUARD", "if True:")
        assert "defined in a notebook" in program(tmp_path, root, "", "-c", text).splitlines()[-1]


class TestEnd:
    def test_close_lets_it_finish(self, root: Path, filler: Launched) -> None:
        filler.close()
        assert not is_filled(root)
        assert read_status(root).doing == "ended: SIGTERM"
        filler.close()

    def test_one_that_is_stopped_is_killed(self, root: Path, filler: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(filler, "_grace", 0.1)
        os.kill(filler.pid, signal.SIGSTOP)
        filler.close()
        assert not is_filled(root)

    @pytest.mark.complete
    @pytest.mark.parametrize(
        ("end", "said"),
        [
            (lambda pid: os.killpg(pid, signal.SIGINT), "KeyboardInterrupt"),
            (lambda pid: os.kill(pid, signal.SIGUSR1), "ValueError: in training"),
        ],
        ids=["Ctrl-C", "exception"],
    )
    @pytest.mark.parametrize("block", [False, True], ids=["no with", "with"])
    def test_it_ends_in_order_when_training_fails(
        self, tmp_path: Path, root: Path, end: Callable[[int], None], said: str, block: bool
    ) -> None:
        body = (
            "def fail(*_): raise ValueError('in training')\n"
            "signal.signal(signal.SIGUSR1, fail)\n"
            "from contextlib import nullcontext\n"
            f"with {'cache' if block else 'nullcontext()'}:\n"
            "    cache.fill(fillers.steady)\n"
            "    print('ready', flush=True)\n"
            f"    {NAPS}\n"
        )
        process = trainer(tmp_path, body, root)
        ready(process)
        end(process.pid)
        _, errors = process.communicate(timeout=30)
        assert errors.splitlines()[-1] == said
        assert errors.count("Traceback") == 1
        assert not is_filled(root)
        assert read_status(root).doing == "ended: SIGTERM"

    @pytest.mark.complete
    def test_ctrl_c_that_training_survives_does_not_end_it(self, tmp_path: Path, root: Path) -> None:
        body = (
            "cache.fill(fillers.steady)\n"
            "try:\n"
            "    print('ready', flush=True)\n"
            f"    {NAPS}\n"
            "except KeyboardInterrupt:\n"
            "    time.sleep(0.5)\n"
            "    print(cache.status().alive, flush=True)\n"
        )
        process = trainer(tmp_path, body, root)
        ready(process)
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=30)
        assert (out.strip(), errors) == ("True", "")


class TestOutlive:
    @pytest.mark.complete
    def test_it_lives_on_and_holds_nothing_of_its_starter(self, tmp_path: Path, root: Path) -> None:
        process = trainer(tmp_path, "cache.fill(fillers.steady, outlive=True)\ncache.close()", root)
        # Returns when nobody has the program's output open any more.
        assert process.communicate(timeout=30) == ("", "")
        assert is_filled(root)
        while (status := read_status(root)).state == "starting":
            time.sleep(0.05)
        assert os.getsid(status.process) not in (process.pid, os.getsid(0))
        os.kill(status.process, signal.SIGTERM)
        wait_until_unfilled(root)
        assert read_status(root).doing == "ended: SIGTERM"

    @pytest.mark.complete
    def test_its_output_goes_to_a_log_that_stays_short(self, tmp_path: Path, root: Path) -> None:
        process = trainer(tmp_path, "cache.fill(fillers.talking, outlive=True)", root)
        process.communicate(timeout=30)
        log, largest, shrunk = root / LOG, 0, False
        end = time.monotonic() + 20
        while not shrunk:
            size = log.stat().st_size
            shrunk, largest = size < largest, max(size, largest)
            assert time.monotonic() < end
            time.sleep(0.02)
        assert b"the source speaks\n" in log.read_bytes()
        os.kill(read_status(root).process, signal.SIGTERM)
        wait_until_unfilled(root)
        # The log is part of the cache.
        assert run(root, fillers.few, OPTIONS).figures.problem == ""
