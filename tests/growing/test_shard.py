"""New shards leave the page cache where they would only displace other data; the oracle is the kernel's mincore."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from helpers.memory import disk_factory

from packtrain._core.mounts import file_system
from packtrain._growing import shard as module
from packtrain._growing.shard import stays_in_memory, write_behind
from packtrain._storage.staging.kernel import cached_pages, drop_from_memory

MiB = 1 << 20
SIZE = 3 * MiB + 77
PAGES = -(-SIZE // mmap.PAGESIZE)


def cached(path: Path) -> int:
    """Number of pages of a file that are in the page cache."""
    with path.open("rb") as file:
        pages = cached_pages(file.fileno(), 0, SIZE)
    assert pages is not None
    return int(pages.sum())


def written(path: Path) -> Path:
    """A file on the disk, all of which is in the page cache."""
    with path.open("wb") as file:
        file.write(os.urandom(SIZE))
        file.flush()
        os.fsync(file.fileno())
    assert cached(path) == PAGES
    return path


tmp_path_factory = disk_factory


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    if file_system(tmp_path) == "tmpfs":
        pytest.skip("temporary files are in memory: set TMPDIR to a folder on a disk")
    return tmp_path


def test_a_settled_shard_is_not_in_memory_and_others_are(on_disk: Path) -> None:
    shard, other = written(on_disk / "shard"), written(on_disk / "other")
    content = shard.read_bytes()
    drop_from_memory(shard)
    assert cached(shard) == 0
    # The kernel may reclaim some at any time.
    assert cached(other) > 0.9 * PAGES
    assert shard.read_bytes() == content


def test_parts_of_the_file_are_written_as_they_are_named(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(descriptor: int, offset: int, length: int) -> None:
        asked.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), offset, length))

    monkeypatch.setattr(module, "start_writeback", noted)
    write_behind(written(on_disk / "shard"), 2 * MiB, 3 * MiB)
    assert asked == [("shard", 2 * MiB, MiB)]


def test_a_shard_that_is_not_there_is_left_alone(tmp_path: Path) -> None:
    write_behind(tmp_path / "shard", 0, 1)
    drop_from_memory(tmp_path / "shard")
    assert not list(tmp_path.iterdir())


def test_a_cache_of_half_the_memory_stays_there() -> None:
    assert stays_in_memory(50, 100)
    assert not stays_in_memory(51, 100)
    assert stays_in_memory(1) and not stays_in_memory(1 << 60)
