"""What `loader.stats` costs: the loader with it, and with all of it replaced by nothing."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from benchmarks.crops import pack_images
from benchmarks.measure import alternate, describe_list, medians, pillow_build, print_table, ratio, real_list, scratch
from benchmarks.measure import target as bound
from packtrain.core.options import StoreOptions
from packtrain.readers import Loader, concat, open_dataset
from packtrain.readers.dataset import ImageDataset
from packtrain.readers.laps import READ, Laps, Stage, untimed
from packtrain.readers.loader.stats import Meter
from packtrain.readers.loader.timekeeper import Timekeeper
from packtrain.readers.transforms import RandomCrop, RandomHorizontalFlip, RandomResizedCrop

REPETITIONS: Final = 9
BATCH: Final = 128
WORKERS: Final = 2
WITH: Final = "with stats"
WITHOUT: Final = "without"
MOST: Final = 1.01
TRAIN: Final = (RandomResizedCrop(224), RandomHorizontalFlip())
SQUARE: Final = StoreOptions(store="raw", resize="256x256")


class Case(NamedTuple):
    """A way to read.

    Attributes:
        store: How pixels are stored.
        transform: What they go through.
        images: In a pass.
        options: Of `open_dataset`.
    """

    store: StoreOptions
    transform: Any
    images: int
    options: dict[str, Any]


CASES: Final = {
    "JPEG, RandomResizedCrop(224), flip": Case(StoreOptions(), list(TRAIN), 6_400, {}),
    "raw 256x256, RandomResizedCrop(224), flip": Case(SQUARE, list(TRAIN), 25_600, {}),
    "raw 256x256, RandomCrop(224), batches at once": Case(SQUARE, RandomCrop(224), 128_000, {}),
    "raw 256x256, RandomCrop(224), one by one": Case(SQUARE, RandomCrop(224), 64_000, {"io": "pread"}),
}


def measure() -> dict[str, Any]:
    images = real_list()
    figures: dict[str, dict[str, list[tuple[float, float]]]] = {}
    calls: dict[str, float] = {}
    with scratch() as folder:
        for number, (name, case) in enumerate(CASES.items()):
            dataset = _dataset(images, folder / str(number), case)
            calls[name] = _calls(dataset) if case.options or "batches at once" not in name else 0.0
            figures[name] = alternate(
                {WITH: partial(_pass, dataset, nullcontext), WITHOUT: partial(_pass, dataset, _nothing)}, REPETITIONS
            )
    rates = _column(figures, 0)
    processor = _column(figures, 1)
    over = {name: ratio(samples[WITH], samples[WITHOUT]) for name, samples in processor.items()}
    call = _seconds_of_a_call()
    return {
        **pillow_build(),
        "input": describe_list(images),
        "settings": {"batch_size": BATCH, "workers": WORKERS, "repetitions": REPETITIONS, "order": "alternating"},
        "images_per_second": rates,
        "processor_microseconds_per_image": processor,
        "median_images_per_second": {name: medians(samples) for name, samples in rates.items()},
        "median_processor_microseconds": {name: medians(samples) for name, samples in processor.items()},
        "processor_time_over_none": over,
        "rate_over_none": {name: ratio(samples[WITH], samples[WITHOUT]) for name, samples in rates.items()},
        "untimed_calls_per_image": calls,
        "nanoseconds_per_untimed_call": 1e9 * call,
        "targets": [
            bound(f"{name}: processor time over none", over[name] + _untimed(calls[name], call, samples), most=MOST)
            for name, samples in processor.items()
        ],
    }


def show(result: dict[str, Any]) -> None:
    rows = []
    for name, middle in result["median_processor_microseconds"].items():
        calls = result["untimed_calls_per_image"][name] * result["nanoseconds_per_untimed_call"] / 1000
        rows.append(
            [
                name,
                f"{result['median_images_per_second'][name][WITH]:,.0f}",
                f"{result['rate_over_none'][name]:.3f}",
                f"{middle[WITH]:.2f}",
                f"{result['processor_time_over_none'][name]:.4f}",
                f"{calls:.2f}",
            ]
        )
    print_table(
        ["", "images/s", "over none", "processor us per image", "over none", "of that, calls in vain, us"], rows
    )


def _dataset(images: Path, folder: Path, case: Case) -> ImageDataset:
    dataset = open_dataset(pack_images(images, folder, case.store), case.transform, **case.options)
    return concat([dataset] * (case.images // len(dataset) + 1)).subset(range(case.images))


def _pass(dataset: ImageDataset, within: Callable[[], Any]) -> tuple[float, float]:
    """Images per second after the first batch; processor time of all processes per image, in microseconds."""
    before = _processor()
    with within(), Loader(dataset, BATCH, num_workers=WORKERS, multiprocessing_context="fork") as loader:
        batches = iter(loader)
        _held = next(batches)
        started = time.perf_counter()
        # A batch is held until the next one is there, as in a training loop.
        for _held in batches:
            pass
        rate = (len(dataset) - BATCH) / (time.perf_counter() - started)
    return rate, 1e6 * (_processor() - before) / len(dataset)


def _processor() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


@contextmanager
def _nothing() -> Iterator[None]:
    """Nobody measures anything. Samples are still asked for by way of functions that would tell their stages."""

    def begin(keeper: Timekeeper, row: int) -> Laps:
        keeper.note(row)
        return untimed

    with ExitStack() as patches:
        for name in ("idle", "begin_batch", "account"):
            patches.enter_context(patch.object(Timekeeper, name, lambda keeper: None))
        patches.enter_context(patch.object(Timekeeper, "end", lambda keeper, stage: None))
        patches.enter_context(patch.object(Timekeeper, "begin", begin))
        patches.enter_context(patch.object(Meter, "timed", lambda meter, batches: batches))
        patches.enter_context(patch.object(Meter, "collected", lambda meter, batches: batches))
        patches.enter_context(patch.object(Meter, "count", lambda meter, samples, skipped=0: None))
        yield


def _calls(dataset: ImageDataset) -> float:
    """How often a sample tells that a stage has ended."""
    told: list[Stage] = []
    dataset.item(0, [0.5] * dataset.draws, None, told.append)
    return float(len(told))


def _seconds_of_a_call() -> float:
    count = 1_000_000
    started = time.perf_counter()
    for _ in range(count):
        untimed(READ)
    with_calls = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(count):
        pass
    return (with_calls - (time.perf_counter() - started)) / count


def _untimed(calls: float, seconds: float, samples: dict[str, list[float]]) -> float:
    """Share of a sample's processor time that calls in vain take: they are in both figures."""
    return 1e6 * calls * seconds / medians(samples)[WITHOUT]


def _column(figures: dict[str, dict[str, list[tuple[float, float]]]], column: int) -> dict[str, dict[str, list[float]]]:
    return {
        name: {case: [sample[column] for sample in rounds] for case, rounds in samples.items()}
        for name, samples in figures.items()
    }
