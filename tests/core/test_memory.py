"""Laws of how much memory is left: what machine, cgroup and the groups above it say, whichever is least."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from packtrain._core.memory import MemoryLeft, available_memory, memory_left

MEMINFO = "MemTotal:       2000 kB\nMemFree:         500 kB\nMemAvailable:   1000 kB\nHugePages_Total:       0\n"
MACHINE = MemoryLeft(1000 * 1024, 2000 * 1024)


class Hierarchy:
    """A /proc and a mounted hierarchy of groups, as text files.

    Args:
        folder: For both.
        version: Of the cgroups.
        member: The group that /proc/self/cgroup names.
        root: The group that is mounted.
    """

    def __init__(self, folder: Path, version: int, member: str = "/", root: str = "/") -> None:
        self.version = version
        self.proc, self.point = folder / "proc", folder / "a place"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text(MEMINFO)
        line = f"0::{member}" if version == 2 else f"4:cpu,memory:{member}"
        (self.proc / "self" / "cgroup").write_text(f"9:pids:/elsewhere\n{line}\n")
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,memory"
        point = str(self.point).replace(" ", r"\040")
        (self.proc / "self" / "mountinfo").write_text(
            "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
            f"31 27 0:29 / {folder}/pids rw - cgroup cgroup rw,pids\n"
            f"32 27 0:30 {root} {point} rw,nosuid shared:9 - {kind}\n"
        )

    def group(self, path: str, limit: int | str, used: int = 5000, cache: int = 4500, *, high: str = "") -> None:
        """Makes a group below the mounted one."""
        folder = self.point / path
        folder.mkdir(parents=True, exist_ok=True)
        names = (
            ("memory.max", "memory.current")
            if self.version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        for name, value in zip(names, (limit, used), strict=True):
            (folder / name).write_text(f"{value}\n")
        if high:
            (folder / "memory.high").write_text(f"{high}\n")
        total = "" if self.version == 2 else "total_"
        # What a tmpfs holds is in inactive_anon and shmem.
        stat = {"inactive_anon": 300, "shmem": 300, "inactive_file": cache - 1000, "active_file": 1000}
        (folder / "memory.stat").write_text("".join(f"{total}{name} {value}\n" for name, value in stat.items()))

    @property
    def groups(self) -> list[MemoryLeft]:
        """The memory that the groups leave."""
        machine, *groups = memory_left(self.proc)
        assert machine == MACHINE
        return groups


@pytest.mark.parametrize("version", [1, 2])
class TestCgroup:
    @pytest.mark.parametrize(
        ("limit", "left"), [(6000, 6000 - (5000 - 4500)), (1 << 62, 1000 * 1024), (100, 0)], ids=["", "machine", "none"]
    )
    def test_page_cache_counts_as_free_and_tmpfs_does_not(
        self, version: int, tmp_path: Path, limit: int, left: int
    ) -> None:
        """The machine may have less; and who uses more than is allowed has nothing left."""
        here = Hierarchy(tmp_path, version)
        here.group("", limit, used=5000, cache=4500)
        assert available_memory(here.proc) == left

    def test_every_group_above_limits_too(self, version: int, tmp_path: Path) -> None:
        """As in a Slurm job, whose own group has no limit, but that of the job."""
        here = Hierarchy(tmp_path, version, "/system.slice/job_7/step_0/task_0")
        here.group("system.slice", 90_000, used=20_000, cache=2000)
        here.group("system.slice/job_7", 30_000, used=11_000, cache=1000)
        here.group("system.slice/job_7/step_0", "max" if version == 2 else 1 << 62)
        here.group("system.slice/job_8", 1)
        found = {left.cgroup: left for left in here.groups if left.limit < 1 << 40}
        assert found == {
            "/system.slice": MemoryLeft(72_000, 90_000, "/system.slice", 300),
            "/system.slice/job_7": MemoryLeft(20_000, 30_000, "/system.slice/job_7", 300),
        }
        assert available_memory(here.proc) == 20_000

    @pytest.mark.parametrize(
        ("member", "below"),
        [
            ("/docker/abc", ""),  # told the path outside, sees its own group at the root
            ("/docker/abc/train", "train"),
            ("/", ""),  # in a namespace of its own
            ("/../other", ""),
            ("/kubepods/x", ""),
        ],
    )
    def test_in_a_container(self, version: int, tmp_path: Path, member: str, below: str) -> None:
        here = Hierarchy(tmp_path, version, member, "/docker/abc")
        here.group("", 90_000)
        here.group("train", 80_000)
        names = ["/docker/abc/train", "/docker/abc"] if below else ["/docker/abc"]
        assert [left.cgroup for left in here.groups] == names

    def test_outside_of_ones_namespace(self, version: int, tmp_path: Path) -> None:
        here = Hierarchy(tmp_path, version, "/../other")
        here.group("", 90_000)
        here.group("../other", 80_000)
        assert [left.limit for left in here.groups] == [90_000]

    def test_a_group_that_is_gone(self, version: int, tmp_path: Path) -> None:
        here = Hierarchy(tmp_path, version, "/gone")
        assert here.groups == []


@pytest.mark.parametrize(("high", "left"), [("5000", 4500), ("max", 8500), ("9500", 8500)])
def test_where_a_group_is_slowed_down_counts_as_its_limit(tmp_path: Path, high: str, left: int) -> None:
    here = Hierarchy(tmp_path, 2)
    here.group("", 9000, high=high)
    assert [each.bytes for each in here.groups] == [left]


def test_no_limit(tmp_path: Path) -> None:
    here = Hierarchy(tmp_path, 2)
    here.group("", "max")
    assert memory_left(here.proc) == [MACHINE]


def test_nobody_says(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none") == math.inf


def test_this_machine_has_some() -> None:
    assert 1 << 20 < available_memory() < math.inf
