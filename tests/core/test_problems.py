"""Laws of failures to read: the error says whether the dataset is at fault, and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from packtrain._core.problems import reading
from packtrain.errors import CorruptFile, UnreadableFile

AT_FAULT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.EFBIG)
NOT_AT_FAULT = {
    errno.EMFILE: "ulimit -n",
    errno.ENFILE: "fs.file-max",
    errno.EACCES: "right to do so",
    errno.EPERM: "right to do so",
    errno.EIO: "dmesg",
    errno.ESTALE: "open the dataset again",
    errno.ENOMEM: "too little memory",
    errno.ENXIO: "",
}


@pytest.mark.parametrize("number", [*AT_FAULT, *NOT_AT_FAULT], ids=errno.errorcode.get)
def test_each_failure_has_its_error_and_its_remedy(tmp_path: Path, number: int) -> None:
    path = tmp_path / "index" / "line.npy"
    with pytest.raises((CorruptFile, UnreadableFile)) as caught, reading(path, file="index/line.npy"):
        raise OSError(number, os.strerror(number), path)
    assert type(caught.value) is (CorruptFile if number in AT_FAULT else UnreadableFile)
    assert caught.value.file == "index/line.npy"
    message = str(caught.value)
    assert message.startswith(f"{path} ")
    if number in NOT_AT_FAULT:
        assert os.strerror(number) in message and NOT_AT_FAULT[number] in message


def test_a_missing_file_may_mean_something_to_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), reading(tmp_path / "x", missing=False):
        (tmp_path / "x").read_bytes()
