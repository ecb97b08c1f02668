"""What the pages of the growing cache show can be typed: examples run, commands parse, every state is explained."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest

from packtrain._cli.fill_cmd import command
from packtrain._growing.status import STATES
from packtrain.reports import FillStatus

TEXT = "\n".join(path.read_text() for path in Path(__file__).parents[2].glob("docs/growing-cache*.md"))


def blocks(language: str) -> list[str]:
    """The code blocks of the document that are marked with a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [text for marked, text in found if marked == language]


@pytest.mark.complete
def test_its_example_runs(tmp_path: Path, memory_path: Path) -> None:
    for block in blocks("python"):
        name = block.split()[1]
        assert name in ("sampler.py", "train.py")
        # Less than half a terabyte will do.
        small = block.replace('"/nvme/cache", budget="500GiB"', f'"{memory_path}/cache", budget="8MiB"')
        (tmp_path / name).write_text(small)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    epochs = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [epoch for epoch, _ in epochs] == [0, 1, 2]
    # As of the last status, which is written once a second.
    assert 0 <= epochs[0][1] <= epochs[1][1] <= epochs[2][1] != 0


@pytest.mark.parametrize(
    "line", [line for block in blocks("") for line in block.splitlines() if line.startswith("packtrain fill")]
)
def test_its_commands_can_be_parsed(line: str) -> None:
    context = command.make_context("fill", shlex.split(line)[2:])
    assert isinstance(context, click.Context)


def test_it_explains_every_state_and_field() -> None:
    code = set(re.findall(r"`([\w.]+)`", TEXT))
    assert {*STATES, "starting", "killed", "none"} <= code
    explained = {field.name for field in fields(FillStatus)} - {"root", "alive"}
    assert explained <= code, explained - code
