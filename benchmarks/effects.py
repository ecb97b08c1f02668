"""Operations that change pixels, each alone: packtrain's on an array, against what torchvision does with a PIL image.

Both begin with pixels that are there, and end with the pixels of the result: packtrain's side copies the array, since
it changes arrays in place, and the other side gets a PIL image and makes one. The parameters are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from benchmarks.measure import alternate, medians, pillow_build, print_table, ratio, real_list, target
from benchmarks.rounds import REPETITIONS
from benchmarks.torchvision_import import import_torchvision
from benchmarks.workloads import file_paths
from packtrain._codec.effects.colour import Brightness, Contrast, Grey, Hue, Saturation
from packtrain._codec.effects.filters import GaussianBlur, PillowBlur, Sharpness
from packtrain._codec.effects.mixing import Mix, Overlay
from packtrain._codec.effects.operation import PixelOperation, pixels_of, style_of
from packtrain._codec.effects.tones import AutoContrast, Equalize, Invert, Posterize, Solarize, SolarizeAdd
from packtrain._codec.effects.warps import Affine, Perspective, Rotate

SIDES: Final = (224, 512)
SECONDS: Final = 0.1
QUICK_SECONDS: Final = 0.01
OURS: Final = "packtrain"
THEIRS: Final = "Pillow"
_FILTERS: Final = {"nearest": 0, "bilinear": 2, "bicubic": 3}
_SHEARED: Final = (1.0, 0.3, -33.5, 0.0, 1.0, 0.0)
_TILTED: Final = (0.9, 0.1, 4.5, -0.05, 1.1, 2.25, 0.0005, -0.0003)
_CHAINS: Final = ((Invert(),), (Solarize(128.0), Posterize(4)), (Brightness(0.7),))


@dataclass(frozen=True)
class Case:
    """An operation, and what torchvision calls for it."""

    effect: PixelOperation
    theirs: Callable[[Any, Any], Any]
    """Makes an image of an image, with the module `torchvision.transforms.functional`."""


def _pillow(effect: PixelOperation) -> Case:
    return Case(effect, lambda functional, image: effect.through_pillow(image))


CASES: Final = {
    "brightness": Case(Brightness(1.4), lambda functional, image: functional.adjust_brightness(image, 1.4)),
    "contrast": Case(Contrast(1.4), lambda functional, image: functional.adjust_contrast(image, 1.4)),
    "saturation": Case(Saturation(1.4), lambda functional, image: functional.adjust_saturation(image, 1.4)),
    "hue": Case(Hue(0.1), lambda functional, image: functional.adjust_hue(image, 0.1)),
    "grey": Case(Grey(), lambda functional, image: functional.rgb_to_grayscale(image, 3)),
    "posterize": Case(Posterize(4), lambda functional, image: functional.posterize(image, 4)),
    "solarize": Case(Solarize(128.0), lambda functional, image: functional.solarize(image, 128.0)),
    "AugMix": _pillow(Mix(_CHAINS, (0.2, 0.5, 0.3), 0.6)),
    "AugMix, one blend after the other": _pillow(Overlay(_CHAINS, (0.2, 0.5, 0.3))),
    "solarize and add": _pillow(SolarizeAdd(64)),
    "invert": Case(Invert(), lambda functional, image: functional.invert(image)),
    "autocontrast": Case(AutoContrast(), lambda functional, image: functional.autocontrast(image)),
    "equalize": Case(Equalize(), lambda functional, image: functional.equalize(image)),
    "sharpness": Case(Sharpness(1.5), lambda functional, image: functional.adjust_sharpness(image, 1.5)),
    "Gaussian blur, 23 x 23": Case(
        GaussianBlur((23, 23), (1.1, 1.1)),
        lambda functional, image: functional.gaussian_blur(image, [23, 23], [1.1, 1.1]),
    ),
    "Pillow's Gaussian blur": _pillow(PillowBlur(1.1)),
    "Pillow's Gaussian blur, radius 12": _pillow(PillowBlur(12.0)),
    "Pillow's Gaussian blur, radius 40": _pillow(PillowBlur(40.0)),
    **{f"shear, {name}": _pillow(Affine(_SHEARED, number)) for name, number in _FILTERS.items()},
    **{f"rotation, {name}": _pillow(Rotate(17.0, number)) for name, number in _FILTERS.items()},
    **{f"rotation by {angle}": _pillow(Rotate(float(angle))) for angle in (0, 90, 180, 270)},
    **{f"perspective, {name}": _pillow(Perspective(_TILTED, number)) for name, number in _FILTERS.items()},
}


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Microseconds of each operation on images of several sizes, on one core; all of them take turns in each round."""
    import torch

    # What is measured is one core.
    torch.set_num_threads(1)
    repetitions, seconds = (1, QUICK_SECONDS) if quick else (REPETITIONS, SECONDS)
    images = {side: photograph(real_list(), side) for side in SIDES}
    calls = {
        (name, side, of): partial(_microseconds, call, seconds)
        for name, case in CASES.items()
        for side, image in images.items()
        for of, call in contestants(case, image).items()
    }
    found = alternate(calls, repetitions)
    times = {
        f"{name}, {side}": {of: found[name, side, of] for of in (OURS, THEIRS)} for name in CASES for side in SIDES
    }
    over = {name: ratio(sides[THEIRS], sides[OURS]) for name, sides in times.items()}
    return {
        **pillow_build(),
        "settings": {"seconds": seconds, "repetitions": repetitions, "warm_up": 1, "order": "alternating"},
        "operations": {name: {"of": type(case.effect).__name__, **_parameters(case)} for name, case in CASES.items()},
        "microseconds": times,
        "median_microseconds": {name: medians(sides) for name, sides in times.items()},
        "ratios": over,
        "targets": [target(f"{name}: speed over {THEIRS}", factor, least=1.0) for name, factor in over.items()],
    }


