"""Fixtures: datasets to stage, folders to stage them to, and processes that stage them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.faults.harness import FaultServer
from helpers.memory import disk_factory
from helpers.staging.children import Child, Children
from helpers.staging.laws import packed_pictures

WARM_UP = """
import tempfile
from pathlib import Path
from packtrain._storage.staging.eviction import evict
from packtrain._storage.staging.options import StageOptions
from packtrain._storage.staging.stager import repair, stage

with tempfile.TemporaryDirectory() as folder:
    staged = stage(args["dataset"], StageOptions(to=Path(folder)))
    repair(staged.path.parents[1], staged.id)
    staged.lease.close()
    evict(folder)
"""


tmp_path_factory = disk_factory


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Four datasets of nearly the same size, with four shards each and different content; do not change them."""
    folder = tmp_path_factory.mktemp("datasets")
    return tuple(packed_pictures(folder / name, seed) for seed, name in enumerate(("birds", "cats", "dogs", "eels")))


@pytest.fixture(scope="session")
def dataset(datasets: tuple[Path, ...]) -> Path:
    """The first of the datasets."""
    return datasets[0]


@pytest.fixture
def place(memory_path: Path) -> Path:
    """An empty folder, in memory if possible, because that is where datasets are staged by default."""
    return memory_path


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="staging-") as folder, Children(Path(folder)) as children:
        yield children


@pytest.fixture
def start(children: Children) -> Iterator[Callable[[], Child]]:
    """Starts processes, which end with the test."""
    yield children.start
    children.kill_all()


@pytest.fixture(scope="session")
def faulty(dataset: Path, fault_library: Path) -> Iterator[FaultServer]:
    """Starts processes with injected faults."""
    with FaultServer(fault_library, WARM_UP, {"dataset": str(dataset)}) as server:
        yield server
