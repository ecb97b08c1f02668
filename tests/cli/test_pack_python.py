"""Laws of `packtrain pack MODULE:NAME`: it packs what the library packs of the same object."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.making import sample
from helpers.support import tree

from packtrain import PackOptions, open_dataset, pack

from .conftest import Run

MODULE = """
import sys
from helpers.making import Images, sample, stream

numbers = range(9)
images = Images(9)

def samples():
    yield from stream(9)

def stopped():
    yield from stream(2)
    raise KeyboardInterrupt

def late():
    return numbers

def stop(number):
    if number == 5:
        raise KeyboardInterrupt
    return sample(number)

def broken():
    raise ValueError("no samples today")

def ended():
    yield from stream(2)
    sys.exit()

def leaves(number):
    sys.exit()

def __getattr__(name):
    if name == "lazy":
        raise ImportError("lazy needs more")
    raise AttributeError(name)

number = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the working folder."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "my_data.py").write_text(MODULE)
    (tmp_path / "work" / "program.py").write_text("import sys\nnumbers = [1]\nsys.exit()")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "my_data"
    sys.modules.pop("my_data", None)


@pytest.mark.parametrize("inputs", ["numbers", "late"])
def test_inputs_and_a_function(run: Run, module: str, tmp_path: Path, inputs: str) -> None:
    words = ("--function", f"{module}:sample", "--workers", 1, "--keep-order")
    outcome = run("pack", f"{module}:{inputs}", tmp_path / "out", *words)
    assert outcome.code == 0, outcome.err
    pack(range(9), tmp_path / "library", PackOptions(seed=None), function=sample)
    assert tree(tmp_path / "out") == tree(tmp_path / "library")


def test_columns_name_the_keys(run: Run, module: str, tmp_path: Path) -> None:
    words = ("--image", "image", "--text", "words=caption", "--workers", 1)
    outcome = run("pack", f"{module}:numbers", tmp_path / "out", "--function", f"{module}:sample", *words, "--json")
    assert outcome.code == 0, outcome.err
    assert open_dataset(tmp_path / "out", fields=("words",))[3].words == "number 3"


def test_a_map_style_dataset_needs_no_function(run: Run, module: str, tmp_path: Path) -> None:
    assert run("pack", f"{module}:images", tmp_path / "out", "--workers", 1).code == 0


def test_a_function_that_yields_samples(run: Run, module: str, tmp_path: Path) -> None:
    outcome = run("pack", f"{module}:samples", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "9 records in 1 shard(s)" in outcome.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["my_data:samples", "out", "--workers", "2"], "`--workers`: samples that come one by one"),
        (["my_data:samples", "out", "--part", "1/2"], "`--part`: samples that come one by one"),
        (["my_data:broken", "out"], "source my_data:broken: ValueError: no samples today ("),
        (["my_data:lazy", "out"], "my_data does not give lazy: ImportError: lazy needs more ("),
        (["my_data:ended", "out"], "the source failed after 2 samples: SystemExit ("),
        (
            ["my_data:numbers", "out", "--function", "my_data:leaves", "--workers", "1"],
            "First: input 0 ('0'): SystemExit (",
        ),
        (["my_data:leaves.__wrapped__", "out"], "my_data has no leaves.__wrapped__"),
        (["program:numbers", "out"], "program cannot be imported: SystemExit"),
        (["my_data:number", "out"], "an object of type int, neither samples nor a function that yields them"),
        (["my_data:nummbers", "out"], "my_data has no nummbers; did you mean 'numbers'?"),
        (["your_data:numbers", "out"], "your_data cannot be imported: ModuleNotFoundError: No module"),
        (["my_data:numbers", "out", "--function", "sample"], "expected MODULE:FUNCTION"),
        (["train.txt", "out", "--function", "my_data:sample"], "name them, as MODULE:INPUTS"),
    ],
)
def test_what_cannot_be_packed(run: Run, module: str, words: list[str], message: str) -> None:
    outcome = run("pack", *words)
    assert outcome.code != 0
    assert message in outcome.err


def test_a_file_of_such_a_name_is_a_list(run: Run, module: str, images: Path, tmp_path: Path) -> None:
    Path("my_data:numbers").write_text(images.read_text())
    assert run("pack", "my_data:numbers", tmp_path / "out", "--root", images.parent).code == 0


def test_ctrl_c_promises_no_more_than_there_is(run: Run, module: str, tmp_path: Path) -> None:
    """What comes one by one cannot be continued."""
    outcome = run("pack", f"{module}:stopped", tmp_path / "out")
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err.strip().startswith("stopped, and nothing was kept: samples that come one by one")
    assert not [path for path in tmp_path.iterdir() if path.name != "work"]
    outcome = run("pack", f"{module}:numbers", tmp_path / "out", "--function", f"{module}:stop", "--workers", 1)
    assert (outcome.code, outcome.err.strip()) == (130, "stopped; run the same command to continue")
