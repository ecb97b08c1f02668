"""Decode, crop and resize on one core: packed datasets against the original files, and decoders against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import simplejpeg

from benchmarks.crops import (
    EVALUATE,
    TRAIN,
    drawn_steps,
    file_paths,
    load_file,
    microseconds,
    one_thread,
    pack_images,
    packed,
    plain,
    rates,
    require_same_pixels,
)
from benchmarks.measure import (
    alternate,
    describe_list,
    kind_of,
    medians,
    pillow_build,
    print_table,
    ratio,
    real_list,
    scratch,
    target,
)
from packtrain import open_dataset
from packtrain._codec.cut import cut
from packtrain._codec.decoders import decoder
from packtrain._codec.geometry import Crop, Operation
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset.store import RecordStore
from packtrain.transforms import Compose

REPETITIONS: Final = 11
PIPELINES: Final = {"RandomResizedCrop(224)": TRAIN, "Resize(256), CenterCrop(224)": EVALUATE}
FILES: Final = "files, Pillow"
CUT: Final = "simplejpeg: the cut alone"
AUTO: Final = "crop-ready, auto"
DECODERS: Final = ("extension", "simplejpeg", "pillow")
CONTESTANTS: Final = {
    AUTO: ("crop-ready", "auto"),
    **{f"crop-ready, {name}": ("crop-ready", name) for name in DECODERS},
    **{f"verbatim, {name}": ("verbatim", name) for name in ("extension", "pillow")},
}
"""Store mode and decoder."""


def measure() -> dict[str, Any]:
    one_thread()
    images = real_list()
    with scratch() as folder:
        for store in ("crop-ready", "verbatim"):
            pack_images(images, folder / store, StoreOptions(store=store))
        samples = {
            name: alternate(_pipeline(folder, images, transform), REPETITIONS) for name, transform in PIPELINES.items()
        }
        whole = alternate(_whole_images(folder), REPETITIONS)
        output = kind_of(folder)
    training = samples["RandomResizedCrop(224)"]
    ratios = {
        name: {case: ratio(times[FILES], figures) for case, figures in times.items()} for name, times in samples.items()
    }
    over_cut = ratio(training[AUTO], training[CUT])
    return {
        **pillow_build(),
        "input": describe_list(images),
        "output": output,
        "auto": f"{decoder().name} ({decoder().version})",
        "settings": {"repetitions": REPETITIONS, "warm_up": 1, "order": "alternating", "threads": 1, "check": True},
        "microseconds": samples,
        "median_images_per_second": {name: rates(medians(times)) for name, times in samples.items()},
        "ratios_over_files": ratios,
        "time_over_cut_alone": over_cut,
        "whole_image_microseconds": whole,
        "median_whole_image_microseconds": medians(whole),
        "targets": [
            target(f"{AUTO}: images/s over the files in full", ratios["RandomResizedCrop(224)"][AUTO], least=1.7),
            target(f"{AUTO}: time over simplejpeg on the cuts alone", over_cut, most=1.2),
        ],
    }


def show(result: dict[str, Any]) -> None:
    print(f"auto is {result['auto']}\n")
    for name, speeds in result["median_images_per_second"].items():
        factors = result["ratios_over_files"][name]
        rows = [[case, f"{1e6 / speed:.0f}", f"{speed:,.0f}", f"{factors[case]:.2f}"] for case, speed in speeds.items()]
        print_table([name, "us", "images/s", "over files"], rows)
        print()
    middle = result["median_whole_image_microseconds"]
    stores = ("crop-ready", "original")
    rows = [[name, *(f"{middle[f'{store}, {name}']:.0f}" for store in stores)] for name in DECODERS]
    print_table(["whole image, us", *stores], rows)


def _pipeline(folder: Path, images: Path, transform: Compose) -> dict[str, Callable[[], float]]:
    files = file_paths(images)
    cases: dict[str, Callable[[], float]] = {}
    for name, (store, decoder_name) in CONTESTANTS.items():
        require_same_pixels(folder / store, transform, load_file, files, decoder=decoder_name)
        cases[name] = packed(folder / store, transform, decoder=decoder_name)
    crop_ready = open_dataset(folder / "crop-ready")
    steps = drawn_steps(crop_ready, transform)
    cases[FILES] = plain(load_file, files, steps)
    if transform is TRAIN:
        cases[CUT] = partial(microseconds, simplejpeg.decode_jpeg, _cuts(crop_ready.store, steps))
    return cases


def _cuts(store: RecordStore, steps: Iterable[tuple[Operation, ...]]) -> list[bytes]:
    cuts = []
    for row, (crop, *_) in enumerate(steps):
        assert isinstance(crop, Crop)
        part = cut(store.record(row), crop.box)
        # What has no table of intervals is decoded whole.
        cuts.append(bytes(store.record(row) if part is None else part.data))
    return cuts


def _whole_images(folder: Path) -> dict[str, Callable[[], float]]:
    stores = {"crop-ready": RecordStore(folder / "crop-ready"), "original": RecordStore(folder / "verbatim")}
    return {
        f"{what}, {name}": partial(
            microseconds, partial(decoder(name).decode, mode="RGB"), [store.record(row) for row in range(len(store))]
        )
        for what, store in stores.items()
        for name in DECODERS
    }
