"""Laws of the figures: they add up, they do not depend on who makes the batches, and their advice can be followed."""

from __future__ import annotations

import json
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.batching import Numbers
from helpers.hazards import Numbered
from helpers.support import flip, packed, soon
from helpers.transforms import to_tensor
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from packtrain import Loader, concat, open_dataset
from packtrain._codec.stages import OnStage, Stage, untimed
from packtrain._core.options import StoreOptions
from packtrain._readers.loader.batches import BatchMaker, Probe
from packtrain._readers.loader.samples import SampleMaker
from packtrain._readers.monitoring import bottleneck
from packtrain._readers.monitoring.counters import COUNTS, WORDS, Count, Counters, blank, totals
from packtrain._readers.monitoring.figures import Setup
from packtrain._readers.monitoring.stats import Meter, Stats
from packtrain._readers.monitoring.timing import EVERY, StageTimer
from packtrain.errors import LoaderError
from packtrain.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop

pytestmark = pytest.mark.usefixtures("no_process_left")

CROP = [RandomResizedCrop((7, 9)), RandomHorizontalFlip()]
METHODS = ("fork", "forkserver", "spawn")
FEW = Setup(workers=2, cores=4)
SECOND = 1_000_000_000
FIELDS = [name for name in Stats.__dataclass_fields__ if name not in ("setup", "stage_seconds", "growth")]


class FakeClock:
    """Moves on when told to, and by `step` each time it is read."""

    def __init__(self, step: int = 0) -> None:
        self.now, self.step = 1, step

    def __call__(self) -> int:
        self.now += self.step
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


def figures(**changes: Any) -> Stats:
    """A pass of ten seconds with enough data, with some figures changed."""
    usual: dict[str, Any] = dict.fromkeys(Stats.__dataclass_fields__, 0)
    usual |= {
        "growth": None,
        "setup": FEW,
        "batches": 100,
        "samples": 1000,
        "waiting_seconds": 0.1,
        "consuming_seconds": 9.9,
    }
    usual |= {"busy_seconds": 10.0, "idle_seconds": 10.0, "processor_seconds": 10.0, "stage_seconds": {"decode": 10.0}}
    return Stats(**{**usual, **changes})


def starving(**changes: Any) -> Stats:
    """The same, with a consumer that waits half of the time and workers that are always busy."""
    usual: dict[str, Any] = {
        "waiting_seconds": 5.0,
        "consuming_seconds": 5.0,
        "collecting_seconds": 5.0,
        "busy_seconds": 20.0,
    }
    usual |= {"idle_seconds": 0.0, "processor_seconds": 20.0, "stage_seconds": {"decode": 20.0}}
    return figures(**{**usual, **changes})


# What a meter measures


def consumed(clock: FakeClock, meter: Meter, waits: list[float], works: list[float]) -> None:
    def batches() -> Iterator[int]:
        for wait in waits:
            clock.sleep(wait)
            yield 8

    for batch, work in zip(meter.timed(meter.collected(batches())), works, strict=True):
        meter.count(batch)
        clock.sleep(work)


SECONDS = st.lists(st.tuples(*[st.integers(0, 10**6).map(lambda micro: micro / 1e6)] * 2), min_size=1, max_size=9)


