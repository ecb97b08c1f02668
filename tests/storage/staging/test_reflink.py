"""On file systems that share blocks, a copy takes no room and no time, but is still checksummed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.staging import copies
from helpers.staging.copies import assert_copied, made, noise
from helpers.support import flip, tool

from packtrain.errors import SourceChanged

MiB = 1 << 20
SIZES = (0, 5, 30 * MiB + 3, 70 * MiB, 4096)
MAKERS = {"btrfs": ("btrfs-progs", "-q"), "xfs": ("xfsprogs", "-q", "-m", "reflink=1")}


@pytest.fixture(params=["xfs", pytest.param("btrfs", marks=pytest.mark.complete)])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 MiB that shares blocks, in a file."""
    package, *options = MAKERS[request.param]
    maker = tool(f"mkfs.{request.param}", package)
    image, point = tmp_path / "image", tmp_path / "mount"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(400 * MiB)
    subprocess.run([maker, *options, image], check=True, capture_output=True)
    done = subprocess.run(["mount", "-o", "loop", image, point], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount {request.param} here: {done.stderr.strip()}")
    yield point
    subprocess.run(["umount", "--lazy", point], check=True)


def copied(disk: Path) -> None:
    files = made(disk / "source", noise(SIZES))
    (disk / "target").mkdir(exist_ok=True)
    os.sync()
    copies.copied(disk / "source", disk / "target", files, disk / "journal")


def free(disk: Path) -> int:
    os.sync()
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


@pytest.mark.complete
def test_blocks_are_shared(disk: Path) -> None:
    made(disk / "source", noise(SIZES))
    before = free(disk)
    copied(disk)
    assert before - free(disk) < 10 * MiB
    assert_copied(disk / "target", noise(SIZES))


@pytest.mark.complete
def test_needs_no_room(disk: Path) -> None:
    made(disk / "source", noise(SIZES))
    os.sync()
    with (disk / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, free(disk) - sum(SIZES) // 2)
    copied(disk)


@pytest.mark.complete
def test_content_is_checked(disk: Path) -> None:
    files = made(disk / "source", noise(SIZES))
    flip(disk / "source" / files[3].name, 33 * MiB)
    (disk / "target").mkdir()
    with pytest.raises(SourceChanged, match=files[3].name):
        copies.copied(disk / "source", disk / "target", files, disk / "journal")
