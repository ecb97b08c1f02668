"""Laws of remedies for lists; that it can be typed is a law of the command line, see tests/cli/test_lists.py."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from helpers.support import encoded, picture

from packtrain._core.options import LabelSpec
from packtrain._packer.lists.reader import read_list
from packtrain._packer.lists.remedies import Remedy
from packtrain._remote.urls import Url
from packtrain.errors import ListError

REMEDY = Remedy("It is wrong", "tr a b", ("--labels", "class"))


def test_a_pipe_cannot_be_packed_again_under_another_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    expected = "It is wrong: send the list through tr a b, and give --labels class"
    assert REMEDY.text(tmp_path / "pipe", b"", tmp_path) == expected
    assert REMEDY.text(None, b"", tmp_path) == expected


def test_a_command_is_whole_and_quotes_what_needs_it(tmp_path: Path) -> None:
    source, new = tmp_path / "my list.txt", tmp_path / "my list.new.txt"
    root = Url.parse("s3://bucket/images")
    assert REMEDY.text(source, b"", root) == (
        f"It is wrong. Type: tr a b < '{source}' > '{new}' && packtrain pack '{new}' OUT --labels class --root {root}"
    )
    assert REMEDY.text(source, b"caf\xe9.jpg 1\n", tmp_path).startswith("It is wrong. Type: LC_ALL=C tr a b < ")
    assert REMEDY.text(source, "caf\xe9".encode()[:-1], tmp_path).startswith("It is wrong. Type: tr a b < ")


NO_TEXT: dict[str, bytes] = {
    "is a spreadsheet or a ZIP archive: save it as CSV": b"PK\x03\x04...",
    "is an image, not a list: give a folder": encoded(picture(1)),
    "is a file of NumPy: write a text": np.lib.format.magic(1, 0),
    "is a pickle: write a text": pickle.dumps([("a.jpg", 0)]),
}


@pytest.mark.parametrize("message", NO_TEXT)
def test_what_is_no_text_is_refused_by_its_first_bytes(message: str, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(NO_TEXT[message])
    with pytest.raises(ListError, match=rf"^{tmp_path}/train\.txt {message}"):
        read_list(tmp_path / "train.txt", LabelSpec())


@pytest.mark.parametrize("text", ["\u56fe.jpg 1\n" * 400, "a.jpg 1\n" + "b\0.jpg 1\n" * 9])
def test_a_text_is_no_utf_16_because_of_other_scripts_or_a_few_nuls(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(text)
    assert len(read_list(tmp_path / "train.txt", LabelSpec())) + text.count("\0") == text.count("\n")
