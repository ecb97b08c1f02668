"""The examples on the pages of the growing cache can be typed: they run, commands parse, every state is explained."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import click
import pytest
from helpers.documents import run

from packtrain._cli.fill_cmd import command
from packtrain._growing.status import STATES
from packtrain.reports import FillStatus

DOCUMENT = Path(__file__).parents[2] / "docs/growing-cache.md"
TEXT = "\n".join(path.read_text() for path in DOCUMENT.parent.glob("growing-cache*.md"))


@pytest.mark.complete
def test_its_example_runs(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(memory_path)
    (memory_path / "nvme").mkdir()
    (printed,) = run(DOCUMENT, memory_path).printed
    epochs = [list(map(int, line.split())) for line in printed.splitlines()]
    assert [epoch for epoch, _ in epochs] == [0, 1, 2]
    # As of the last status, which is written once a second.
    assert 0 <= epochs[0][1] <= epochs[1][1] <= epochs[2][1] != 0


@pytest.mark.parametrize("line", re.findall(r"^packtrain fill.*$", TEXT, re.MULTILINE))
def test_its_commands_can_be_parsed(line: str) -> None:
    context = command.make_context("fill", shlex.split(line)[2:])
    assert isinstance(context, click.Context)


def test_it_explains_every_state_and_field() -> None:
    code = set(re.findall(r"`([\w.]+)`", TEXT))
    assert {*STATES, "starting", "killed", "none"} <= code
    explained = {field.name for field in fields(FillStatus)} - {"root", "alive"}
    assert explained <= code, explained - code
