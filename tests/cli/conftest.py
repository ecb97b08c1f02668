"""Running the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from packtrain._cli import index_cmd, main, pack_cmd, verify_cmd


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document."""
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``packtrain ARGUMENTS``, or ``pack ARGUMENTS``, in this process; with ``--workers``, also in others."""
    # To start workers takes longer than what these tests give them to do.
    for command in (index_cmd, pack_cmd, verify_cmd):
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
