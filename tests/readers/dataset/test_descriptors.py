"""A dataset, and a growing cache, may have more shards than a process may open files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.growing import TinyCache
from helpers.support import image_set, output_of, packed

READ_ALL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import numpy as np
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import newest
from packtrain._readers.dataset.store import RecordStore

path, io, field = sys.argv[1:]
store = RecordStore(path, io=io) if field == "image" else newest(CacheFiles(path, io))
first = store.record(0, field)
copy = bytes(first)
checked = 0
for row in np.random.default_rng(0).integers(0, len(store), 500).tolist():
    checked += len(store.record(row, field))  # compares its checksum
store.all_labels()
assert first == copy, "a view changed when its shard was let go"
print(checked > 0)
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred shards of one record."""
    folder = tmp_path_factory.mktemp("shards")
    listing = image_set(folder / "images", 10)
    listing.write_text(listing.read_text() * 10)
    return packed(listing, folder / "out", "tar", shard_size=1)


@pytest.mark.complete
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_hundred_shards_are_read_with_64_descriptors(dataset: Path, io: str) -> None:
    assert output_of(sys.executable, "-c", READ_ALL, dataset, io, "image") == "True\n"


@pytest.mark.complete
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_so_are_a_hundred_of_a_growing_cache(memory_path: Path, io: str) -> None:
    TinyCache(memory_path / "cache").grow(*[2] * 100)
    assert output_of(sys.executable, "-c", READ_ALL, memory_path / "cache", io, "name") == "True\n"
