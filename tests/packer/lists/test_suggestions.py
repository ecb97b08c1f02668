"""Laws of remedies for lists; that it can be typed is a law of the command line, see tests/cli/test_lists.py."""

from __future__ import annotations

import os
from pathlib import Path

from packtrain._core.options import LabelSpec
from packtrain._packer.lists.reader import read_list
from packtrain._packer.lists.suggestions import Remedy

REMEDY = Remedy("It is wrong", "tr a b", ("--labels", "class"))


def test_a_pipe_cannot_be_packed_again_under_another_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    expected = "It is wrong: send the list through tr a b, and give --labels class"
    assert REMEDY.text(tmp_path / "pipe", tmp_path) == REMEDY.text(None, tmp_path) == expected


def test_a_few_nuls_do_not_make_a_text_binary(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a.jpg 1\n" + "b\0.jpg 1\n" * 7)
    assert len(read_list(tmp_path / "train.txt", LabelSpec())) == 1