def show(result: dict[str, Any]) -> None:
    rows = []
    for name, operation in result["operations"].items():
        row = [name if operation["compiled"] else f"{name} (through Pillow)"]
        for side in SIDES:
            times = result["median_microseconds"][f"{name}, {side}"]
            row += [f"{times[OURS]:,.0f}", f"{times[THEIRS]:,.0f}", f"{result['ratios'][f'{name}, {side}']:.1f}"]
        rows.append(row)
    columns = [f"{of}, {side} x {side}" for side in SIDES for of in (OURS, THEIRS, "times as fast")]
    print_table(["us per image", *columns], rows)


def photograph(images: Path, side: int) -> Image.Image:
    """The first image of a list, `side` x `side` pixels."""
    with Image.open(file_paths(images)[0]) as file:
        return file.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)


def contestants(case: Case, image: Image.Image) -> Mapping[str, Callable[[], Any]]:
    """Both ways to run an operation on an image of mode RGB; each returns the result in its own form."""
    functional = import_torchvision().transforms.functional
    pixels = pixels_of(image)
    return {
        OURS: lambda: case.effect.on_pixels(pixels.copy()),
        THEIRS: lambda: case.theirs(functional, image),
    }


def deviation(case: Case, image: Image.Image) -> int:
    """The largest difference between the pixels of both ways."""
    calls = contestants(case, image)
    ours, theirs = calls[OURS](), pixels_of(calls[THEIRS]())
    return int(np.abs(ours.astype(np.int16) - theirs).max())


def _parameters(case: Case) -> dict[str, Any]:
    return {**asdict(case.effect), "compiled": style_of(type(case.effect)) is not None}  # type: ignore[call-overload]


def _microseconds(call: Callable[[], Any], seconds: float) -> float:
    # Processor time, so that whatever else runs hardly counts.
    count, started = 0, time.thread_time()
    while (elapsed := time.thread_time() - started) < seconds:
        call()
        count += 1
    return 1e6 * elapsed / count
