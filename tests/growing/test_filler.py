"""Laws of a filler that is full, whose readers are slow, whose disk is full, and that ends."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.fillers import SIZES, numbered_sample
from helpers.filling import Scales, assert_sound, fill, newest_store

from packtrain._core.errors import CorruptFile, OutputConflict, PackError, UsageError
from packtrain._core.generations import (
    GENERATIONS,
    SHARDS,
    TEMPORARY,
    Generation,
    generation_numbers,
    generation_path,
)
from packtrain._core.reader_reports import ReaderReport
from packtrain._growing import filler as filler_module
from packtrain._growing.options import FillOptions
from packtrain._growing.shard import GrowingShard
from packtrain._growing.status import FillFigures
from packtrain._readers.dataset.growing import newest

SMALL = FillOptions(budget=1_800_000, headroom=0.5, shard_size=1 << 16)
LARGE = FillOptions(budget=12_000_000, headroom=0.5, shard_size=1 << 16)


@pytest.fixture
def root(memory_path: Path) -> Path:
    return memory_path / "cache"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the clock."""
    for name, seconds in {"_LOOK": 0.001, "_PROGRESS": 0.005, "_REPORTS": 0.02, "_SHORTEST_PAUSE": 0.02}.items():
        monkeypatch.setattr(filler_module, name, seconds)


class Stopped(BaseException):
    """A test has seen enough."""


def source(count: int, first: int = 0) -> Callable[[], Iterator[dict[str, Any]]]:
    return lambda: (numbered_sample(who) for who in range(first, first + count))


def until_it_waits(root: Path, options: FillOptions, first: int = 0) -> tuple[str, FillFigures]:
    """Fills until the filler waits. Returns what for, and its figures."""
    seen: list[tuple[str, FillFigures]] = []

    def look(figures: FillFigures) -> None:
        if figures.waiting and not seen:
            seen.append((figures.waiting, figures))
            raise Stopped

    with pytest.raises(Stopped):
        fill(root, source(100_000, first), options, look)
    return seen[0]


@pytest.mark.complete
def test_new_shards_come_as_headroom_allows_while_a_reader_keeps_its_generation(root: Path) -> None:
    fill(root, source(500), SMALL)
    reader = newest_store(root)
    before = reader.generation
    for epoch in range(5):
        waiting, figures = until_it_waits(root, SMALL, 2000 * (epoch + 1))
        assert f"generation {reader.generation.number} is read by process {os.getpid()}" in waiting
        assert figures.shards >= 4
        assert_sound(reader)
        assert reader.generation == before
        reader.release()
        reader = newest(reader.opened, reader)
        reader.opened.forget(reader.generation.first_shard)
        assert reader.generation.end_sample > before.end_sample
        before = reader.generation


@pytest.mark.parametrize("begun", [0, 5], ids=["between two shards", "within a shard"])
def test_a_folder_that_was_replaced_is_left_to_the_filler_of_the_new_one(root: Path, begun: int) -> None:
    def replaced() -> Iterator[dict[str, Any]]:
        # At most what fits a shard, which the end of the source publishes.
        yield from source(begun)()
        shutil.rmtree(root)
        fill(root, source(100, 1000), SMALL)
        yield from source(100)()

    fill(root, source(1), SMALL)
    with pytest.raises(PackError, match="was removed, moved or replaced while it was filled"):
        fill(root, replaced, SMALL)
    store = newest_store(root)
    assert store.generation.end_sample == 100
    assert_sound(store, {row: 1000 + row for row in range(100)})


@pytest.mark.complete
def test_a_shard_that_is_mapped_without_a_lease_stays_counts_and_is_named(root: Path) -> None:
    fill(root, source(500), SMALL)
    store = newest_store(root)
    row = next(row for row in range(len(store)) if store.field("data").length(row) == SIZES[-1])
    view = store.field("data").read(row)
    assert view is not None
    wanted, shard = bytes(view), store.generation.first_shard
    store.release()
    store.opened.forget(1 << 60)
    with Scales(root) as scales:
        fill(root, source(800, 2000), SMALL)
    assert view == wanted
    assert scales.most <= SMALL.budget_bytes
    assert len(list((root / SHARDS).glob(f"cache-{shard:06d}.*"))) == 3
    del view
    fill(root, source(200, 5000), SMALL)
    assert not list((root / SHARDS).glob(f"cache-{shard:06d}.*"))


