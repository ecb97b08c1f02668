"""Nodes, workers and drivers die while a cluster packs: the dataset has the bytes of a local run all the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.processes import children
from helpers.ray_cluster import RayCluster, a_driver, ray_cluster, title
from helpers.ray_packing import pack_slowly
from helpers.support import image_set, tree
from helpers.waiting import wait_until

from packtrain import PackOptions, RayEngine, pack
from packtrain._core.options import StoreOptions
from packtrain.reports import PackProgress

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"),
]

COUNT = 60
OPTIONS = PackOptions(store=StoreOptions("raw", resize="8x8"), shard_size=4 * 8 * 8 * 3)
"""Records of one size, four in each shard."""
ARGUMENTS = ("--store", "raw", "--resize", "8x8", "--shard-size", str(OPTIONS.shard_size))


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty images; not to be changed."""
    return image_set(tmp_path_factory.mktemp("images"), COUNT)


@pytest.fixture(scope="module")
def local(listing: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The dataset that a local run makes of them."""
    folder = tmp_path_factory.mktemp("local")
    pack(listing, folder, OPTIONS)
    return tree(folder)


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """Three nodes with one processor each."""
    with ray_cluster(1, 1, 1) as it:
        yield it


@pytest.fixture(autouse=True)
def _slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packtrain._packer.pack_run.pack_elsewhere", pack_slowly)


def pack_and(cluster: RayCluster, listing: Path, out: Path, *, at: list[int], do: Callable[[], None]) -> None:
    """Packs, and does something whenever so many lines are done."""
    left = sorted(at)

    def watch(state: PackProgress) -> None:
        while left and state.done >= left[0]:
            left.pop(0)
            do()

    report = pack(listing, out, OPTIONS, engine=RayEngine(cluster.address), on_progress=watch)
    assert left == []
    assert report.records == COUNT


@a_driver
def test_workers_are_killed(cluster: RayCluster, listing: Path, local: dict[str, bytes], tmp_path: Path) -> None:
    chance = random.Random(0)
    lost = set[str]()

    def kill() -> None:
        """Kills a worker at a shard that has not lost one yet: the second time would be the end."""
        writers = {path.name.split("-")[-3]: path.name.split(".tmp-")[0] for path in tmp_path.glob(".train-*.tmp-*-*")}
        chosen = [worker for worker in cluster.workers() if writers.get(str(worker), "") not in {"", *lost}]
        if chosen:
            worker = chance.choice(chosen)
            lost.add(writers[str(worker)])
            os.kill(worker, signal.SIGKILL)

    pack_and(cluster, listing, tmp_path, at=[5, 15, 30], do=kill)
    assert lost
    assert tree(tmp_path) == local


@a_driver
def test_nodes_are_killed_and_others_join(
    cluster: RayCluster, listing: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    def kill() -> None:
        cluster.kill(cluster.nodes[0])
        cluster.add_node()

    pack_and(cluster, listing, tmp_path, at=[5, 25], do=kill)
    assert tree(tmp_path) == local


@a_driver
def test_a_node_that_comes_back_from_the_dead_changes_nothing(
    cluster: RayCluster, listing: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    """Its tasks have long been done by others, and it goes on with them."""
    stopped: list[int] = []

    def stop() -> None:
        node = cluster.nodes[0]
        stopped.extend([node, *children(node)])
        for process in stopped:
            os.kill(process, signal.SIGSTOP)

    pack_and(cluster, listing, tmp_path, at=[5], do=stop)
    assert tree(tmp_path) == local
    for process in stopped:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
    wait_until(
        lambda: not any(title(process).startswith("ray::packtrain") for process in stopped), "its tasks have ended"
    )
    assert tree(tmp_path) == local


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, None)])
@a_driver
def test_a_driver_that_ends_leaves_no_task_and_the_next_one_continues(
    cluster: RayCluster, listing: Path, local: dict[str, bytes], tmp_path: Path, number: int, code: int | None
) -> None:
    options = ("--engine", "ray", "--address", cluster.address, *ARGUMENTS)
    command = (sys.executable, "-m", "helpers.ray_packing", "pack", listing, tmp_path, *options)
    for wanted in (2, 5):
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: len(list(tmp_path.glob("parts/*.npz"))) >= wanted, "shards are finished")  # noqa: B023
        driver.send_signal(number)
        said = driver.communicate(timeout=60)
        assert driver.returncode == code if code is not None else driver.returncode, said
        wait_until(lambda: cluster.workers() == [], "all tasks have ended")
        assert not (tmp_path / "manifest.json").exists()
    assert [bool(title(node)) for node in cluster.nodes] == [True] * 3
    report = pack(listing, tmp_path, OPTIONS, engine=RayEngine(cluster.address))
    assert report.resumed >= 5
    assert tree(tmp_path) == local
