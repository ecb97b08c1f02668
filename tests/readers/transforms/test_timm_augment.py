"""timm's RandAugment, AutoAugment and 3-Augment: timm's pixels for the same decisions, and its decisions by chance.

For pixels timm itself runs, with `random` replaced by numbers that ours mean. So its levels, factors, fill colours and
filters are all in the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from helpers.effects import images
from helpers.pixels import assert_same, noise
from helpers.timm_augment import ScriptedOperation, only, posterize_without_bits
from hypothesis import assume, given
from hypothesis import strategies as st

from packtrain._codec.effects.operation import image_of
from packtrain._codec.geometry import apply
from packtrain._readers.transforms.recognition import recognised
from packtrain._readers.transforms.timm_augment import EFFECTS, LEVELS

NAMES = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "PosterizeIncreasing", "PosterizeOriginal"),
    *("Solarize", "SolarizeIncreasing", "SolarizeAdd", "Color", "ColorIncreasing", "Contrast", "ContrastIncreasing"),
    *("Brightness", "BrightnessIncreasing", "Sharpness", "SharpnessIncreasing", "ShearX", "ShearY", "TranslateX"),
    *("TranslateY", "TranslateXRel", "TranslateYRel", "Desaturate", "GaussianBlur", "GaussianBlurRand"),
)
WARPS = ("Rotate", "Shear", "Translate")
STRINGS = (
    "rand-m9-mstd0.5-inc1",
    "rand-m7",
    "rand-m9-n3-p0.8-mstd101",
    "rand-m20-mmax30-mstd2-inc1",
    "rand-m9-tweights-n4",
    "rand-m6-t3aw-n3-mstd1",
    "rand-m5-t3a",
    "original",
    "originalr-mstd0.5",
    "v0",
    "v0r-mstd1",
    "3a",
)

pytestmark = pytest.mark.usefixtures(posterize_without_bits.__name__)


def settings_of(timm: Any, string: str, **more: Any) -> Any:
    """The settings that timm makes of a string."""
    made = timm.data.auto_augment
    function = made.rand_augment_transform if string.startswith("rand") else made.auto_augment_transform
    return function(string, {"translate_const": 100, "img_mean": (124, 116, 104), **more})


def numbers(seed: int, rows: int, count: int) -> list[list[float]]:
    made: list[list[float]] = np.random.default_rng(seed).random((rows, count)).tolist()
    return made


@given(
    name=st.sampled_from(NAMES),
    pixels=images(),
    p=st.sampled_from([0.0, 0.5, 1.0]),
    magnitude=st.integers(0, 12) | st.floats(0, 25),
    deviation=st.sampled_from([0, 0.5, 3.0, math.inf]),
    limit=st.sampled_from([None, 10, 30]),
    filters=st.sampled_from([None, 0, 2, 3]),
    random=st.tuples(*[st.floats(2**-20, 1, exclude_max=True)] * 4),
)
def test_operations_give_timms_pixels(
    timm: Any,
    name: str,
    pixels: npt.NDArray[np.uint8],
    p: float,
    magnitude: float,
    deviation: float,
    limit: int | None,
    filters: int | None,
    random: tuple[float, ...],
) -> None:
    # timm counts a tie the other way.
    assume(random[0] != p)
    # Of images with sides of one pixel, pillow-simd's blur reads what lies beyond them.
    assume(not name.startswith("GaussianBlur") or min(pixels.shape[:2]) > 1)
    library = timm.data.auto_augment
    hparams: dict[str, Any] = {
        "translate_const": 40,
        "translate_pct": 0.3,
        "magnitude_std": deviation,
        "magnitude_max": limit,
    }
    hparams |= {"img_mean": (1, 2, 250)} | ({} if filters is None else {"interpolation": filters})
    operation = library.AugmentOp(name, p, magnitude, hparams)
    image = image_of(pixels)
    if image.mode == "L" and name.startswith(WARPS):
        # timm fails for a colour outside a grey image.
        return
    ours = only(library.RandAugment([operation], 1))
    with mock.patch.object(library, "random", ScriptedOperation(p, random)):
        expected = operation(image)
    assert_same(apply(image, ours.operations(*image.size, (0.5, *random))), expected)


def test_all_operations_of_timm_are_known(timm: Any) -> None:
    """Nothing is tested above that is not timm's, and nothing of timm's is left out."""
    library = timm.data.auto_augment
    assert set(NAMES) == set(library.NAME_TO_OP) == set(library.LEVEL_TO_ARG)
    for name in NAMES:
        assert only(library.RandAugment([library.AugmentOp(name)], 1)).geometric == name.startswith(WARPS)
    levels = {getattr(level, "func", level) for level in library.LEVEL_TO_ARG.values()} - {None}
    assert {level.__name__ for level in levels} == set(LEVELS)
    assert {made.__name__ for made in library.NAME_TO_OP.values()} >= set(EFFECTS)


@pytest.mark.parametrize("string", STRINGS)
def test_strings_give_timms_pixels(timm: Any, string: str) -> None:
    """The whole transform, with the choice of operations made by our numbers."""
    library, image = timm.data.auto_augment, noise(5, 61, 43)
    theirs = settings_of(timm, string)
    ours = only(theirs)
    choices = theirs.num_layers if string.startswith("rand") else 1
    for random in numbers(6, 40, ours.draws):
        if string.startswith("rand"):
            chosen = iter(_choice(theirs, random[:choices]))
        else:
            chosen = iter(theirs.policy[int(random[0] * len(theirs.policy))])
        expected = image
        for at, operation in enumerate(chosen):
            script = ScriptedOperation(operation.prob, random[choices + 4 * at : choices + 4 * at + 4])
            with mock.patch.object(library, "random", script):
                expected = operation(expected)
        assert_same(apply(image, ours.operations(*image.size, random)), expected)


def _choice(theirs: Any, random: Sequence[float]) -> Iterator[Any]:
    """timm's operations that a row of numbers means."""
    weights = [1.0] * len(theirs.ops) if theirs.choice_weights is None else list(theirs.choice_weights)
    for number in random:
        ends = np.cumsum(weights) / sum(weights)
        at = int((ends <= number).sum())
        if theirs.choice_weights is not None:
            weights[at] = 0.0
        yield theirs.ops[at]


def test_what_does_something_of_its_own_stays_foreign(timm: Any) -> None:
    library = timm.data.auto_augment
    for change in (
        {"aug_fn": lambda image, **settings: image},
        {"level_fn": lambda level, hparams: (level,)},
        {"kwargs": {"fillcolor": 128, "resample": 3}},
        {"kwargs": {"fillcolor": (1, 2, 3), "resample": 1}},
    ):
        theirs = settings_of(timm, "rand-m9")
        vars(theirs.ops[3]).update(change)
        assert recognised(theirs) is None, change
    theirs = settings_of(timm, "v0")
    theirs.policy[1][0] = SimpleNamespace(prob=1.0)
    assert recognised(theirs) is None
    # Too few of them have a weight, for which timm fails.
    assert recognised(library.RandAugment(settings_of(timm, "rand-m9").ops, 2, [1.0] + [0.0] * 14)) is None
