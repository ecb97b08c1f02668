"""A dataset may have more shards than a process may open files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.support import FORMATS, image_set, packed

READ_ALL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import numpy as np
from packtrain._readers.dataset.store import RecordStore

store = RecordStore(sys.argv[1], io=sys.argv[2])
first = store.record(0)
copy = bytes(first)
checked = 0
for row in np.random.default_rng(0).integers(0, len(store), 500).tolist():
    checked += len(store.record(row))  # compares its checksum
assert first == copy, "a view changed when its shard was let go"
print(len(store.manifest.shards), checked > 0)
"""


@pytest.fixture(scope="module", params=FORMATS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred shards of one record."""
    folder = tmp_path_factory.mktemp("shards")
    listing = image_set(folder / "images", 10)
    listing.write_text(listing.read_text() * 10)
    return packed(listing, folder / "out", request.param, shard_size=1)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_hundred_shards_are_read_with_64_descriptors(dataset: Path, io: str) -> None:
    done = subprocess.run([sys.executable, "-c", READ_ALL, dataset, io], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "100 True\n"), done.stderr
