"""What `loader.stats` costs: the loader with it, and with all of it replaced by nothing.

On images that hold next to no pixels: beside the time that real ones take, and its fluctuations, nothing of it would
be seen.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from benchmarks.crops import pack_images
from benchmarks.measure import describe_list, pillow_build, print_table, real_list, scratch
from benchmarks.measure import target as bound
from packtrain import ImageDataset, Loader, concat, open_dataset
from packtrain._codec.stages import READ, Stage, untimed
from packtrain._core.options import StoreOptions
from packtrain._readers.monitoring.stats import Meter
from packtrain._readers.monitoring.timing import Observer, StageTimer
from packtrain.transforms import RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Transform

REPETITIONS: Final = 30
REAL_REPETITIONS: Final = 3
BATCH: Final = 128
WORKERS: Final = 2
WITH: Final = "with stats"
WITHOUT: Final = "without"
MOST: Final = 0.01
SMALL_IMAGES: Final = 6_400
SQUARE: Final = StoreOptions(store="raw", resize="256x256")
SMALL: Final = StoreOptions(store="raw", resize="8x8")
SMALL_JPEG: Final = StoreOptions(store="jpeg", resize="8x8")


class Case(NamedTuple):
    """A way to read.

    Attributes:
        store: How pixels are stored.
        small: How so few of them that they take next to no time.
        transform: What they go through, by the side of the result.
        images: In a pass over the real ones.
        options: Of `open_dataset`.
    """

    store: StoreOptions
    small: StoreOptions
    transform: Callable[[int], list[Transform]]
    images: int
    options: dict[str, Any]


def _resized(side: int) -> list[Transform]:
    return [RandomResizedCrop(side), RandomHorizontalFlip()]


def _cropped(side: int) -> list[Transform]:
    return [RandomCrop(side)]


CASES: Final = {
    "JPEG, RandomResizedCrop(224), flip": Case(StoreOptions(), SMALL_JPEG, _resized, 1_280, {}),
    "raw 256x256, RandomResizedCrop(224), flip": Case(SQUARE, SMALL, _resized, 12_800, {}),
    "raw 256x256, RandomCrop(224), batches at once": Case(SQUARE, SMALL, _cropped, 38_400, {}),
    "raw 256x256, RandomCrop(224), one by one": Case(SQUARE, SMALL, _cropped, 25_600, {"io": "pread"}),
}


def measure() -> dict[str, Any]:
    images = real_list()
    samples: dict[str, dict[str, list[float]]] = {}
    cost: dict[str, dict[str, float]] = {}
    call = _microseconds_of_a_call()
    with scratch() as folder:
        for number, (name, case) in enumerate(CASES.items()):
            real = _dataset(images, folder / f"{number}-real", case.store, case.transform(224), case, case.images)
            small = _dataset(images, folder / f"{number}-small", case.small, case.transform(7), case, SMALL_IMAGES)
            samples[name] = {"real images": [_pass(real) for _ in range(REAL_REPETITIONS)], **_rounds(small)}
            cost[name] = _cost(samples[name], call * _calls(small, real))
    return {
        **pillow_build(),
        "input": describe_list(images),
        "settings": {
            "batch_size": BATCH,
            "workers": WORKERS,
            "repetitions": REPETITIONS,
            "order": "alternating, reversed in every other round",
        },
        "processor_microseconds_per_image": samples,
        "cost_per_image": cost,
        "nanoseconds_per_untimed_call": 1000 * call,
        "targets": [bound(f"{name}: share of processor time", one["share"], most=MOST) for name, one in cost.items()],
    }


def show(result: dict[str, Any]) -> None:
    rows = [
        [
            name,
            f"{cost['processor_microseconds']:.1f}",
            f"{cost['kept_microseconds']:.2f} ± {cost['standard_error']:.2f}",
            f"{cost['in_vain_microseconds']:.2f}",
            f"{100 * cost['share']:.2f}",
        ]
        for name, cost in result["cost_per_image"].items()
    ]
    print_table(["per image", "processor us", "of that, keeping time", "calls of a clock that is not there", "%"], rows)


def _cost(samples: dict[str, list[float]], in_vain: float) -> dict[str, float]:
    differences = [over - under for over, under in zip(samples[WITH], samples[WITHOUT], strict=True)]
    kept, real = statistics.median(differences), statistics.median(samples["real images"])
    return {
        "processor_microseconds": real,
        "kept_microseconds": kept,
        # Of a median.
        "standard_error": 1.25 * statistics.stdev(differences) / len(differences) ** 0.5,
        "in_vain_microseconds": in_vain,
        "share": (kept + in_vain) / real,
    }


def _dataset(
    images: Path, folder: Path, store: StoreOptions, transform: list[Transform], case: Case, count: int
) -> ImageDataset:
    dataset = open_dataset(pack_images(images, folder, store), transform, **case.options)
    return concat([dataset] * (count // len(dataset) + 1)).subset(range(count))


def _rounds(dataset: ImageDataset) -> dict[str, list[float]]:
    """What `_pass` measures."""
    cases: list[tuple[str, Callable[[], Any]]] = [(WITH, nullcontext), (WITHOUT, _nothing)]
    figures: dict[str, list[float]] = {name: [] for name, _ in cases}
    _pass(dataset)
    for _ in range(REPETITIONS):
        for name, within in cases:
            with within():
                figures[name].append(_pass(dataset))
        cases.reverse()
    return figures


def _pass(dataset: ImageDataset) -> float:
    """Microseconds of processor time per image of a loader's second epoch, of all processes."""
    with Loader(dataset, BATCH, num_workers=WORKERS, multiprocessing_context="fork") as loader:
        for _held in loader:
            pass
        before = _processor()
        # A batch is held until the next one is there, as in a training loop.
        for _held in loader:
            pass
        return 1e6 * (_processor() - before) / len(dataset)


