"""Laws of a whole run: the plan on disk decides, finished shards stay, and what is reported adds up."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import pytest
from helpers.packing import TWO_A_SHARD as OPTIONS
from helpers.packing import Stopped, stop_after
from helpers.support import image_set, tree

from packtrain import PackOptions, pack
from packtrain._core.manifest import Manifest
from packtrain._core.options import StoreOptions
from packtrain._packer.engine import run_tasks
from packtrain._packer.plan import Plan
from packtrain.errors import OutputConflict, TooManyRejects
from packtrain.reports import PackProgress

COUNT = 9
SHARDS = 5


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine images; not to be changed."""
    return image_set(tmp_path_factory.mktemp("images"), COUNT)


def test_the_report_says_what_the_manifest_says(listing: Path, tmp_path: Path) -> None:
    report = pack(listing, tmp_path, OPTIONS)
    manifest = Manifest.load(tmp_path)
    assert (report.dataset, report.complete_before, report.packed, report.resumed) == (tmp_path, False, SHARDS, 0)
    assert (report.records, report.bytes) == (
        COUNT,
        sum((tmp_path / shard.name).stat().st_size for shard in manifest.shards),
    )
    assert (report.rejects, report.duplicates) == (manifest.rejects, manifest.duplicates) == (0, 0)
    before, seen = tree(tmp_path), list[PackProgress]()
    report = pack(listing, tmp_path, OPTIONS, on_progress=seen.append)
    assert (report.complete_before, report.packed, report.resumed, seen) == (True, 0, SHARDS, [])
    assert tree(tmp_path) == before


def test_the_plan_is_on_disk_before_the_first_shard_and_never_changes(listing: Path, tmp_path: Path) -> None:
    plans = []
    pack(listing, tmp_path, OPTIONS, on_progress=lambda _: plans.append((tmp_path / "plan.json").read_bytes()))
    assert set(plans) == {(tmp_path / "plan.json").read_bytes()}
    assert Manifest.load(tmp_path).plan_sha256 == Plan.load(tmp_path).sha256


def test_the_plan_on_disk_decides_though_the_files_have_other_sizes_now(tmp_path: Path) -> None:
    """How many records a shard gets was settled when the plan was made."""
    listing = image_set(tmp_path / "images", 6)
    options = PackOptions(store=StoreOptions("verbatim"), shard_size=3000)
    pack(listing, tmp_path / "out", options)
    shards = Plan.load(tmp_path / "out").shards
    for path in (tmp_path / "out").glob("[!p]*.*"):
        path.unlink()
    for path in (tmp_path / "images").glob("*.jpg"):
        path.write_bytes(path.read_bytes() + bytes(20_000))
    pack(listing, tmp_path / "out", options)
    assert Plan.load(tmp_path / "out").shards == shards
    assert [shard.records for shard in Manifest.load(tmp_path / "out").shards] == [shard.count for shard in shards]


def test_a_shard_size_that_is_not_asked_for_is_that_of_the_plan(tmp_path: Path) -> None:
    listing = image_set(tmp_path / "images", 6)
    pack(listing, tmp_path / "out", PackOptions(shard_size=3000))
    before = tree(tmp_path / "out")
    next((tmp_path / "out").glob("train-*")).unlink()
    assert pack(listing, tmp_path / "out").packed == 1
    assert tree(tmp_path / "out") == before
    with pytest.raises(OutputConflict, match="shard_bytes: 3000 there, 3001 asked for"):
        pack(listing, tmp_path / "out", PackOptions(shard_size=3001))


def test_a_machine_of_a_cluster_that_comes_late_changes_nothing(listing: Path, tmp_path: Path) -> None:
    def twice(
        function: Callable[..., Any], tasks: Iterable[Any], *, workers: int, on_progress: Any
    ) -> Generator[Any, None, None]:
        for task in tasks:
            yield function(task, on_progress)
            path = tmp_path / "out" / task.name
            before = path.stat()
            function(task, on_progress)
            assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    assert pack(listing, tmp_path / "out", OPTIONS, engine=twice).packed == SHARDS
    pack(listing, tmp_path / "undisturbed", OPTIONS)
    assert tree(tmp_path / "out") == tree(tmp_path / "undisturbed")


@pytest.mark.parametrize(("workers", "started"), [(1, 1), (3, 3), (64, 4)])
def test_no_more_workers_are_started_than_shards_are_missing(
    listing: Path, tmp_path: Path, workers: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stopped):
        pack(listing, tmp_path, OPTIONS, on_progress=stop_after(1))
    asked: list[int] = []

    def run_here(
        function: Callable[..., Any], tasks: Iterable[Any], *, workers: int, on_progress: Any
    ) -> Generator[Any, None, None]:
        asked.append(workers)
        return run_tasks(function, tasks, workers=1, on_progress=on_progress)

    monkeypatch.setattr("packtrain._packer.pack_run.run_tasks", run_here)
    pack(listing, tmp_path, OPTIONS, num_workers=workers)
    assert asked == [started]


def test_progress_counts_the_lines_of_earlier_runs(tmp_path: Path) -> None:
    listing = image_set(tmp_path / "images", 9)
    missing = [f"missing {number}.jpg 0\n" for number in range(3)]
    listing.write_text("".join([*missing, *listing.read_text().splitlines(keepends=True)]))
    options = PackOptions("tar", StoreOptions("raw", resize="8x8"), shard_size=3 * 8 * 8 * 3, seed=None)
    seen: list[PackProgress] = []
    with pytest.raises(TooManyRejects):
        pack(listing, tmp_path / "out", options, max_rejects="2", on_progress=seen.append)
    assert seen == [PackProgress(done=0, total=12, resumed=0, rejects=0)]
    seen.clear()
    pack(listing, tmp_path / "out", options, max_rejects="3", on_progress=seen.append)
    assert seen[0] == PackProgress(done=3, total=12, resumed=3, rejects=3)
    assert seen[-1] == PackProgress(done=12, total=12, resumed=3, rejects=3)
    assert [state.done for state in seen] == sorted(state.done for state in seen)
