"""Laws of tasks on a Ray cluster: those of `run_tasks`, whatever dies; and the bytes of a dataset are the same."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.fates import Report, work
from helpers.objects.fixtures import Started
from helpers.objects.servers import Server
from helpers.packing import TWO_A_SHARD as OPTIONS
from helpers.ray_cluster import RayCluster, a_driver, command, ray_cluster
from helpers.support import image_set, tree

from packtrain import RayEngine, pack
from packtrain._core.installing import extra_command
from packtrain._packer import ray_engine
from packtrain.errors import MissingDependency, NoSpace, ShardFailed, UsageError

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"),
]


@pytest.fixture(scope="module")
def cluster(started_server: Started) -> Iterator[RayCluster]:
    """Two nodes with one processor each, whose workers have the credentials of a store; not to be changed."""
    with started_server("moto").in_environment(), ray_cluster(1, 1) as it:
        yield it


def run(cluster: RayCluster, folder: Path, fates: list[str], reports: list[str] | None = None) -> list[int]:
    """Runs a task per fate; returns the results."""
    tasks = ((folder, number, fate) for number, fate in enumerate(fates))
    on_progress: Report = (lambda _: None) if reports is None else reports.append
    return list(RayEngine(cluster.address)(work, tasks, workers=99, on_progress=on_progress))


def attempts(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


@pytest.mark.complete
@a_driver
def test_every_task_is_done_once_and_every_report_arrives(cluster: RayCluster, tmp_path: Path) -> None:
    reports: list[str] = []
    assert sorted(run(cluster, tmp_path, [""] * 7, reports)) == [number * number for number in range(7)]
    assert sorted(reports) == [f"{number}.1" for number in range(7)]
    assert attempts(tmp_path) == {str(number): 1 for number in range(7)}


@pytest.mark.complete
@a_driver
def test_what_fails_once_is_done_again(cluster: RayCluster, tmp_path: Path) -> None:
    fates = ["", "fails once", "memory once", "exits once", "killed once"]
    assert sorted(run(cluster, tmp_path, fates)) == [0, 1, 4, 9, 16]
    assert attempts(tmp_path) == {"0": 1, "1": 2, "2": 2, "3": 2, "4": 2}


@pytest.mark.complete
@pytest.mark.parametrize(
    ("fate", "error", "message", "tried"),
    [
        ("fails", ShardFailed, "0, 'fails'.* failed twice: the disk is on holiday .on node ", 2),
        ("memory", ShardFailed, "failed twice: out of memory .on node ", 2),
        # A worker that is killed at once may take the name of its node with it.
        ("killed", ShardFailed, "failed twice: its worker( on node .*)? died: ", 2),
        ("full", NoSpace, "no space left for us", 1),
        ("odd", ShardFailed, r"(?s)break_odd.*something odd \(7\)", 1),
    ],
)
@a_driver
def test_what_cannot_be_mended_or_fails_twice_is_the_end(
    cluster: RayCluster, tmp_path: Path, fate: str, error: type[Exception], message: str, tried: int
) -> None:
    with pytest.raises(error, match=message):
        run(cluster, tmp_path, [fate])
    assert attempts(tmp_path) == {"0": tried}


@pytest.mark.complete
@a_driver
def test_no_more_tasks_wait_than_the_cluster_has_processors(cluster: RayCluster, tmp_path: Path) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[Any]:
        for number in range(20):
            taken.append(number)
            yield tmp_path, number, ""

    results = RayEngine(cluster.address)(work, tasks(), workers=99, on_progress=lambda _: None)
    next(results)
    assert len(taken) == 4, "two run, two wait"
    assert len(list(results)) == 19


@pytest.mark.complete
@a_driver
def test_an_error_of_the_caller_cancels_all_tasks_and_leaves_the_cluster(cluster: RayCluster, tmp_path: Path) -> None:
    def refuse(_: str) -> None:
        raise UsageError("enough")

    tasks = ((tmp_path, number, "sleeps" if number else "") for number in range(9))
    with pytest.raises(UsageError, match="enough"):
        list(RayEngine(cluster.address)(work, tasks, workers=99, on_progress=refuse))
    assert cluster.workers() == []
    assert run(cluster, tmp_path, [""]) == [0]


@pytest.mark.complete
@a_driver
def test_a_connection_of_the_caller_is_used_and_kept(cluster: RayCluster, tmp_path: Path) -> None:
    ray = import_module("ray")
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        assert list(RayEngine()(work, [(tmp_path, 3, "")], workers=1, on_progress=lambda _: None)) == [9]
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.complete
@a_driver
def test_a_node_that_is_short_of_memory_is_said_to_be(tmp_path: Path) -> None:
    ray = import_module("ray")
    run = ray_engine._Scheduler(ray, work, iter(()), 1, lambda _: None)
    trial = ray_engine._Trial("shard", b"", host="node-7")
    short = ray.exceptions.OutOfMemoryError("the node is running low on memory")
    run._lost(trial, short)
    with pytest.raises(ShardFailed, match=r"on node node-7 died: the node is .*fewer workers \(--workers\)") as it:
        run._lost(trial, short)
    assert it.value.shard == "shard"


@pytest.mark.complete
@a_driver
def test_a_dataset_has_the_bytes_of_a_local_run(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = image_set(tmp_path / "images", 9)
    pack(listing, tmp_path / "local", OPTIONS)
    # Relative paths mean those of the driver, wherever the workers run.
    monkeypatch.chdir(tmp_path)
    report = pack("images/train.txt", "out", OPTIONS, engine=RayEngine(cluster.address))
    assert (report.packed, report.records) == (5, 9)
    assert tree(tmp_path / "out") == tree(tmp_path / "local")


@pytest.mark.complete
@a_driver
def test_packtrain_must_be_the_same_on_all_machines(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, there = metadata.version, metadata.version("packtrain")
    monkeypatch.setattr(metadata, "version", lambda name: "99.1" if name == "packtrain" else real(name))
    with pytest.raises(MissingDependency, match=f"node .* has packtrain {there} there, and here it is 99.1"):
        run(cluster, tmp_path, [""])
    assert attempts(tmp_path) == {}


@pytest.mark.complete
@a_driver
def test_what_is_sent_arrives_where_there_is_no_packtrain_and_says_so(tmp_path: Path) -> None:
    sent = tmp_path / "attempt"
    sent.write_bytes(import_module("ray.cloudpickle").dumps(ray_engine._attempt()))
    script = f"""import sys, types; sys.modules["packtrain"] = None