@pytest.mark.complete
def test_a_smaller_budget_is_kept_as_soon_as_nobody_needs_more(root: Path) -> None:
    fill(root, source(500), SMALL)
    smaller = FillOptions(budget=1_200_000, headroom=0.5, shard_size=1 << 16)
    fill(root, source(100, 2000), smaller)
    with Scales(root) as scales:
        fill(root, source(400, 2100), smaller)
    assert scales.most <= smaller.budget_bytes


def test_readers_decide_how_many_samples_are_written(root: Path) -> None:
    options = FillOptions(budget="1.8MB", headroom=0.5, shard_size=1 << 16, samples_per_insert=4)
    fill(root, source(100), options)
    report = ReaderReport(root)
    report.take(100)
    waiting, figures = until_it_waits(root, options, 100)
    # Written so far when the first sample was taken: 100. The next is free, and each other one takes four.
    assert figures.end_sample == 100 + 100 // 4 + 1
    assert "readers are to take 4 more samples" in waiting
    report.take(40)
    _, figures = until_it_waits(root, options, 300)
    assert figures.end_sample == 100 + 140 // 4 + 1
    report.close()
    _, figures = until_it_waits(root, options, 400)
    assert figures.taken == 140
    assert figures.end_sample == 100 + 140 // 4 + 1


def test_before_anybody_reads_the_first_filling_is_free_and_nothing_more(root: Path) -> None:
    options = FillOptions(budget="1.8MB", headroom=0.5, shard_size=1 << 16, samples_per_insert=1)
    _, figures = until_it_waits(root, options)
    assert figures.taken == 0
    assert 0 < figures.first_sample < figures.end_sample / 4


def test_samples_that_nobody_has_gone_through_are_kept(root: Path) -> None:
    options = FillOptions(budget="1.8MB", headroom=0.5, shard_size=1 << 16, keep_unseen=True)
    waiting, figures = until_it_waits(root, options)
    assert "no reader has gone through" in waiting
    assert (figures.first_sample, figures.evicted_shards) == (0, 0)
    assert figures.end_sample > 100
    report = ReaderReport(root)
    report.finish(60)
    _, figures = until_it_waits(root, options, 5000)
    assert 30 < figures.first_sample <= 60
    report.finish(figures.end_sample)
    report.close()
    _, again = until_it_waits(root, options, 9000)
    assert figures.end_sample - 60 < again.first_sample <= figures.end_sample


@pytest.mark.complete
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["add", "finish"])
def test_a_full_disk_costs_the_present_shard_and_is_waited_for(
    number: int, step: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root, source(200), LARGE)
    before, calls = getattr(GrowingShard, step), []

    def fail(self: GrowingShard, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) in (2, 3):
            raise OSError(number, os.strerror(number))
        return before(self, *arguments)

    monkeypatch.setattr(GrowingShard, step, fail)
    problems = set()
    figures = fill(root, source(400, 200), LARGE, lambda figures: problems.add(figures.problem))
    assert any(os.strerror(number) in problem for problem in problems)
    published: dict[int, int] = {}
    assert_sound(newest_store(root), published)
    assert figures.samples < 400
    assert sorted(published) == list(range(200 + figures.samples))
    assert [published[number] for number in range(200)] == list(range(200))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_publication_that_fails_is_withdrawn_unless_it_was_made(
    when: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root, source(200), LARGE)
    before, calls = Generation.publish, []

    def fail(self: Generation, root: Path) -> None:
        calls.append(1)
        if len(calls) == 2:
            if when == "after":
                before(self, root)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        before(self, root)

    monkeypatch.setattr(Generation, "publish", fail)
    figures = fill(root, source(400, 200), LARGE)
    published: dict[int, int] = {}
    assert_sound(newest_store(root), published)
    assert (figures.samples == 400) == (when == "after")
    assert len(published) == 200 + figures.samples


