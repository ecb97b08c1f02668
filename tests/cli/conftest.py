"""Running the command line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.fillers import cleared

from packtrain._cli import export_cmd, index_cmd, main, pack_cmd, verify_cmd


@dataclass(frozen=True)
class Outcome:
    """The end of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document."""
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def root(memory_path: Path) -> Iterator[Path]:
    """A folder for a growing cache; whoever fills it is ended after the test."""
    with cleared(memory_path / "cache"):
        yield memory_path / "cache"


def on_terminal(*words: object) -> tuple[str, bytes]:
    """Runs a command; returns what it prints, and what it shows on the terminal of its standard error."""
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    command = [sys.executable, "-m", "packtrain", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, stdin=terminal, text=True) as process:
        os.close(terminal)
        shown = b""
        # Reading raises an error when the terminal is closed.
        with suppress(OSError):
            while piece := os.read(screen, 4096):
                shown += piece
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(screen)
    assert process.returncode == 0
    return printed, shown


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``packtrain ARGUMENTS``, or ``pack ARGUMENTS``, in this process; with ``--workers``, also in others."""
    # To start workers takes longer than what these tests give them to do.
    for command in (export_cmd, index_cmd, pack_cmd, verify_cmd):
        monkeypatch.setattr(command, "available_cores", lambda: 1)

    def run(*arguments: object, program: str = "packtrain") -> Outcome:
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            (main.main if program == "packtrain" else pack_cmd.main)()
        captured = capsys.readouterr()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return Outcome(code or 0, captured.out, captured.err)

    return run
