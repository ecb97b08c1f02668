"""Laws of how much can be staged: the smallest limit counts, and the message says how to get more."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.memory import MemoryLeft
from packtrain._core.mounts import Mount
from packtrain._storage.staging.capacity import Capacity, FileSystem, capacity

GiB = 1 << 30
DISK = Mount(1, 0, "8:1", Path("/"), Path("/scratch"), "ext4", frozenset())
SHM = Mount(2, 0, "0:9", Path("/"), Path("/dev/shm"), "tmpfs", frozenset())
MACHINE = MemoryLeft(300 * GiB, 512 * GiB)
JOB = MemoryLeft(20 * GiB, 64 * GiB, "/system.slice/slurmstepd.scope/job_7")
CONTAINER = MemoryLeft(20 * GiB, 64 * GiB, "/")

disk = FileSystem(Path("/scratch/my data"), 1000 * GiB, 400 * GiB, DISK, ())
shm = FileSystem(Path("/dev/shm"), 256 * GiB, 200 * GiB, SHM, (MACHINE,))


def of(
    place: FileSystem, need: int = 0, *, budget: int | None = None, used: int = 0, promised: int = 0, reserve: int = 0
) -> Capacity:
    return capacity(place, budget=budget, used=used, promised=promised, reserve=reserve, need=need)


amounts = st.integers(0, 1 << 40)


class TestFigures:
    @given(
        amounts, amounts, st.none() | amounts, amounts, amounts, amounts, st.lists(amounts, max_size=3), st.booleans()
    )
    def test_it_is_what_the_strictest_leaves(
        self,
        total: int,
        free: int,
        budget: int | None,
        used: int,
        promised: int,
        reserve: int,
        memory: list[int],
        in_memory: bool,
    ) -> None:
        lefts = tuple(MemoryLeft(left, left, f"/{number}") for number, left in enumerate(memory)) if in_memory else ()
        place = FileSystem(Path("/x"), total + 1, free, SHM if in_memory else DISK, lefts)
        found = of(place, budget=budget, used=used, promised=promised, reserve=reserve)
        figures = {"file system": free - promised - reserve}
        if budget is not None:
            figures["budget"] = budget - used - promised
        if lefts:
            figures["cgroup"] = min(memory) - promised - reserve
        assert found.bytes == min(figures.values()) == figures[found.bound]

    @pytest.mark.parametrize(
        ("shared", "budget", "bound", "count"),
        [
            (0, None, "cgroup", 20),  # written by another job
            (10, None, "cgroup", 30),
            (64, None, "cgroup", 50),
            (64, 60, "budget", 40),
        ],
    )
    def test_what_would_be_if_something_went(self, shared: int, budget: int | None, bound: str, count: int) -> None:
        """50 GiB are staged, and 30 of them can be evicted; the machine and the file system have 200 GiB or more."""
        place = replace(shm, memory=(MACHINE, replace(JOB, shared=shared * GiB))).after_freeing(30 * GiB)
        found = of(place, budget=budget and budget * GiB, used=20 * GiB)
        assert (found.bound, found.bytes) == (bound, count * GiB)

    @given(amounts, amounts, st.none() | amounts, amounts)
    def test_what_goes_first_pays_what_is_owed(self, free: int, reserve: int, budget: int | None, freed: int) -> None:
        """The room may be negative; then that much must be freed before anything can be added."""
        place = replace(disk, free=free)
        used = freed + 1000
        found = of(place.after_freeing(freed), budget=budget, used=used - freed, reserve=reserve)
        least = min(free + freed - reserve, math.inf if budget is None else budget - 1000)
        assert found.bytes == least

    def test_a_file_system_without_a_size_does_not_limit(self) -> None:
        """A ramfs, or a tmpfs with size=0, reports that it has no blocks at all."""
        assert of(replace(shm, total=0, free=0)).bound == "memory"

    @pytest.mark.parametrize(
        ("total", "reserve"), [(64 << 20, 4 << 20), (16 * GiB, GiB), (256 * GiB, 2 * GiB), (0, 2 * GiB)]
    )
    def test_the_reserve_is_a_sixteenth_at_most_2_gib(self, total: int, reserve: int) -> None:
        place = replace(disk, total=total, free=total)
        assert place.reserve == reserve
        if total:
            assert capacity(place, budget=None, used=0, promised=0, reserve=None).bytes == total - reserve


LITTLE, LESS = (replace(shm, memory=(MemoryLeft(left * GiB, 512 * GiB),)) for left in (210, 9))


@pytest.mark.parametrize(
    ("place", "need", "options", "bound", "words"),
    [
        (
            disk,
            3 * GiB,
            {"budget": 10 * GiB, "used": 7 * GiB, "promised": GiB, "reserve": 0},
            "budget",
            "the budget of 10.0 GiB has only 2.0 GiB left (8.0 GiB staged or being copied): raise it (`budget`), or "
            "make room (`packtrain staged list --to '/scratch/my data'`)",
        ),
        (
            disk,
            500 * GiB,
            {"promised": 30 * GiB},
            "file system",
            "/scratch/my data has 400.0 GiB free of 1000.0 GiB; 2.0 GiB must stay free (`reserve`), 30.0 GiB "
            "promised to other copies: make room there (`packtrain staged list --to '/scratch/my data'`), or use "
            "another folder (`to`)",
        ),
        # 56 GiB used, 10 promised, 2 for the loader, 220 for this dataset.
        (
            shm,
            220 * GiB - 1,
            {"promised": 10 * GiB},
            "file system",
            "administrator: `mount -o remount,size=288G /dev/shm`; container: --shm-size=288g",
        ),
        (
            LITTLE,
            220 * GiB,
            {"reserve": 0},
            "file system",
            "only 210.0 GiB of memory are left: use a local disk (`to`)",
        ),
        (LESS, 10 * GiB, {}, "memory", "is in memory, and this machine has 9.0 GiB of memory left; 2.0 GiB must stay"),
        # 44 GiB are used, 50 are needed, and 2 stay free for the loader.
        (replace(shm, memory=(MACHINE, JOB)), 50 * GiB, {}, "cgroup", "(64.0 GiB) leaves 20.0 GiB; 2.0 GiB must stay"),
        (replace(shm, memory=(MACHINE, JOB)), 50 * GiB, {}, "cgroup", "request more memory (--mem=96G)"),
        (replace(shm, memory=(CONTAINER,)), 50 * GiB, {}, "cgroup", "(Slurm --mem=96G, Docker --memory=96g)"),
    ],
)
def test_the_message_says_how_to_get_more(
    place: FileSystem, need: int, options: dict[str, int], bound: str, words: str
) -> None:
    found = capacity(place, need=need, **{"reserve": 2 * GiB, **options})
    assert found.bound == bound and words in found.message
    assert ("remount" in found.message) == ("remount" in words)


class TestThisMachine:
    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a tmpfs of its own")
    def test_a_small_tmpfs(self, tmp_path: Path) -> None:
        """Following the advice helps: after the remount, there is room."""
        code = f"""
import subprocess
from pathlib import Path
from packtrain._storage.staging.capacity import FileSystem, capacity

def free():
    return capacity(FileSystem.inspect(Path({str(tmp_path)!r})), need=90 << 20)

assert FileSystem.inspect(Path({str(tmp_path)!r})).reserve == 4 << 20
before = free()
assert (before.bytes, before.bound) == (60 << 20, "file system"), before
command = before.message.split("administrator: `")[1].split("`")[0]
subprocess.run(command, shell=True, check=True)
assert free().bytes >= 90 << 20
"""
        script = 'mount -t tmpfs -o size=64m none "$0" && exec "$@"'
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, str(tmp_path), sys.executable, "-c", code],
            capture_output=True,
            text=True,
        )
        if "unshare failed" in done.stderr:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr
