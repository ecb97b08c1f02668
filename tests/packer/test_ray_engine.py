"""Laws of tasks on a Ray cluster: those of `run_tasks`, whatever dies; and the bytes of a dataset are the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest
from helpers.fates import Report, work
from helpers.objects.fixtures import Started
from helpers.objects.servers import Server
from helpers.ray_cluster import RayCluster, a_driver, descendants, ray_cluster
from helpers.support import image_set, tree

from packtrain import PackOptions, RayEngine, pack
from packtrain._core.installing import extra_command
from packtrain._core.options import StoreOptions
from packtrain._packer import ray_engine
from packtrain._packer.ray_engine import tried_ray
from packtrain.errors import MissingDependency, NoSpace, ShardFailed, UsageError

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"),
]


OPTIONS = PackOptions(store=StoreOptions("raw", resize="8x8"), shard_bytes=2 * 8 * 8 * 3)
"""Records of one size, two in each shard."""


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


def listening(processes: list[int]) -> set[str]:
    """The addresses at which these processes listen to others, without the ports."""
    found: dict[str, str] = {}
    for version, kind in ((4, "tcp"), (6, "tcp6")):
        for line in Path("/proc/net", kind).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                words = bytes.fromhex(fields[1].partition(":")[0])
                address = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found[f"socket:[{fields[9]}]"] = str(IPv4Address(address) if version == 4 else IPv6Address(address))
    heard = set()
    for process in processes:
        with suppress(OSError):
            heard |= {os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir()}
    return {found[each] for each in heard & found.keys()}


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
    ("fate", "message"),
    [
        ("fails", "0, 'fails'.* failed twice: the disk is on holiday .on node "),
        ("memory", "failed twice: out of memory .on node "),
        # A worker that is killed at once may take the name of its node with it.
        ("killed", "failed twice: its worker( on node .*)? died: "),
    ],
)
@a_driver
def test_what_fails_twice_is_the_end(cluster: RayCluster, tmp_path: Path, fate: str, message: str) -> None:
    with pytest.raises(ShardFailed, match=message):
        run(cluster, tmp_path, [fate])
    assert attempts(tmp_path) == {"0": 2}


@pytest.mark.complete
@a_driver
def test_an_error_that_a_second_attempt_cannot_mend_is_the_end_at_once(cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match="no space left for us"):
        run(cluster, tmp_path, ["full"])
    assert attempts(tmp_path) == {"0": 1}


@pytest.mark.complete
@a_driver
def test_an_unknown_error_says_where_it_comes_from(cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(ShardFailed, match=r"(?s)break_odd.*something odd \(7\)"):
        run(cluster, tmp_path, ["odd"])
    assert attempts(tmp_path) == {"0": 1}


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

    tasks = ((tmp_path, number, "sleeps") for number in range(9))
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
    ray = tried_ray()
    run = ray_engine._Run(ray, work, iter(()), 1, lambda _: None)
    trial = ray_engine._Trial("shard", b"", host="node-7")
    short = ray.exceptions.OutOfMemoryError("the node is running low on memory")
    run._lost(trial, short)
    with pytest.raises(ShardFailed, match=r"on node node-7 died: the node is .*fewer workers \(--workers\)") as it:
        run._lost(trial, short)
    assert it.value.shard == "shard"


@a_driver
def test_a_dataset_has_the_bytes_of_a_local_run(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = image_set(tmp_path / "images", 9)
    pack(listing, tmp_path / "local", OPTIONS)
    # Relative paths mean those of the driver, wherever the workers run; but none of them imports from its folder.
    monkeypatch.chdir(tmp_path)
    Path("numpy.py").write_text("raise SystemExit('this is not numpy')")
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


@a_driver
def test_what_is_sent_arrives_where_there_is_no_packtrain_and_says_so(tmp_path: Path) -> None:
    sent = tmp_path / "attempt"
    sent.write_bytes(import_module("ray.cloudpickle").dumps(ray_engine._attempt()))
    script = f"""import sys, types; sys.modules["packtrain"] = None
import ray; from ray import cloudpickle
ray.get_runtime_context = lambda: types.SimpleNamespace(get_node_id=lambda: "node")
print(*list(cloudpickle.loads(open({str(sent)!r}, "rb").read())("1.0", b"", 0.2)), sep="; ")"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    (said,) = done.stdout.splitlines()
    assert f"{sys.executable} cannot import packtrain there" in said


@a_driver
@pytest.mark.complete
def test_an_address_at_which_nothing_answers_is_refused_at_once(tmp_path: Path) -> None:
    for address, message in {
        "127.0.0.1:1": "no Ray cluster at 127.0.0.1:1 .*Start one: ray start --head",
        "ray://127.0.0.1:1": "ray job submit",
        "somewhere": "no Ray cluster",
    }.items():
        with pytest.raises(UsageError, match=message):
            list(RayEngine(address)(work, [(tmp_path, 0, "")], workers=1, on_progress=lambda _: None))


@pytest.mark.complete
def test_without_an_address_a_cluster_is_started_and_ended(tmp_path: Path) -> None:
    listing = image_set(tmp_path / "images", 9)
    pack(listing, tmp_path / "local", OPTIONS)
    arguments = ("--store", "raw", "--resize", "8x8", "--shard-size", str(OPTIONS.shard_bytes), "--workers", "2")
    # Not by `ray_cluster.command`, which keeps Ray on 127.0.0.1 by itself.
    script = "from packtrain._cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "pack", str(listing), str(tmp_path / "out"), "--engine", "ray", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    heard: set[str] = set()
    while process.poll() is None:
        heard |= listening([process.pid, *descendants(process.pid)])
        time.sleep(0.05)
    said, complained = process.communicate()
    assert process.returncode == 0, complained
    assert [line for line in complained.splitlines() if not line.startswith("pack: ")] == [], "Ray says nothing"
    assert said.startswith(f"{tmp_path / 'out'}: 9 records in 5 shard(s)")
    assert len(said.splitlines()) == 1
    assert tree(tmp_path / "out") == tree(tmp_path / "local")
    assert heard, "Ray listens somewhere"
    assert heard <= {"127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::1"}


@pytest.mark.complete
def test_a_cluster_that_is_started_takes_no_address_of_the_network() -> None:
    # Not by `a_driver`, which keeps Ray on 127.0.0.1 by itself.
    script = """
import os
from packtrain._packer import ray_engine
from ray._private import services
services.node_ip_address_from_perspective = lambda address=None: "192.0.2.1"
before = dict(os.environ)
with ray_engine._on_loopback():
    print(services.resolve_ip_for_localhost(ray_engine._starting(1)["_node_ip_address"]))
    print(os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"])
print(services.resolve_ip_for_localhost("127.0.0.1"), os.environ == before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["127.0.0.1", "0", "192.0.2.1", "True"]


@pytest.mark.complete
@a_driver
def test_ctrl_c_waits_until_a_cluster_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray, happened = tried_ray(), []

    def init(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)
        happened.append("started")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda **_: happened.append("ended"))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(KeyboardInterrupt):
        list(RayEngine()(work, [], workers=1, on_progress=lambda _: None))
    assert happened == ["started", "ended"]


@pytest.mark.complete
@a_driver
def test_ray_must_be_there_in_the_version_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: "2.6.3" if name == "ray" else real(name))
        with pytest.raises(MissingDependency, match=r"Ray 2\.60.* Ray 2\.6\.3 .*pip install 'ray==2\.60\.\*'"):
            tried_ray()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=re.escape(f"`{extra_command('ray')}`")):
        tried_ray()


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
