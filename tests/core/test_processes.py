"""Laws of names of processes: only what has ended for certain is said to have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from packtrain._core.files import remove_abandoned, temporary_path
from packtrain._core.processes import ProcessName

SAY = "from packtrain._core.processes import ProcessName; print(ProcessName.mine(), flush=True); input()"


def test_a_process_has_ended_when_it_is_gone_or_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        name = ProcessName.parse(child.stdout.readline().decode().strip())
        assert name is not None
        assert name.process == child.pid
        assert not name.ended
        child.send_signal(signal.SIGSTOP)
        assert not name.ended, "it may go on"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert name.ended, "nobody has reaped it, but it is dead"
    assert name.ended


def test_only_the_very_same_process_lives() -> None:
    mine = ProcessName.mine()
    assert ProcessName.parse(str(mine)) == mine
    assert not mine.ended
    assert replace(mine, start=mine.start + 1).ended, "another one had this id"
    assert not replace(mine, machine="0" * 12, process=1 << 22).ended, "who knows?"


@pytest.mark.parametrize("text", ["", "0123456789ab", "0123456789ab-1", "0123456789AB-1-2", "0123456789ab-1-2-3"])
def test_other_texts_name_no_process(text: str) -> None:
    assert ProcessName.parse(text) is None


def test_temporaries_of_others_stay_unless_these_have_ended(tmp_path: Path) -> None:
    mine = ProcessName.mine()
    far, dead = replace(mine, machine="0" * 12), replace(mine, start=mine.start + 1)
    kept = [temporary_path(tmp_path / "a.tar", owner) for owner in (None, mine, far)]
    gone = [temporary_path(tmp_path / name, dead) for name in ("a.tar", "b.tar")]
    for path in (*kept, *gone):
        path.touch()
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
