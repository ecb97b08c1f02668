"""Laws of what no command foresees: it ends in one line, never in a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from packtrain._readers.dataset import summary

from .conftest import Run


@pytest.mark.complete
@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"]], ids=" ".join)
def test_a_full_standard_output_is_told_on_standard_error(images: Path, tmp_path: Path, arguments: list[str]) -> None:
    packed = tmp_path / "data"
    command = [sys.executable, "-m", "packtrain"]
    subprocess.run([*command, "pack", str(images), str(packed)], check=True, capture_output=True)
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [*command, *arguments, str(packed)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, "error: a file: No space left on device\n")


def test_too_little_memory_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(_: Path, __: str | None) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(summary, "summarise", run_out)
    outcome = run("info", tmp_path)
    assert (outcome.code, outcome.out) == (1, "")
    assert (
        outcome.err == "error: out of memory: stop other programs, or raise the limit of this process (`ulimit -v`)\n"
    )
    assert run("info", tmp_path, "--json").json["error"] == "MemoryError"