import ray; from ray import cloudpickle
ray.get_runtime_context = lambda: types.SimpleNamespace(get_node_id=lambda: "node")
print(*list(cloudpickle.loads(open({str(sent)!r}, "rb").read())("1.0", b"")), sep="; ")"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    (said,) = done.stdout.splitlines()
    assert f"{sys.executable} cannot import packtrain there" in said


@pytest.mark.parametrize("given", [None, "", "local"])
@a_driver
def test_without_an_address_the_command_to_type_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UsageError, match=r"which Ray cluster\? .*`--address HOST:PORT`.* `ray start --head` starts"):
        list(RayEngine(given)(work, [(tmp_path, 0, "")], workers=1, on_progress=lambda _: None))
    assert attempts(tmp_path) == {}


@pytest.mark.complete
@a_driver
def test_the_environment_names_the_cluster(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    for engine in (RayEngine(), RayEngine("auto")):
        assert list(engine(work, [(tmp_path, 3, "")], workers=1, on_progress=lambda _: None)) == [9]


@pytest.mark.complete
@a_driver
def test_only_packtrain_speaks(cluster: RayCluster, tmp_path: Path) -> None:
    listing = image_set(tmp_path / "images", 9)
    arguments = ("--store", "raw", "--resize", "8x8", "--shard-size", str(OPTIONS.shard_size))
    words = command("pack", listing, tmp_path / "out", "--engine", "ray", "--address", cluster.address, *arguments)
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if not line.startswith("pack: ")] == [], "Ray says nothing"
    assert done.stdout.startswith(f"{tmp_path / 'out'}: 9 records in 5 shard(s)")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.complete
@a_driver
def test_a_handler_of_the_caller_stays(cluster: RayCluster, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run(cluster, tmp_path, [""])
    assert signal.signal(signal.SIGTERM, before) == signal.SIG_IGN


@a_driver
@pytest.mark.complete
def test_ray_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=re.escape(f"`{extra_command('ray')}`")):
        list(RayEngine("auto")(work, [], workers=1, on_progress=lambda _: None))


@a_driver
@pytest.mark.complete
def test_an_address_at_which_nothing_answers_is_refused_at_once(tmp_path: Path) -> None:
    for address, message in {
        "127.0.0.1:1": "no Ray cluster answers at 127.0.0.1:1 .*Start one: ray start --head",
        "ray://127.0.0.1:1": "ray job submit",
        "somewhere": "no Ray cluster",
    }.items():
        with pytest.raises(UsageError, match=message):
            list(RayEngine(address)(work, [(tmp_path, 0, "")], workers=1, on_progress=lambda _: None))


@pytest.mark.complete
@a_driver
def test_a_cluster_packs_into_a_store_and_leaves_no_spool(
    cluster: RayCluster, moto_server: Server, tmp_path: Path
) -> None:
    listing, url, spools = image_set(tmp_path / "images", 12), moto_server.fresh(), tmp_path / "spools"
    with moto_server.in_environment():
        report = pack(listing, url, OPTIONS, engine=RayEngine(cluster.address), spool=spools)
    assert (report.packed, report.records) == (6, 12)
    pack(listing, tmp_path / "local", OPTIONS)
    for name, data in tree(tmp_path / "local").items():
        assert moto_server.get(f"{moto_server.key(url)}/{name}") == data, name
    assert moto_server.get(f"{moto_server.key(url)}/parts/train-000000.tar.npz") is None
    assert not list(spools.iterdir())
