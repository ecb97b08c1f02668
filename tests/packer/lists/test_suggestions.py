"""Laws of remedies for lists; that it can be typed is a law of the command line, see tests/cli/test_lists.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from packtrain._core.options import LabelSpec
from packtrain._packer.lists.reader import read_list
from packtrain._packer.lists.suggestions import Remedy

REMEDY = Remedy("It is wrong", "tr a b", ("--labels", "class"))


def test_a_pipe_cannot_be_packed_again_under_another_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    expected = "It is wrong: send the list through tr a b, and give --labels class"
    assert REMEDY.text(tmp_path / "pipe", tmp_path) == REMEDY.text(None, tmp_path) == expected


@pytest.mark.parametrize("text", ["\u56fe.jpg 1\n" * 400, "a.jpg 1\n" + "b\0.jpg 1\n" * 7])
def test_a_text_is_no_utf_16_because_of_other_scripts_or_a_few_nuls(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(text)
    assert len(read_list(tmp_path / "train.txt", LabelSpec())) + text.count("\0") == text.count("\n")
