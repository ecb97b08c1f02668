"""Staging from real object stores: what arrives is what was packed, whatever goes wrong on the way."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.objects.datasets import behind
from helpers.objects.faults import SLOW_DOWN, Chances, Corrupt, Reset, Rule, Shift, Stall, Status, Truncate
from helpers.objects.proxy import Proxy
from helpers.objects.servers import SECRET, Server
from helpers.staging.laws import assert_same, assert_tidy, big_dataset, until_pieces_are_noted
from helpers.support import tree
from helpers.waiting import wait_until

from packtrain import StageOptions, append, drop_rows, open_dataset, stage, verify
from packtrain._readers.dataset.summary import summarise
from packtrain._storage.remote.urls import Url
from packtrain.staging import entries, evict

MiB = 1 << 20
BIG = [40 * MiB, 24 * MiB + 5, 3]
PACKTRAIN = [sys.executable, "-m", "packtrain"]


def uploaded(server: Server, dataset: Path, name: str = "a set, ünpacked") -> str:
    """Puts a dataset into a store; returns its address."""
    url = f"{server.fresh()}/{name}"
    for path, data in tree(dataset).items():
        server.put(f"{server.key(url)}/{path}", data)
    return url


def seen_through(url: str, server: Server, between: Proxy) -> str:
    return url.replace(server.url, server.through(between.port).url)


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return big_dataset(tmp_path_factory.mktemp("big") / "big", BIG)


@pytest.mark.complete
@pytest.mark.parametrize("partial", [True, pytest.param(False, marks=pytest.mark.stress)])
def test_any_store(object_server: Server, dataset: Path, place: Path, partial: bool) -> None:
    url = uploaded(object_server, dataset)
    with object_server.in_environment():
        result = stage(url, StageOptions(to=place, partial=partial))
        assert_same(result.path, dataset)
        result.lease.close()
        assert_tidy(place, result.path)
        assert [entry.source for entry in entries(place)] == [Url.parse(url)]
        assert SECRET not in "".join(path.read_text(errors="replace") for path in place.rglob("*.json"))
        report = verify(url)
        assert (report.records, report.problems) == (16, ())
        assert summarise(url).label_counts == summarise(dataset).label_counts
        assert [entry.path for entry in evict(place)] == [result.path]


@pytest.mark.complete
def test_a_changed_dataset(object_server: Server, dataset: Path, place: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(dataset, tmp_path / "changed")
    drop_rows(changed, [0])
    append(changed, dataset)
    url = uploaded(object_server, changed)
    with object_server.in_environment():
        result = stage(url, place)
        assert SECRET not in "".join(path.read_text(errors="replace") for path in place.rglob("*.json"))
        segments = [url, *(f"{url}/{path.relative_to(changed)}" for path in changed.glob("segments/*"))]
        assert {entry.source for entry in entries(place)} == set(map(Url.parse, segments))
        assert open_dataset(result.path).targets.tolist() == open_dataset(changed).targets.tolist()
        assert verify(result.path).problems == ()
        del result
        assert len(evict(place)) == 3


@pytest.mark.parametrize("name", ["moto_server", "nginx_server"])
@pytest.mark.complete
def test_faults_that_pass(request: pytest.FixtureRequest, name: str, dataset: Path, place: Path) -> None:
    server: Server = request.getfixturevalue(name)
    url = uploaded(server, dataset)
    kinds = (Status(500), SLOW_DOWN, Reset(), Reset(0.5), Truncate(), Truncate(0))
    wrong = [Rule(Corrupt(), holds="000001.tar"), Rule(Shift(), holds="000002.tar")]
    chances = Chances(seed=3, faults=tuple((kind, 0.05) for kind in kinds), method="", most=1)
    with behind(server, *wrong, chances=chances) as between:
        result = stage(seen_through(url, server, between), place)
        assert between.traffic().faults > 3
    assert_same(result.path, dataset)
    result.lease.close()


@pytest.mark.complete
def test_killed_at_any_time(nginx_server: Server, big: Path, place: Path) -> None:
    url = uploaded(nginx_server, big)
    kills = random.Random(5)
    with behind(nginx_server) as between:
        url = seen_through(url, nginx_server, between)
        between.limit(60 * MiB)
        command = [*PACKTRAIN, "stage", url, "--to", str(place), "--json"]
        for _ in range(3):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if not entries(place):
                until_pieces_are_noted(place)
            time.sleep(kills.uniform(0, 0.3))
            process.kill()
            process.wait()
        between.limit(None)
        between.forget()
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        assert between.traffic().of(".tar", "GET").bytes < sum(BIG)
    report = json.loads(done.stdout)
    assert report["copied"] < sum(BIG)
    assert_same(Path(report["path"]), big)
    assert_tidy(place, Path(report["path"]))


@pytest.mark.complete
@pytest.mark.parametrize("command", ["stage", "verify"])
def test_ctrl_c_does_not_wait_for_a_store_that_stalls(
    nginx_server: Server, big: Path, place: Path, command: str
) -> None:
    url = uploaded(nginx_server, big)
    options = ["--to", str(place)] if command == "stage" else ["--workers", "1"]
    with behind(nginx_server, Rule(Stall(600), holds=".tar", times=None)) as between:
        words = [*PACKTRAIN, command, seen_through(url, nginx_server, between), *options]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        # The proxy tells only of answers; the stalled requests follow those about sizes.
        wait_until(lambda: between.traffic().of(".tar", "HEAD").exchanges, "sizes are asked for")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=15)
    assert process.returncode == 130
    assert "Traceback" not in said
