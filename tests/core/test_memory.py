"""Laws of how much memory is left: what machine and cgroup say, whichever is less."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from packtrain.core.memory import available_memory

MEMINFO = "MemTotal:       2000 kB\nMemFree:         500 kB\nMemAvailable:   1000 kB\nHugePages_Total:       0\n"


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(MEMINFO)
    return path


def version_2(folder: Path, limit: str) -> Path:
    folder.mkdir()
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text("5000\n")
    (folder / "memory.stat").write_text("anon 1000\ninactive_file 3000\nactive_file 1500\n")
    return folder


def version_1(folder: Path, limit: str) -> Path:
    (folder / "memory").mkdir(parents=True)
    (folder / "memory" / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory" / "memory.usage_in_bytes").write_text("5000\n")
    (folder / "memory" / "memory.stat").write_text("cache 9\ntotal_inactive_file 3000\ntotal_active_file 1500\n")
    return folder


@pytest.mark.parametrize("make", [version_1, version_2])
class TestCgroup:
    def test_page_cache_counts_as_free(self, make: type, meminfo: Path, tmp_path: Path) -> None:
        assert available_memory(meminfo, make(tmp_path / "cgroup", "6000")) == 6000 - (5000 - 4500)

    def test_the_machine_may_have_less(self, make: type, meminfo: Path, tmp_path: Path) -> None:
        assert available_memory(meminfo, make(tmp_path / "cgroup", str(1 << 62))) == 1000 * 1024

    def test_more_used_than_allowed_leaves_nothing(self, make: type, meminfo: Path, tmp_path: Path) -> None:
        assert available_memory(meminfo, make(tmp_path / "cgroup", "100")) == 0


def test_no_limit(meminfo: Path, tmp_path: Path) -> None:
    assert available_memory(meminfo, version_2(tmp_path / "cgroup", "max")) == 1000 * 1024


def test_nobody_says(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path / "none") == math.inf


def test_this_machine_has_some() -> None:
    assert 1 << 20 < available_memory() < math.inf
