"""Files that somebody else may have made are opened without waiting, and read without end."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.support import spoil

from packtrain._core.opening import open_regular, read_named, read_regular


def special(folder: Path, kind: str) -> Path:
    path = folder / kind
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.fspath(path))
    else:
        spoil(path, kind)
    return path


OTHERS = ("folder", "socket", "device")


@pytest.mark.parametrize(
    ("read", "kind"), [*((read_regular, kind) for kind in ("pipe", *OTHERS)), *((read_named, kind) for kind in OTHERS)]
)
def test_what_is_not_a_regular_file_is_refused_at_once_by_name(
    tmp_path: Path, read: Callable[[Path, int], bytes], kind: str
) -> None:
    path = special(tmp_path, kind)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="it is a ") as caught:
        read(path, 10)
    assert caught.value.filename == os.fspath(path)
    assert caught.value.errno == (errno.EISDIR if kind == "folder" else errno.EINVAL)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("size", [10, 11])
def test_a_file_that_the_user_names_may_be_a_pipe(tmp_path: Path, size: int) -> None:
    path = special(tmp_path, "pipe")
    writer = threading.Thread(target=path.write_bytes, args=[bytes(size)])
    writer.start()
    with nullcontext() if size == 10 else pytest.raises(OSError, match="larger than 10 bytes"):
        assert read_named(path, 10) == bytes(size)
    writer.join()


@pytest.mark.parametrize("size", [0, 1, 9, 10])
def test_a_file_of_at_most_the_bytes_allowed_is_read_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(bytes(range(size)))
    assert read_regular(tmp_path / "file", 10) == bytes(range(size))


@pytest.mark.parametrize("size", [11, 3 << 20])
def test_a_larger_file_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(bytes(size))
    with pytest.raises(OSError, match="larger than 10 bytes") as caught:
        read_regular(tmp_path / "file", 10)
    assert caught.value.errno == errno.EFBIG


def test_a_file_without_a_size_is_read_to_its_end() -> None:
    assert read_regular("/proc/self/cmdline", 1 << 20)


def test_links_are_followed_only_where_they_may_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 1) == b"1"
    with pytest.raises(OSError, match="symbolic links") as caught:
        read_regular(tmp_path / "link", 1, follow=False)
    assert caught.value.errno == errno.ELOOP


def test_a_path_is_relative_to_the_folder_that_was_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        os.rename(tmp_path, tmp_path.with_name("elsewhere"))
        descriptor = open_regular("file", dir_fd=folder)
        assert os.read(descriptor, 2) == b"1"
        os.close(descriptor)
    finally:
        os.close(folder)


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/file"])
def test_below_a_folder_no_part_of_a_path_is_a_link(tmp_path: Path, link: str) -> None:
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    (tmp_path / "top" / "a" / "b" / "file").write_bytes(b"1")
    (tmp_path / "way").symlink_to("top")
    path = tmp_path / "way" / "a" / "b" / "file"
    assert read_regular(path, 1, below=tmp_path / "way") == b"1"
    (tmp_path / "top" / link).rename(tmp_path / "elsewhere")
    (tmp_path / "top" / link).symlink_to(tmp_path / "elsewhere")
    before = os.listdir("/proc/self/fd")
    assert read_regular(path, 1) == b"1"
    with pytest.raises(OSError, match="symbolic links") as caught:
        read_regular(path, 1, below=tmp_path / "way")
    assert caught.value.errno == errno.ELOOP
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("part", ["a", "a/b"])
def test_a_file_in_the_place_of_a_folder_is_none(tmp_path: Path, part: str) -> None:
    (tmp_path / part).parent.mkdir(exist_ok=True)
    (tmp_path / part).touch()
    with pytest.raises(NotADirectoryError):
        read_regular(tmp_path / "a" / "b" / "file", 1, below=tmp_path)
