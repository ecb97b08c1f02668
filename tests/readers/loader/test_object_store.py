"""Ranks of torchrun over a dataset in S3, through a proxy that does what networks and busy stores do."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from crc32c import crc32c
from helpers.objects.faults import SLOW_DOWN, Chances, Corrupt, Reset, Shift, Stall, Status, Truncate
from helpers.objects.proxy import Proxy, proxy
from helpers.objects.servers import Server
from helpers.processes import children
from helpers.reading import ROWS, small_dataset
from helpers.store_training import TRANSFORM, samples
from helpers.streaming import end_fetchers
from helpers.support import require_module

from packtrain import open_dataset
from packtrain._core.locks import lock_holders
from packtrain._readers.dataset.image_dataset import PackedDataset
from packtrain._storage.streams import cutting

FAULTS = (
    (Status(500), 0.03),
    (SLOW_DOWN, 0.03),
    (Reset(), 0.02),
    (Reset(0.5), 0.02),
    (Stall(0.3, 0.5), 0.02),
    (Truncate(), 0.02),
    (Corrupt(), 0.03),
    (Shift(3), 0.02),
)
_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
BUDGET_BYTES = 1_900_000
"""Enough for a third of the chunks, the index, and a few chunks on the way."""


class Store:
    """The dataset in the store.

    Args:
        url: Its address.
        between: The proxy.
        place: Folder for caches.
    """

    def __init__(self, url: str, between: Proxy, place: Path) -> None:
        self.url = url
        self.proxy = between
        self.place = place

    def open(self, budget: int) -> PackedDataset:
        """Opens the dataset in this process."""
        return open_dataset(self.url, TRANSFORM, stage=self.place, budget=budget)

    def train(
        self, notes: Path, epochs: int, world: int = 2, budget: int = BUDGET_BYTES, run: int = 0
    ) -> subprocess.Popen[bytes]:
        """Starts ranks."""
        arguments = [self.url, self.place, budget, notes, epochs, run]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        return subprocess.Popen(
            [*command, "-m", "helpers.store_training", *map(str, arguments)],
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def fetchers(self) -> list[int]:
        """The processes that fetch."""
        return [pid for lock in self.place.glob("packtrain-*/*/fetcher.lock") for pid in lock_holders(lock.stat())]


@pytest.fixture
def store(moto_server: Server, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A dataset with chunks of a few records in S3."""
    require_module("obstore")
    monkeypatch.setattr(cutting, "ENOUGH", 3_000)
    monkeypatch.setattr(cutting, "MOST", 4_096)
    url, folder = moto_server.fresh(), small_dataset()
    for path in folder.rglob("*"):
        if path.is_file():
            moto_server.put(f"{moto_server.key(url)}/{path.relative_to(folder)}", path.read_bytes())
    with proxy(moto_server.port) as between, moto_server.through(between.port).in_environment():
        found = Store(url, between, memory_path)
        # The table of chunks is made by whoever opens the dataset first.
        found.open(BUDGET_BYTES).store.chunks.close()  # type: ignore[union-attr]
        yield found
        end_fetchers(memory_path)


def expected() -> set[tuple[int, int, int]]:
    """Row, checksum and label of all samples of a local copy."""
    dataset = open_dataset(small_dataset(), TRANSFORM)
    return {(row, crc32c(dataset[row][0].contiguous().numpy().tobytes()), dataset[row][1]) for row in range(ROWS)}


def ended(process: subprocess.Popen[bytes], seconds: float = 240) -> int:
    """Waits for ranks to end. Returns the exit status."""
    _, errors = process.communicate(timeout=seconds)
    if process.returncode:
        sys.stderr.write(errors.decode()[-4000:])
    return process.returncode


def noted(notes: Path) -> int:
    """Bytes that ranks have noted."""
    return sum(path.stat().st_size for path in notes.glob("rank-*"))


@pytest.mark.complete
def test_each_sample_comes_once_whatever_the_network_does(store: Store, tmp_path: Path) -> None:
    store.proxy.script(chances=Chances(1, FAULTS, most=1))
    assert ended(store.train(tmp_path, 2)) == 0
    for epoch in range(2):
        found = samples(tmp_path, epoch)
        assert set(found) == expected() and found.total() - ROWS < 2
    assert store.proxy.traffic().faults > 10


@pytest.mark.complete
def test_each_sample_comes_once_while_fetchers_are_killed(store: Store, tmp_path: Path) -> None:
    process, killed, chance = store.train(tmp_path, 3), 0, random.Random(4)
    while process.poll() is None:
        before = noted(tmp_path)
        time.sleep(chance.uniform(0.1, 1.0))
        # One that never begins to work is given up after some deaths.
        for pid in store.fetchers() if noted(tmp_path) > before else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    assert ended(process) == 0 and killed > 3
    for epoch in range(3):
        found = samples(tmp_path, epoch)
        assert set(found) == expected() and found.total() - ROWS < 2


@pytest.mark.complete
@pytest.mark.parametrize("victim", ["rank", pytest.param("worker", marks=pytest.mark.stress)])
def test_what_is_left_after_a_kill_is_taken_by_another_number_of_ranks(
    store: Store, tmp_path: Path, victim: str
) -> None:
    process = store.train(tmp_path, 2)
    try:
        while not (tmp_path / "state.json").exists() or len((tmp_path / "rank-0-0").read_text().splitlines()) < 10:
            assert process.poll() is None
            time.sleep(0.05)
        ranks = [rank for rank in children(process.pid) if len(children(rank)) >= 2]
        os.kill(ranks[0] if victim == "rank" else max(children(ranks[0])), signal.SIGKILL)
        assert ended(process) != 0
    finally:
        process.kill()
    assert ended(store.train(tmp_path, 2, world=3, budget=BUDGET_BYTES + 200_000, run=1)) == 0
    for epoch in range(2):
        found = samples(tmp_path, epoch)
        assert set(found) == expected() and found.total() - ROWS < 3
