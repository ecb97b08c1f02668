"""Laws of paths on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

COMMANDS = [
    ["pack", "", "out"],
    ["pack", "train.txt", ""],
    ["pack", "train.txt", "out", "--root", ""],
    ["pack", "train.txt", "out", "--classes", ""],
    ["verify", ""],
    ["verify", "out", "--journal", ""],
    ["info", ""],
    ["show", ""],
    ["show", "out", "--out", ""],
    ["stage", ""],
    ["stage", "out", "--to", ""],
    ["staged", "list", "--to", ""],
    ["tune", ""],
    ["tune", "out", "--out", ""],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unset_variable_is_not_the_working_folder(
    run: Run, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(*command)
    assert (outcome.code, outcome.out) == (2, "")
    assert "the path is empty" in outcome.err
    assert not list(tmp_path.iterdir())
