"""Laws of the encodings of lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from packtrain._core.options import LabelSpec
from packtrain._packer.lists.reader import read_list


@pytest.mark.parametrize("text", ["\u56fe.jpg 1\n" * 400, "a.jpg 1\n" + "b\0.jpg 1\n" * 7])
def test_a_text_is_no_utf_16_because_of_other_scripts_or_a_few_nuls(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(text)
    assert len(read_list(tmp_path / "train.txt", LabelSpec())) + text.count("\0") == text.count("\n")