def _processor() -> float:
    """Seconds of processor time of this process and its workers, as far as they are alive."""
    pids = [process.pid for process in multiprocessing.active_children() if process.pid]
    # Linux's number for the clock of a process, see clock_getcpuclockid(3).
    return time.process_time() + sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


@contextmanager
def _nothing() -> Iterator[None]:
    """Nobody measures anything. Samples are still asked for by way of functions that would tell their stages."""
    with ExitStack() as patches:
        for name in ("idle", "begin_batch", "discard_usage", "count_usage"):
            patches.enter_context(patch.object(StageTimer, name, lambda timer: None))
        for name in ("callbacks", "end_stage"):
            patches.enter_context(patch.object(StageTimer, name, getattr(Observer, name)))
        patches.enter_context(patch.object(Meter, "timed", lambda meter, batches: batches))
        patches.enter_context(patch.object(Meter, "collected", lambda meter, batches: batches))
        patches.enter_context(patch.object(Meter, "count", lambda meter, samples, skipped=0: None))
        yield


def _calls(*datasets: ImageDataset) -> int:
    """How often a sample tells that a stage has ended; of a batch that is made at once, none does."""
    counts = set()
    for dataset in datasets:
        told: list[Stage] = []
        with Loader(dataset, BATCH, num_workers=0) as loader, _told(told):
            for _ in range(2):
                told.clear()
                for _batch in loader:
                    pass
        counts.add(len(told) // len(dataset))
    if len(counts) > 1:
        raise RuntimeError("small images are read in another way than real ones")
    return counts.pop()


@contextmanager
def _told(told: list[Stage]) -> Iterator[None]:
    with patch.object(StageTimer, "callbacks", lambda timer, samples: [told.append] * samples):
        yield


def _microseconds_of_a_call() -> float:
    count = 1_000_000
    started = time.perf_counter()
    for _ in range(count):
        untimed(READ)
    with_calls = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(count):
        pass
    return 1e6 * (with_calls - (time.perf_counter() - started)) / count