@given(SECONDS, SECONDS)
def test_waiting_and_consuming_make_up_the_wall_time_and_passes_the_total(
    first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> None:
    clock = FakeClock()
    meter = Meter(FEW, clock)
    sums = []
    for steps in (first, second):
        waits, works = map(list, zip(*steps, strict=True))
        consumed(clock, meter, waits, works)
        clock.sleep(1000)
        found = meter.present
        assert found.startup_seconds == pytest.approx(waits[0])
        assert found.waiting_seconds == pytest.approx(sum(waits[1:]))
        assert found.collecting_seconds == pytest.approx(found.waiting_seconds)
        assert found.consuming_seconds == pytest.approx(sum(works))
        assert found.wall_seconds == pytest.approx(sum(waits[1:]) + sum(works))
        assert 0 <= found.wait_share <= 1
        assert (found.batches, found.samples) == (len(steps), 8 * len(steps))
        sums.append(found)
    total = meter.total
    assert total.wall_seconds == pytest.approx(sum(one.wall_seconds for one in sums))
    assert total.samples == sum(one.samples for one in sums)


def test_a_pass_that_is_broken_off_ends_and_one_that_is_begun_ends_another() -> None:
    clock = FakeClock()
    meter = Meter(FEW, clock)
    for _ in meter.timed(iter(range(9))):
        clock.sleep(1)
        break
    clock.sleep(50)
    assert meter.present.wall_seconds == pytest.approx(1)
    old = meter.timed(iter(range(9)))
    next(old)
    new = meter.timed(iter(range(9)))
    next(new)
    clock.sleep(3)
    next(old)
    clock.sleep(4)
    old.close()  # type: ignore[attr-defined]
    clock.sleep(5)
    assert [meter.present.consuming_seconds, meter.present.batches] == pytest.approx([12, 1])


def test_the_error_of_a_pass_ends_it() -> None:
    def failing() -> Iterator[int]:
        clock.sleep(1)
        yield 1
        clock.sleep(2)
        raise ValueError("no such luck")

    clock = FakeClock()
    meter = Meter(FEW, clock)
    with pytest.raises(ValueError, match="no such luck"):
        list(meter.timed(failing()))
    clock.sleep(50)
    found = meter.present
    assert [found.startup_seconds, found.waiting_seconds] == pytest.approx([1, 2])


def test_reset_begins_anew() -> None:
    clock = FakeClock()
    meter = Meter(FEW, clock)
    consumed(clock, meter, [1, 1], [1, 1])
    meter.reset()
    assert meter.total == meter.present == figures(**dict.fromkeys(FIELDS, 0), stage_seconds={})
    consumed(clock, meter, [2, 3], [1, 1])
    assert meter.total == meter.present
    assert meter.total.waiting_seconds == pytest.approx(3)


def test_what_ended_processes_did_stays_and_grows_no_more() -> None:
    clock = FakeClock()
    meter = Meter(FEW, clock)
    rows = np.zeros((2, WORDS), np.int64)
    meter.attach(rows)
    worker = Counters(memoryview(rows[0].data).cast("B").cast("q"), clock)
    worker.enter(Count.BUSY)
    clock.sleep(3)
    assert meter.total.busy_seconds == pytest.approx(3)
    meter.detach()
    clock.sleep(3)
    rows[:] = 0
    assert meter.total.busy_seconds == pytest.approx(3)
    meter.attach(np.zeros((2, WORDS), np.int64))
    assert meter.total.busy_seconds == pytest.approx(3)


def test_a_stage_that_began_before_the_pass_counts_only_as_far_as_the_worker_was_busy_in_it() -> None:
    clock = FakeClock()
    meter = Meter(FEW, clock)
    rows = np.zeros((1, WORDS), np.int64)
    meter.attach(rows)
    worker = StageTimer(memoryview(rows[0].data).cast("B").cast("q"), clock=clock)
    worker.begin_batch()
    # The consumer has the batch already, and begins the next pass while the worker is still sending.
    clock.sleep(3)
    next(meter.timed(iter(range(9))))
    clock.sleep(1)
    worker.end_stage(Stage.HANDOFF)
    worker.idle()
    assert meter.present.busy_seconds == pytest.approx(1)
    assert meter.present.stage_seconds == pytest.approx({"handoff": 1})
    assert meter.total.stage_seconds == pytest.approx({"handoff": 4})


def test_a_process_that_was_killed_between_two_phases_can_be_read() -> None:
    words = blank()
    words[Count.BUSY], words[Count.PHASE] = 7, Count.BUSY
    with soon():
        assert totals(np.frombuffer(words, np.int64)[np.newaxis], 10**12)[Count.BUSY] == 7


# What a worker measures


def kept(samples: int, batch: int, clock: FakeClock, work: Callable[[int, OnStage], object]) -> tuple[Any, list[int]]:
    """The counters of a worker that makes samples in batches, and which of the samples were timed.

    Args:
        samples: Number of samples.
        batch: Number of samples in a batch.
        clock: The worker's clock.
        work: Makes a sample.
    """
    words, timed = blank(), []
    timer = StageTimer(words, clock=clock)
    timer.idle()
    for first in range(0, samples, batch):
        timer.begin_batch()
        size = min(batch, samples - first)
        for sample, on_stage in zip(range(first, first + size), timer.callbacks(size), strict=True):
            if on_stage is not untimed:
                timed.append(sample)
                timer.begin_sample()
            work(sample, on_stage)
        timer.end_stage(None)
        timer.end_stage(Stage.HANDOFF)
        timer.count_usage()
        timer.idle()
    return words, timed


def two_stages(sample: int, on_stage: OnStage) -> None:
    on_stage(Stage.READ)
    on_stage(Stage.DECODE)


def stage_words(words: Any) -> dict[Stage, int]:
    return {stage: words[COUNTS + stage] for stage in Stage}


@given(st.integers(1, 200), st.integers(1, 40))
def test_busy_and_idle_make_up_a_workers_time_and_stages_fit_into_it(samples: int, batch: int) -> None:
    clock = FakeClock(10)
    words, timed = kept(samples, batch, clock, two_stages)
    # The worker is idle only before the first batch and between two batches.
    assert words[Count.BUSY] + words[Count.IDLE] == clock.now - 11
    stages = stage_words(words)
    assert sum(stages.values()) <= words[Count.BUSY]
    assert stages[Stage.READ] == stages[Stage.DECODE] == 10 * len(timed)
    assert stages[Stage.HANDOFF] == 10 * -(-samples // batch)


@given(st.integers(1, 3000), st.integers(1, 300))
def test_which_samples_are_timed_does_not_depend_on_the_batches(samples: int, batch: int) -> None:
    _, timed = kept(samples, batch, FakeClock(), two_stages)
    assert timed == kept(samples, 1, FakeClock(), two_stages)[1]
    gaps = np.diff([-1, *timed, samples])
    assert gaps.max() < 2 * EVERY


@pytest.mark.parametrize("batch", [1, EVERY, 128])
def test_stages_have_the_share_they_would_have_were_all_samples_timed(batch: int) -> None:
    """Even if the first sample of each batch takes ten times as long, and has another stage."""
    clock, samples = FakeClock(), 1024 * EVERY
    exact = Counter[Stage]()

    def work(sample: int, on_stage: OnStage) -> None:
        first = sample % batch == 0
        for stage, seconds in ((Stage.READ, 10.0 if first else 1.0), (Stage.CUT if first else Stage.DECODE, 3.0)):
            clock.sleep(seconds)
            exact[stage] += round(seconds * SECOND)
            on_stage(stage)

    words, timed = kept(samples, batch, clock, work)
    assert len(timed) == pytest.approx(samples / EVERY, rel=0.1)
    stages = stage_words(words)
    for stage, nanoseconds in exact.items():
        assert stages[stage] / sum(stages.values()) == pytest.approx(nanoseconds / exact.total(), abs=0.05)


def test_a_batch_that_failed_leaves_no_time_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packtrain._readers.monitoring.timing.EVERY", 1)
    clock, words = FakeClock(), blank()
    timer = StageTimer(words, clock=clock)
    timer.begin_batch()
    timer.callbacks(2)
    timer.begin_sample()
    clock.sleep(5)
    timer.begin_batch()
    (on_stage,) = timer.callbacks(1)
    timer.begin_sample()
    on_stage(Stage.READ)
    timer.end_stage(None)
    assert sum(words[COUNTS:]) == 0


class Recording(StageTimer):
    """Records what it is told, and times every other sample."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []
        self.current: Any = self

    def __setitem__(self, index: int, row: int) -> None:
        self.told.append(row)

    @override
    def callbacks(self, samples: int) -> list[OnStage]:
        return [self.told.append if number % 2 else untimed for number in range(samples)]

    @override
    def begin_sample(self) -> None:
        self.told.append("begin")


def test_the_clock_of_a_sample_runs_from_its_beginning_until_it_is_written() -> None:
    maker, timer, rows = BatchMaker(SampleMaker(Numbers(9), ())), Recording(), np.array([7, 3, 5, 4])
    layout = maker.layout(Probe(4, 0, range(4), rows.tolist()))
    arrays = layout.new()
    arrays["position"][:], arrays["row"][:] = range(4), rows
    maker.make(0, 4, layout, arrays, timer)
    assert timer.told == [7, 3, "begin", Stage.TRANSFORM, Stage.WRITE, 5, 4, "begin", Stage.TRANSFORM, Stage.WRITE]


# What a loader measures


@pytest.fixture(scope="module")
def folder(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("stats") / "out", "tar", store=StoreOptions())


@pytest.fixture(scope="module")
def raw(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = StoreOptions("raw", resize="24x24")
    return packed(images, tmp_path_factory.mktemp("raw") / "out", "tar", store=store)


def record_bytes(folder: Path) -> int:
    return int(open_dataset(folder).store.index["length"].sum())


def require_sound(found: Stats) -> None:
    """Asserts what is true of all figures."""
    assert all(getattr(found, name) >= 0 for name in FIELDS)
    assert sum(found.stage_seconds.values()) <= found.busy_seconds * (1 + 1e-9)
    assert found.processor_seconds <= found.busy_seconds
    assert found.collecting_seconds <= found.waiting_seconds
    assert 0 <= found.wait_share <= 1
    assert 0 <= found.busy_share <= 1
    assert json.loads(json.dumps(found.to_dict()))["samples"] == found.samples


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        *(
            pytest.param({"multiprocessing_context": name}, marks=() if name == "fork" else pytest.mark.complete)
            for name in METHODS
        ),
    ],
)
def test_counts_are_the_same_whoever_makes_the_batches(folder: Path, options: dict[str, Any]) -> None:
    dataset = concat([open_dataset(folder, CROP)] * 6)
    with Loader(dataset, 5, **{"shuffle": True, "seed": 0, "num_workers": 2, **options}) as loader:
        for epoch in range(2):
            list(loader)
            found = loader.stats.present
            require_sound(found)
            assert (found.batches, found.samples, found.skipped) == (15, 72, 0)
            assert found.read_bytes == 6 * record_bytes(folder)
            assert loader.stats.total.samples == 72 * (epoch + 1)
        # Together the workers have made enough samples that some were timed.
        assert {"decode", "resize", "read", "check"} <= set(loader.stats.total.stage_seconds)
        setup = Setup(options.get("num_workers", 2), found.setup.cores, "crop-ready", compares_again=True)
        assert found.setup == setup
    before = loader.stats.total
    time.sleep(0.01)
    assert loader.stats.total == before


@pytest.mark.parametrize("workers", [0, 1])
def test_what_others_read_in_the_same_process_does_not_count(folder: Path, workers: int) -> None:
    dataset = open_dataset(folder, CROP)

    def read(worker: int) -> None:
        dataset[worker]

    options: dict[str, Any] = {"multiprocessing_context": "fork", "worker_init_fn": read} if workers else {}
    with Loader(dataset, 5, num_workers=workers, **options) as loader:
        for _ in loader:
            dataset[0]
        assert loader.stats.present.read_bytes == record_bytes(folder)


def test_raw_records_that_are_copied_at_once_are_one_stage(raw: Path) -> None:
    loader = Loader(open_dataset(raw, CenterCrop(16)), 5, num_workers=0)
    list(loader)
    assert list(loader.stats.present.stage_seconds) == ["copy"]
    assert loader.stats.present.read_bytes == record_bytes(raw)


def test_what_is_foreign_is_a_stage(folder: Path) -> None:
    loader = Loader(concat([open_dataset(folder, to_tensor)] * 6), 5, num_workers=0, collate_fn=padded_images)
    list(loader)
    assert {"transform", "collate", "decode"} <= set(loader.stats.present.stage_seconds)
    require_sound(loader.stats.present)
    assert loader.stats.present.samples == 72
    plain = Loader(Numbers(80), 5, num_workers=0)
    list(plain)
    assert set(plain.stats.present.stage_seconds) == {"transform", "write"}
    assert plain.stats.present.read_bytes == 0


def padded_images(samples: list[Any]) -> Any:
    return torch.stack([image for image, _ in samples])


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_left_out_is_counted_as_the_loader_does(images: Path, tmp_path: Path, workers: int) -> None:
    out = packed(images, tmp_path / "out", "tar")
    dataset = open_dataset(out, to_tensor)
    for row in (2, 7):
        flip(out / "train-000000.tar", int(dataset.store.index["offset"][row]) + 50)
    with Loader(dataset, 4, num_workers=workers, on_error="skip") as loader:
        for epoch in (1, 2):
            with pytest.warns(RuntimeWarning, match="left out") as warned:
                batches = list(loader)
            assert {each.filename for each in warned if each.category is RuntimeWarning} == {__file__}
            assert loader.stats.present.skipped == 2
            assert loader.stats.present.samples == sum(len(labels) for _, labels in batches) == 10
            assert loader.stats.total.skipped == loader.skipped == 2 * epoch


def test_a_worker_that_is_killed_leaves_its_figures() -> None:
    loader = Loader(Numbered(60, {40: "SIGKILL"}), 2, shuffle=False, num_workers=2, multiprocessing_context="fork")
    with soon(), pytest.raises(LoaderError, match="SIGKILL"):
        for _ in loader:
            pass
    found = loader.stats.present
    assert found.batches > 0
    assert found.busy_seconds > 0
    require_sound(found)
    assert loader.stats.present == found
    assert str(loader.stats)


def test_batches_that_are_kept_are_counted_as_copied() -> None:
    with Loader(Numbered(60), 2, num_workers=2, multiprocessing_context="fork") as loader:
        kept = list(loader)
        assert 0 < loader.stats.present.copied < len(kept)


def test_figures_outlive_their_loader_without_its_batches() -> None:
    loader = Loader(Numbered(4), 4, num_workers=1, multiprocessing_context="fork")
    list(loader)
    rows = loader.stats._rows
    assert rows.base is not None
    assert rows.shape == (2, WORDS)
    loader.close()
    assert loader.stats.present.samples == 4
    assert loader.stats._rows.shape == (0, WORDS)


# Headspace


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_headspace_replays_a_few_batches_for_a_whole_epoch(workers: int, drop_last: bool) -> None:
    options: dict[str, Any] = {"num_workers": workers, "drop_last": drop_last, "shuffle": True, "seed": 0}
    options["multiprocessing_context"] = "fork"
    with Loader(Numbered(47), 4, **options) as real, Loader(Numbered(47), 4, **options) as replayed:
        for _ in range(2):
            expected, found, rows = [real.state_dict() for _ in real], [], set()
            with replayed.headspace():
                for images, labels in replayed:
                    assert (images == Numbered.image(0)[None] + labels.view(-1, 1, 1, 1)).all()
                    found.append(replayed.state_dict())
                    rows |= set(labels.tolist())
            assert found == expected and len(found) == len(replayed)
            assert len(rows) == 4 * 4
        assert str(replayed.stats).startswith("headspace: ")
        assert [labels.tolist() for _, labels in replayed] == [labels.tolist() for _, labels in real]
        assert not str(replayed.stats).startswith("headspace: ")


def test_headspace_tells_once_what_was_left_out(images: Path, tmp_path: Path) -> None:
    out = packed(images, tmp_path / "out", "tar")
    dataset = open_dataset(out, to_tensor)
    flip(out / "train-000000.tar", int(dataset.store.index["offset"][1]) + 50)
    loader = Loader(concat([dataset] * 5), 2, shuffle=False, num_workers=0, on_error="skip")
    with loader.headspace(), pytest.warns(RuntimeWarning) as warned:
        batches = [*loader, *loader]
    assert len(batches) == 2 * len(loader)
    assert sum("left out" in str(warning.message) for warning in warned) == loader.skipped == 2


# What the figures mean

BOTTLENECKS = {
    "too early to tell: 1 batch handed out": figures(batches=1),
    "compute-bound: data is ready before training asks for it (1.0 % waiting)": figures(),
    "data-bound: 50 % of wall time waiting; decode is 100 % of worker time; 2 more workers would help": starving(),
    "data-bound: 50 % of wall time waiting; decode is 100 % of worker time; 2 more workers or store=raw would help": (
        starving(setup=Setup(2, 4, "crop-ready"))
    ),
    "data-bound: 50 % of wall time waiting; decode is 100 % of worker time; store=raw would help": (
        starving(setup=Setup(4, 4, "jpeg"))
    ),
    "data-bound: 50 % of wall time waiting; copy is 100 % of worker time; "
    "only more or faster cores would help (4 cores)": (
        starving(setup=Setup(4, 4, "raw"), stage_seconds={"copy": 20.0})
    ),
    "data-bound: 50 % of wall time waiting; decode is 100 % of worker time; num_workers=1 would help": (
        starving(setup=Setup(0, 4))
    ),
    "data-bound: 50 % of wall time waiting; decode is 100 % of worker time; num_threads=4 would help": (
        starving(setup=Setup(0, 4, threads=2), processor_seconds=0.1)
    ),
    "data-bound: 50 % of wall time waiting; decode is 100 % of worker time; "
    "only more or faster cores would help (4 cores)": starving(setup=Setup(0, 4, threads=4), processor_seconds=0.1),
    "data-bound: 50 % of wall time waiting; postprocessing in this process is 90 % of that; "
    "a cheaper batch_transform, or device='cuda' if there is a GPU would help": starving(collecting_seconds=0.5),
}


@pytest.mark.parametrize("text", BOTTLENECKS)
def test_bottlenecks(text: str) -> None:
    assert str(BOTTLENECKS[text]) == text
    assert BOTTLENECKS[text].report().splitlines()[-1] == text


DISK = "in memory (`packtrain stage`)"
ADVICE: dict[str, tuple[Stats, str]] = {
    "read": (starving(disk_bytes=10**9, stage_seconds={"read": 15.0, "decode": 5.0}), DISK),
    "uncounted": (starving(processor_seconds=4.0, stage_seconds={"read": 15.0, "decode": 5.0}), DISK),
    "faults": (starving(disk_faults=900, processor_seconds=4.0), DISK),
    "disk": (starving(disk_bytes=10**9, processor_seconds=4.0, stage_seconds={"check": 18.0, "decode": 2.0}), DISK),
    "others": (starving(processor_seconds=8.0), "fewer other processes"),
    "idle": (starving(busy_seconds=10.0, idle_seconds=10.0), "prefetch_factor"),
    "resize": (starving(stage_seconds={"resize": 12.0, "decode": 8.0}), "pack --resize"),
    "transform": (starving(stage_seconds={"transform": 12.0, "decode": 8.0}), "transforms of your own"),
    "collate": (starving(stage_seconds={"handoff": 12.0, "decode": 8.0}), "without collate_fn"),
    "check": (starving(stage_seconds={"check": 12.0, "decode": 8.0}), "check=False"),
    "check again": (
        starving(setup=Setup(1, 1, compares_again=True), stage_seconds={"check": 12.0, "decode": 8.0}),
        'check="first" would help',
    ),
    "copied": (starving(copied=50), "keeping fewer batches"),
    "foreign": (starving(setup=Setup(1, 4, foreign=True), stage_seconds={}), "1 more worker or packtrain"),
    "unknown": (
        starving(setup=Setup(None, 4, foreign=True), stage_seconds={}),
        "; packtrain.Loader would",
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice_names_what_takes_the_time(case: str) -> None:
    stats, words = ADVICE[case]
    assert words in str(stats)


@pytest.mark.parametrize(
    "changes",
    [
        {"stage_seconds": {"read": 15.0, "decode": 5.0}},
        {"processor_seconds": 8.0, "disk_bytes": 4096},
        {"processor_seconds": 8.0, "disk_faults": 3},
    ],
)
def test_no_faster_disk_is_advised_where_the_data_was_in_memory(changes: dict[str, Any]) -> None:
    stats = starving(samples=1000, read_bytes=10**8, **changes)
    assert "disk" not in str(stats) and "packtrain stage" not in str(stats)


def test_a_stage_is_not_called_the_longest_before_others_are_timed() -> None:
    text = str(starving(stage_seconds={"finish": 4.0, "handoff": 0.1}))
    assert "workers are busy 100 % of their time" in text
    assert "finish" not in text


def test_where_workers_wait_for_a_disk_or_a_core_more_of_them_are_no_advice() -> None:
    assert "more worker" in str(starving())
    assert "more worker" not in str(ADVICE["disk"][0])
    assert "more worker" not in str(ADVICE["others"][0])


AMOUNTS = st.floats(0, 1e6)
SETUPS = st.builds(
    Setup,
    workers=st.none() | st.integers(0, 64),
    cores=st.integers(1, 64),
    store=st.sampled_from([None, "raw", "crop-ready", "verbatim", "jpeg"]),
    headspace=st.booleans(),
    foreign=st.booleans(),
)
ANYTHING = st.builds(
    Stats,
    setup=SETUPS,
    stage_seconds=st.dictionaries(st.sampled_from([stage.name.lower() for stage in Stage]), AMOUNTS),
    **{name: AMOUNTS if name.endswith("seconds") else st.integers(0, 10**12) for name in FIELDS},
)


@given(ANYTHING)
def test_advice_can_be_followed(stats: Stats) -> None:
    setup, found = stats.setup, bottleneck.diagnosis(stats)[1]
    for advice in found:
        if advice.startswith("num_workers="):
            assert setup.workers == 0
            assert 1 <= int(advice.removeprefix("num_workers=")) <= setup.cores
        elif "more worker" in advice:
            assert setup.workers is not None
            assert 1 <= int(advice.split()[0]) <= setup.cores - setup.workers
    assert not ("store=raw" in found and setup.store in (None, "raw"))
    assert len(set(found)) == len(found)
    line = str(stats)
    assert "\n" not in line
    assert stats.report().splitlines()[-1] == line
    json.dumps(stats.to_dict())
    assert pickle.loads(pickle.dumps(stats)) == stats


class Recorder:
    """Records points in place of a SummaryWriter."""

    def __init__(self) -> None:
        self.points: dict[str, tuple[float, int | None]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        assert tag not in self.points
        self.points[tag] = float(scalar_value), global_step


def test_curves_are_shares_and_rates_under_one_name() -> None:
    recorder = Recorder()
    starving(stage_seconds={"decode": 15.0, "cut": 5.0}, skipped=3, read_bytes=10**7).write(recorder, 70)
    assert recorder.points == {
        "packtrain/wait_share": (0.5, 70),
        "packtrain/samples_per_second": (100.0, 70),
        "packtrain/skipped": (3.0, 70),
        "packtrain/bytes_per_second": (1e6, 70),
        "packtrain/worker_busy_share": (1.0, 70),
        "packtrain/stage/decode": (0.75, 70),
        "packtrain/stage/cut": (0.25, 70),
    }
