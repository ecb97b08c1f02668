"""Copying and checking leave the source's page cache as it was; copies and warmed files are in the page cache.

The oracle is `fincore` of util-linux, which lists the pages in the cache.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.staging.copies import copied, made, noise
from helpers.support import output_of, tool

from packtrain._core.mounts import file_system
from packtrain._storage.staging import kernel
from packtrain._storage.staging.origin import Origin, SourceFile
from packtrain._storage.staging.transfer import check_files, warm_files

MiB = 1 << 20
SIZES = (1, 3 * MiB + 77, 40 * MiB, 16 * MiB, 5000)
ALL = [-(-size // mmap.PAGESIZE) for size in SIZES]
WARM_PAGES = 1000


def pages(folder: Path, files: Sequence[SourceFile]) -> list[int]:
    """Number of pages of each file that are in the page cache."""
    tool("fincore", "util-linux")
    paths = [str(folder / file.name) for file in files]
    return [int(line) for line in output_of("fincore", "--noheadings", "--output", "PAGES", *paths).split()]


def assert_pages(folder: Path, files: Sequence[SourceFile], expected: Sequence[int]) -> None:
    """There are no more pages, but for the last one of a file, and not many fewer: the kernel may reclaim some."""
    for found, most in zip(pages(folder, files), expected, strict=True):
        assert 0.9 * most - 1 <= found <= most + 1


def cool(folder: Path, files: Sequence[SourceFile]) -> None:
    """Drops files from the page cache."""
    for file in files:
        with (folder / file.name).open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def touch(path: Path, offset: int, count: int) -> None:
    """Reads exactly this many pages."""
    with path.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(opened.fileno(), count * mmap.PAGESIZE, offset)


@pytest.fixture
def files(tmp_path: Path) -> list[SourceFile]:
    """Files in tmp_path / "source", none of which is in the page cache."""
    files = made(tmp_path / "source", noise(SIZES))
    (tmp_path / "target").mkdir()
    cool(tmp_path / "source", files)
    if any(pages(tmp_path / "source", files)):
        pytest.skip(f"{file_system(tmp_path)} drops nothing from the page cache: set TMPDIR to a folder on a disk")
    return files


@pytest.fixture(params=["past the cache", "we drop", "nobody tells"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ways to read files: some file systems refuse O_DIRECT; for other users' files the kernel does not tell."""
    chosen: str = request.param
    set_flags = fcntl.fcntl

    def set_file_flags(descriptor: int, command: int, flags: int = 0) -> int:
        if flags & os.O_DIRECT and chosen == "we drop":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return set_flags(descriptor, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", set_file_flags)
    if chosen == "nobody tells":
        monkeypatch.setattr(kernel, "cached_pages", lambda *_: None)
    return chosen


@pytest.mark.complete
def test_copying(tmp_path: Path, files: list[SourceFile], way: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    touch(source / files[2].name, 20 * MiB, WARM_PAGES)
    touch(source / files[3].name, 0, ALL[3])
    before = pages(source, files)
    assert before[2] and before[3], "the test could not set the scene"
    copied(source, target, files, tmp_path / "journal")
    assert_pages(source, files, before)
    assert_pages(target, files, ALL)


def test_what_is_not_cached_is_read_past_the_cache(
    tmp_path: Path, files: list[SourceFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So there is nothing to drop except the last page of a file."""
    monkeypatch.setattr(kernel.Reader, "close", lambda self: None)
    check_files(Origin(tmp_path / "source"), files)
    assert all(count <= 1 or count == ALL[-1] for count in pages(tmp_path / "source", files))


def test_checking(tmp_path: Path, files: list[SourceFile], way: str) -> None:
    touch(tmp_path / "source" / files[2].name, 0, WARM_PAGES)
    assert check_files(Origin(tmp_path / "source"), files) == []
    assert_pages(tmp_path / "source", files, [0, 0, WARM_PAGES, 0, 0])


def test_warming(tmp_path: Path, files: list[SourceFile]) -> None:
    warm_files(tmp_path / "source", files)
    assert_pages(tmp_path / "source", files, ALL)
