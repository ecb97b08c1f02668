"""Where the time of reading goes, per image: RandomResizedCrop(224) on one core, from tmpfs, checked."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.crops import SEED, TRAIN, microseconds, one_thread, pack_images
from benchmarks.measure import alternate, describe_list, kind_of, pillow_build, print_table, real_list, scratch
from benchmarks.stopwatch import REST, watching
from packtrain import PackedDataset, open_dataset
from packtrain._core.options import StoreOptions

REPETITIONS: Final = 11
CONTESTANTS: Final = {
    **{f"crop-ready, {name}": ("crop-ready", name) for name in ("extension", "simplejpeg", "pillow")},
    "verbatim, pillow": ("verbatim", "pillow"),
    "raw": ("raw", "pillow"),
}
"""Store mode and decoder."""
STAGES: Final = {
    "record": ["_readers.dataset.store:RecordStore.image"],
    "checksum": ["_readers.dataset.store:crc32c"],
    "random numbers, steps": ["_readers.transforms.executors:Pipeline.plan"],
    "cut": ["_codec.decode:cut"],
    "decode": [f"_codec.decode:RecordDecoder.{name}" for name in ("rgb", "region", "raw_pixels")],
    "resize": ["_readers.transforms.executors:array_resized", "_codec.geometry:Scale.apply"],
    "tensor": ["_readers.transforms.executors:_Array.finish"],
}
"""To decode is to decode the cut, and with Pillow to crop that; of a raw record, to find the crop. packtrain's own
resize writes to the tensor, Pillow's to an image."""


def measure() -> dict[str, Any]:
    one_thread()
    images = real_list()
    with scratch() as folder:
        for store in {store for store, _ in CONTESTANTS.values()}:
            resize = "short=256" if store == "raw" else None
            pack_images(images, folder / store, StoreOptions(store=store, resize=resize))
        cases: dict[str, Callable[[], Mapping[str, float]]] = {
            name: partial(_profile, folder / store, decoder_name) for name, (store, decoder_name) in CONTESTANTS.items()
        }
        stages = alternate(cases, REPETITIONS)
        output = kind_of(folder)
    return {
        **pillow_build(),
        "input": describe_list(images),
        "output": output,
        "settings": {"repetitions": REPETITIONS, "warm_up": 1, "order": "alternating", "threads": 1},
        "microseconds_per_image": stages,
        "median_microseconds_per_image": {name: _medians(figures) for name, figures in stages.items()},
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    middle = result["median_microseconds_per_image"]
    rows = [[stage, *(f"{middle[name][stage]:.1f}" for name in CONTESTANTS)] for stage in [*STAGES, REST]]
    rows.append(["all", *(f"{sum(middle[name].values()):.1f}" for name in CONTESTANTS)])
    print_table(["us per image", *CONTESTANTS], rows)


def _profile(path: Path, decoder_name: str) -> dict[str, float]:
    """Microseconds per image of each stage."""
    dataset = open_dataset(path, TRAIN, decoder=decoder_name)
    microseconds(dataset.record, range(len(dataset)))
    return stage_times(dataset)


def stage_times(dataset: PackedDataset) -> dict[str, float]:
    """Microseconds per image of each stage, and of everything else.

    Raises:
        StageError: See `watching`.
    """
    rows, raw = range(len(dataset)), dataset.store.manifest.store.store == "raw"
    torch.manual_seed(SEED)
    with watching(STAGES, absent=("cut",) if raw else ()) as watch:
        microseconds(dataset.__getitem__, rows)
    return {stage: seconds / len(rows) * 1e6 for stage, seconds in watch.seconds.items()}


def _medians(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}