def test_any_other_failure_to_write_ends_the_filling_and_loses_nothing_published(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root, source(200), LARGE)
    monkeypatch.setattr(GrowingShard, "finish", lambda self: _raise(OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(PackError, match="Input/output error"):
        fill(root, source(400, 200), LARGE)
    assert list((root / TEMPORARY).iterdir()) == []
    assert len(newest_store(root)) == 200


def test_too_little_room_on_the_file_system_is_waited_for_and_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root, source(10), SMALL)
    before = os.statvfs(root)
    values = list(before)
    values[4] = 1
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
    waiting, _ = until_it_waits(root, SMALL, 10)
    assert "the file system has room for" in waiting


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_samples_that_were_written_are_published_however_it_ends(error: type[BaseException], root: Path) -> None:
    end = threading.Event()
    # A source's first samples are held back until it is known what samples look like.
    fill(root, source(5), SMALL)

    def stalled() -> Iterator[dict[str, Any]]:
        yield from source(5, 5)()
        end.wait(60)

    def interrupt(figures: FillFigures) -> None:
        if figures.samples == 5 and not end.is_set():
            end.set()
            raise error

    with pytest.raises(error):
        fill(root, stalled, SMALL, interrupt)
    assert end.is_set()
    assert len(newest_store(root)) == 10
    assert fill(root, source(5, 10), SMALL).end_sample == 15


def test_a_shard_in_which_a_sample_is_half_written_is_given_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packtrain._formats.tar.writer import Writer

    before, calls = Writer.add, []

    def interrupted(self: Writer, sample: Any) -> None:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        before(self, sample)

    monkeypatch.setattr(Writer, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(root, source(50), SMALL)
    assert generation_numbers(root) == []
    assert list((root / TEMPORARY).iterdir()) == []


def test_a_cache_keeps_its_format_and_its_fields(root: Path) -> None:
    hdf5 = FillOptions(budget="4MB", headroom=0.5, shard_size=1 << 16, format="hdf5")
    fill(root, source(10), hdf5)
    fill(root, source(10, 10), FillOptions(budget="4MB", headroom=0.5, shard_size=1 << 16))
    assert {path.suffix for path in (root / SHARDS).iterdir()} == {".h5", ".npy"}
    with pytest.raises(UsageError, match="holds shards in hdf5, not in tar"):
        fill(root, source(10), FillOptions(budget="4MB", headroom=0.5, shard_size=1 << 16, format="tar"))
    assert len(newest_store(root)) == 20


def test_a_folder_that_holds_something_else_is_left_alone(root: Path) -> None:
    root.mkdir()
    (root / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputConflict, match=r"thesis\.txt"):
        fill(root, source(1), SMALL)
    assert [path.name for path in root.iterdir()] == ["thesis.txt"]


def test_what_packtrain_did_not_make_stays_and_is_named_and_what_it_left_goes(root: Path) -> None:
    fill(root, source(100), SMALL)
    end = newest_store(root).generation.end_shard
    (root / "filler.log").write_text("said")
    theirs = [root / "mine.txt", root / SHARDS / "cache-0.bak", root / TEMPORARY / "notes", root / GENERATIONS / "x"]
    ours = [
        root / TEMPORARY / "cache-000007.tar",
        root / TEMPORARY / "cache-000007.h5.field",
        root / SHARDS / f"cache-{end:06d}.tar",
        root / SHARDS / f"cache-{end:06d}.index.npy",
        root / SHARDS / f".cache-{end:06d}.idx.tmp-0123456789ab",
        root / GENERATIONS / ".00000009.json.tmp-0123456789ab",
        root / ".status.json.tmp-0123456789ab",
    ]
    for path in (*theirs, *ours):
        path.write_text("left")
    with pytest.warns(RuntimeWarning, match=r"mine\.txt.*not made by packtrain"):
        fill(root, source(1, 100), SMALL)
    assert all(path.exists() for path in (*theirs, root / "filler.log"))
    assert [path for path in ours if path.exists() and path.read_bytes() == b"left"] == []
    assert_sound(newest_store(root))


@pytest.mark.parametrize("damage", ["only", "newest", "older"])
def test_a_damaged_generation_is_an_error_that_says_what_to_do(damage: str, root: Path) -> None:
    fill(root, source(40), SMALL)
    keep = newest_store(root)
    if damage != "only":
        fill(root, source(40, 40), SMALL)
    numbers = generation_numbers(root)
    path = generation_path(root, numbers[0 if damage == "older" else -1])
    path.write_text(path.read_text().replace("records", "rexords"))
    with pytest.raises(CorruptFile, match=rf"{path.name}.*delete this file.*delete its folder"):
        fill(root, source(1), SMALL)
    keep.release()
    if damage == "newest":
        path.unlink()
        fill(root, source(10, 80), SMALL)
        assert_sound(newest_store(root))


def test_a_missing_shard_of_the_newest_generation_is_an_error_at_the_start(root: Path) -> None:
    fill(root, source(40), SMALL)
    next((root / SHARDS).glob("*.tar")).unlink()
    with pytest.raises(CorruptFile, match="cannot be repaired"):
        fill(root, source(1), SMALL)
