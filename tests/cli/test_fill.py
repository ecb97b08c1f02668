"""Laws of `packtrain fill`: it fills, says what it does in the form that its reader needs, and ends in order."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import fillers
from helpers.fillers import environment

from packtrain import GrowingCache
from packtrain._cli import fill_cmd, output
from packtrain._cli.fill_cmd import live_line
from packtrain._growing.cache_folder import is_filled
from packtrain._growing.options import FillOptions
from packtrain._growing.process import run as run_filler
from packtrain._growing.status import FillFigures, FillStatus, read_status

from .conftest import Run

SIZES = ("--budget", "4MiB", "--shard-size", "128KiB")
WORDS = (sys.executable, "-m", "packtrain", "fill")


class TestFilling:
    def test_it_fills_until_the_source_ends(self, run: Run, root: Path) -> None:
        done = run("fill", "helpers.fillers:few", root, *SIZES)
        assert (done.code, done.out) == (0, "")
        assert "60 samples" in done.err and "ended: its source has ended" in done.err
        assert len(GrowingCache(root).dataset()) == 60

    @pytest.mark.parametrize(
        ("number", "code", "why"), [(signal.SIGTERM, 0, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")]
    )
    def test_a_signal_ends_it_in_order(self, root: Path, number: int, code: int, why: str) -> None:
        words = [*WORDS, "helpers.fillers:steady", str(root), *SIZES]
        process = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True)
        while read_status(root).state != "filling":
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        assert not is_filled(root)
        assert read_status(root).doing == f"ended: {why}"

    @pytest.mark.complete
    def test_a_terminal_has_a_line_that_changes(self, root: Path) -> None:
        ours, theirs = pty.openpty()
        words = [*WORDS, "helpers.fillers:steady", str(root), *SIZES]
        process = subprocess.Popen(words, env=environment(), stderr=theirs, stdin=theirs)
        os.close(theirs)
        shown = b""
        while shown.count(b"\r\x1b[Kfill: ") < 2:
            shown += os.read(ours, 4096)
        assert b"\n" not in shown
        process.terminate()
        process.wait(30)
        os.close(ours)

    def test_a_log_has_a_line_now_and_then(self, run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(output, "_LOG_SECONDS", 0)
        lines = run("fill", "helpers.fillers:few", root, *SIZES).err.splitlines()
        assert len(lines) == 2
        assert all(line.startswith("fill: ") for line in lines)


def test_a_line_says_what_matters() -> None:
    figures = FillFigures(samples=1234, evicted_shards=5, used_bytes=3 << 30, problem="a sample\nwas refused")
    status = FillStatus(
        Path("c"),
        "waiting",
        "readers",
        budget_bytes=4 << 30,
        bytes_per_second=61e6,
        oldest_seconds=600,
        figures=figures,
    )
    assert live_line(status) == (
        "1,234 samples, 61 MB/s in, 5 evicted, oldest 10 min, 3.0 GiB of 4.0 GiB, 0 B a day; "
        "waiting: readers; a sample\\nwas refused"
    )


def test_the_last_line_of_a_filler_has_the_rate_of_all_its_time() -> None:
    status = FillStatus(Path("c"), "ended", "its source has ended", mean_bytes_per_second=20e6)
    assert ", 20 MB/s in, " in live_line(status)


def test_options_have_the_defaults_of_the_library(root: Path) -> None:
    defaults = {parameter.name: parameter.default for parameter in fill_cmd.command.params}
    assert defaults["headroom"] == FillOptions("1GiB").headroom
    assert run_filler(root, fillers.few, FillOptions("4MiB", shard_size="128KiB")).state == "ended"
