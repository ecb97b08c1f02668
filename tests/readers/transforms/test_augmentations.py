"""The law of the augmentations: for the same decisions, torchvision's pixels, for both of its versions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.dice import dice
from helpers.effects import images
from helpers.fusing import numbers
from helpers.pixels import assert_same, noise
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image

import packtrain.transforms as ours_all
from packtrain._codec import geometry
from packtrain._codec.effects.operation import image_of
from packtrain._codec.geometry import apply, size_after
from packtrain._readers.transforms.base import Transform
from packtrain._readers.transforms.recognition import recognised
from packtrain._readers.transforms.warps import inverse_matrix
from packtrain.errors import UsageError

SEEDS = st.integers(0, 2**32 - 1)
CHANCES = st.sampled_from([0.0, 0.3, 0.9, 1.0])
WARPS = st.sampled_from(["nearest", "bilinear", "bicubic"])
FILTERS = st.sampled_from(sorted(geometry.FILTERS))
SIDES = st.integers(1, 60)
FILLS = st.sampled_from([0, 200, None, (7,), (1, 2, 255)])
SPREADS = st.floats(0, 2)
PAIRS = st.tuples(st.floats(0, 1), st.floats(1, 2))
Numbers = Sequence[float]
Feed = Callable[[Any, Numbers], Numbers]


def fed_jitter(ours: Any, random: Numbers) -> Numbers:
    ranges = (ours.brightness, ours.contrast, ours.saturation, ours.hue)
    return [*random[:4], *(number for number, used in zip(random[4:], ranges, strict=True) if used is not None)]


def fed_affine(ours: Any, random: Numbers) -> Numbers:
    angle, x, y, scale, shear_x, shear_y = random
    shear = () if ours.shear is None else (shear_x, shear_y)[: len(ours.shear) // 2]
    return [angle, *([x, y] if ours.translate else ()), *([scale] if ours.scale else ()), *shear]


def fed(ours: Any, random: Numbers) -> Numbers:
    return random


SIMPLE: dict[str, tuple[st.SearchStrategy[dict[str, Any]], Feed]] = {
    "ColorJitter": (
        st.fixed_dictionaries(
            {},
            optional={
                "brightness": SPREADS | PAIRS,
                "contrast": SPREADS | PAIRS,
                "saturation": SPREADS | PAIRS,
                "hue": st.floats(0, 0.5) | st.tuples(st.floats(-0.5, 0), st.floats(0, 0.5)),
            },
        ),
        fed_jitter,
    ),
    "Grayscale": (st.sampled_from([{}, {"num_output_channels": 3}]), fed),
    **dict.fromkeys(
        ("RandomGrayscale", "RandomInvert", "RandomAutocontrast", "RandomEqualize", "RandomHorizontalFlip"),
        (st.fixed_dictionaries({}, optional={"p": CHANCES}), fed),
    ),
    "RandomVerticalFlip": (st.fixed_dictionaries({}, optional={"p": CHANCES}), fed),
    "CenterCrop": (st.fixed_dictionaries({"size": SIDES | st.tuples(SIDES, SIDES)}), fed),
    "Resize": (
        st.fixed_dictionaries({"size": SIDES | st.tuples(SIDES, SIDES)}, optional={"interpolation": FILTERS})
        | st.fixed_dictionaries({"size": SIDES, "max_size": st.integers(61, 90)}, optional={"interpolation": FILTERS}),
        fed,
    ),
    "RandomPosterize": (st.fixed_dictionaries({"bits": st.integers(1, 8)}, optional={"p": CHANCES}), fed),
    "RandomSolarize": (st.fixed_dictionaries({"threshold": st.floats(0, 256)}, optional={"p": CHANCES}), fed),
    "RandomAdjustSharpness": (
        st.fixed_dictionaries({"sharpness_factor": st.floats(0, 3)}, optional={"p": CHANCES}),
        fed,
    ),
    "RandomRotation": (
        st.fixed_dictionaries(
            {"degrees": st.floats(0, 360) | st.sampled_from([(90, 90), (-180.5, 3)])},
            optional={
                "interpolation": WARPS,
                "expand": st.booleans(),
                "center": st.tuples(st.floats(-9, 60), st.integers(-9, 60)),
                "fill": FILLS,
            },
        ),
        fed,
    ),
    "RandomAffine": (
        st.fixed_dictionaries(
            {"degrees": st.floats(0, 360) | st.sampled_from([0, (-10, 30)])},
            optional={
                "translate": st.tuples(st.floats(0, 1), st.floats(0, 1)),
                "scale": st.tuples(st.floats(0.3, 1), st.floats(1, 3)),
                "shear": st.floats(0, 80) | st.sampled_from([(-5, 30), (-50, 3, 0, 20)]),
                "interpolation": WARPS,
                "fill": FILLS,
                "center": st.tuples(st.floats(-9, 60), st.integers(-9, 60)),
            },
        ),
        fed_affine,
    ),
    "RandomPerspective": (
        st.fixed_dictionaries(
            {}, optional={"distortion_scale": st.floats(0, 1), "p": CHANCES, "interpolation": WARPS, "fill": FILLS}
        ),
        fed,
    ),
    "Pad": (
        st.fixed_dictionaries(
            {"padding": st.integers(0, 9) | st.sampled_from([(1, 2), (4, 3, 2, 1), [5]])},
            optional={
                "fill": st.sampled_from([0, 7, (1, 2, 255)]),
                "padding_mode": st.sampled_from(["constant", "edge", "reflect", "symmetric"]),
            },
        ),
        fed,
    ),
}
"""For each transform, its parameters, and the numbers in the order in which torchvision takes them."""


def made(package: Any, name: str, options: dict[str, Any]) -> Any:
    """A transform of torchvision."""
    if "interpolation" in options:
        from torchvision.transforms import InterpolationMode

        options = {**options, "interpolation": InterpolationMode(options["interpolation"])}
    return getattr(package, name)(**options)


def same(theirs: Any, name: str, options: dict[str, Any], version: int) -> Any:
    """Returns what is recognised in a transform of torchvision, which is what its parameters make of packtrain's."""
    (ours,) = recognised(theirs) or pytest.fail(f"{theirs} is not known")
    versioned = {"version": version} if hasattr(ours, "version") else {}
    assert repr(ours) == repr(getattr(ours_all, name)(**options, **versioned))
    return ours


def suits(pixels: npt.NDArray[np.uint8], options: dict[str, Any]) -> bool:
    fill = options.get("fill")
    return not isinstance(fill, tuple) or len(fill) <= pixels.shape[2]


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def package(torchvision: Any, version: int) -> Any:
    from torchvision.transforms import v2

    return torchvision.transforms if version == 1 else v2


@pytest.mark.parametrize("name", SIMPLE)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), pixels=images(), seed=SEEDS)
def test_the_pixels_are_torchvisions(
    package: Any, version: int, name: str, data: Any, pixels: npt.NDArray[np.uint8], seed: int
) -> None:
    parameters, feed = SIMPLE[name]
    options = data.draw(parameters)
    assume(suits(pixels, options))
    if "max_size" in options:
        # torchvision fails for a side of 0 pixels.
        assume(int(options["max_size"] * min(pixels.shape[:2]) / max(pixels.shape[:2])) > 0)
    theirs, image = made(package, name, options), image_of(pixels)
    ours = same(theirs, name, options, version)
    random = numbers(seed, ours.draws)
    with dice(feed(ours, random)):
        try:
            expected = theirs(image)
        except RuntimeError:
            # torch does not solve it.
            assert name == "RandomPerspective" and min(image.size) == 1
            with pytest.raises(UsageError, match="too small"):
                ours.operations(*image.size, random)
            return
    assert_same(apply(image, ours.operations(*image.size, random)), expected)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    images(),
    SEEDS,
    st.integers(0, 4).map(lambda half: 2 * half + 1) | st.sampled_from([(3, 7), (5, 1)]),
    st.floats(0.1, 5) | st.tuples(st.floats(0.1, 1), st.floats(1, 5)),
)
def test_blurs_are_within_one_of_torchvisions(
    package: Any, version: int, pixels: npt.NDArray[np.uint8], seed: int, kernel: Any, sigma: Any
) -> None:
    wide, high = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    theirs = package.GaussianBlur(kernel, sigma)
    ours = recognised(theirs)[0]  # type: ignore[index]
    random = numbers(seed, ours.draws)
    if wide // 2 >= pixels.shape[1] or high // 2 >= pixels.shape[0]:
        with pytest.raises(RuntimeError, match="Padding size"), dice(random):
            theirs(image_of(pixels))
        with pytest.raises(UsageError, match="take a smaller kernel_size"):
            ours.operations(pixels.shape[1], pixels.shape[0], random)  # type: ignore[union-attr]
        return
    with dice(random):
        expected = theirs(image_of(pixels))
    found = apply(image_of(pixels), ours.operations(pixels.shape[1], pixels.shape[0], random))  # type: ignore[union-attr]
    assert found.mode == expected.mode
    assert np.abs(np.asarray(found, int) - np.asarray(expected, int)).max() <= 1


# Augmentations


def fed_trivial(theirs: Any, space: Any, random: Numbers, version: int) -> Numbers:
    name = list(space)[int(random[0] * len(space))]
    sign = random[2] if version == 1 else 1 - random[2]
    return [random[0], *([random[1]] if takes(space[name], version) else ()), *([sign] if space[name][1] else ())]


def fed_rand(theirs: Any, space: Any, random: Numbers, version: int) -> Numbers:
    feed = []
    for at in range(0, len(random), 2):
        name = list(space)[int(random[at] * len(space))]
        sign = random[at + 1] if version == 1 else 1 - random[at + 1]
        feed += [random[at], *([sign] if space[name][1] else ())]
    return feed


def fed_auto(theirs: Any, space: Any, random: Numbers, version: int) -> Numbers:
    if version == 1:
        return random
    feed, pairs = [random[0]], theirs._policies
    for at, (name, probability, _) in enumerate(pairs[int(random[0] * len(pairs))]):
        feed += [random[1 + at], *([random[3 + at]] if random[1 + at] <= probability and space[name][1] else ())]
    return feed


def takes(entry: Any, version: int) -> bool:
    """True if an operation has a magnitude."""
    return bool(entry[0].ndim) if version == 1 else entry[0](3, 5, 5) is not None


POLICIES: dict[str, tuple[st.SearchStrategy[dict[str, Any]], Callable[..., Numbers], tuple[Any, ...]]] = {
    "TrivialAugmentWide": (
        st.fixed_dictionaries(
            {},
            optional={"num_magnitude_bins": st.sampled_from([2, 5, 7, 17, 31]), "interpolation": WARPS, "fill": FILLS},
        ),
        fed_trivial,
        (31,),
    ),
    "RandAugment": (
        st.fixed_dictionaries(
            {},
            optional={"num_ops": st.integers(0, 4), "magnitude": st.integers(0, 30), "interpolation": WARPS}
            | {"fill": FILLS},
        ),
        fed_rand,
        (31, (9, 9)),
    ),
    "AutoAugment": (
        st.fixed_dictionaries(
            {},
            optional={
                "policy": st.sampled_from(["imagenet", "cifar10", "svhn"]),
                "interpolation": WARPS,
                "fill": FILLS,
            },
        ),
        fed_auto,
        (10, (9, 9)),
    ),
}


@pytest.mark.parametrize("name", POLICIES)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=3 * settings().max_examples,
)
@given(data=st.data(), pixels=images(), seed=SEEDS)
def test_the_augmentations_are_torchvisions(
    package: Any, version: int, name: str, data: Any, pixels: npt.NDArray[np.uint8], seed: int
) -> None:
    parameters, feed, arguments = POLICIES[name]
    options = data.draw(parameters)
    assume(suits(pixels, options))
    named = {**options}
    if "policy" in options:
        named["policy"] = package.AutoAugmentPolicy(options["policy"])
    theirs, image = made(package, name, named), image_of(pixels)
    ours = same(theirs, name, named, version)
    space = theirs._augmentation_space(*arguments) if version == 1 else theirs._AUGMENTATION_SPACE
    random = numbers(seed, ours.draws)
    with dice(feed(theirs, space, random, version)) as left:
        expected = theirs(image)
    assert not left, "every decision of theirs is one of ours"
    assert_same(apply(image, ours.operations(*image.size, random)), expected)


@pytest.mark.parametrize("wide", [True, False])
def test_every_magnitude_is_torchvisions(package: Any, version: int, wide: bool) -> None:
    """Each operation, with each of its magnitudes and both signs, on a picture in which each of them shows."""
    image = Image.merge("RGB", [Image.linear_gradient("L").resize((61, 47))] * 2 + [noise(1, 61, 47, "L")])
    for at in range(14):
        for number in range(31):
            for sign in (0.25, 0.75):
                if wide:
                    theirs = package.TrivialAugmentWide()
                    random = [(at + 0.5) / 14, (number + 0.5) / 31, sign]
                    space = theirs._augmentation_space(31) if version == 1 else theirs._AUGMENTATION_SPACE
                    feed = fed_trivial(theirs, space, random, version)
                else:
                    theirs = package.RandAugment(1, number)
                    random = [(at + 0.5) / 14, sign]
                    space = theirs._augmentation_space(31, (9, 9)) if version == 1 else theirs._AUGMENTATION_SPACE
                    feed = fed_rand(theirs, space, random, version)
                (ours,) = recognised(theirs) or ()
                assert isinstance(ours, Transform)
                with dice(feed):
                    expected = theirs(image)
                assert_same(apply(image, ours.operations(*image.size, random)), expected)


@pytest.mark.parametrize("side", ["width", "height"])
def test_translations_are_torchvisions_for_every_size(torchvision: Any, side: str) -> None:
    """They are rounded down to whole pixels, so that the last digit of a magnitude may move the image."""
    augment = torchvision.transforms.RandAugment()
    for size in range(1, 1400, 3):
        width, height = (size, 5) if side == "width" else (5, size)
        name = "TranslateX" if side == "width" else "TranslateY"
        for magnitude in (1, 9, 15, 20, 30):
            theirs = int(augment._augmentation_space(31, (height, width))[name][0][magnitude].item())
            random = [(3.5 if side == "width" else 4.5) / 14, 0.9]
            (ours,) = ours_all.RandAugment(1, magnitude).operations(width, height, random)
            x, y = (theirs, 0) if side == "width" else (0, theirs)
            assert ours.coefficients == (1, 0, x, 0, 1, y)  # type: ignore[union-attr]


@given(
    st.tuples(st.floats(-50, 500), st.floats(-50, 500)),
    st.floats(-400, 400),
    st.tuples(st.integers(-99, 99), st.integers(-99, 99)),
    st.floats(0.1, 5),
    st.tuples(st.floats(-80, 80), st.floats(-80, 80)),
)
def test_matrices_are_torchvisions_to_the_last_digit(
    torchvision: Any, center: Any, angle: float, shift: Any, scale: float, shear: Any
) -> None:
    """Pixels hardly ever show a last digit; the two versions differ in it."""
    from torchvision.transforms.v2.functional._geometry import _get_inverse_affine_matrix as second

    first = torchvision.transforms.functional._get_inverse_affine_matrix
    for version, theirs in ((1, first), (2, second)):
        ours = inverse_matrix(center, angle, shift, scale, shear, version)  # type: ignore[arg-type]
        assert ours == tuple(theirs([*center], angle, [*shift], scale, [*shear]))


# Choices


def test_choices_are_torchvisions(package: Any) -> None:
    image = noise(3, 40, 30)
    parts = [package.RandomHorizontalFlip(0.5), package.RandomRotation(90), package.RandomInvert(0.5)]
    nested = package.Compose([package.Resize(13), package.RandomCrop(9)])
    choices = [
        package.RandomApply(parts, 0.6),
        package.RandomChoice(parts),
        package.RandomChoice([*parts, nested], [0.2, 0.3, 0.0, 0.5]),
        package.RandomOrder([*parts, package.RandomVerticalFlip(0.4)]),
    ]
    for theirs in choices:
        (ours,) = recognised(theirs) or ()
        assert isinstance(ours, Transform)
        for seed in range(40):
            random = numbers(seed, ours.draws)
            feed = random
            if theirs is choices[2] and random[0] >= 0.5:
                # torchvision draws the top of a crop first.
                feed = [random[0], random[2], random[1]]
            with dice(feed):
                expected = theirs(image)
            assert_same(apply(image, ours.operations(*image.size, random)), expected)
            assert size_after(ours.operations(*image.size, random), *image.size) == expected.size


def test_choices_run_what_follows_on_the_size_that_came_before() -> None:
    inner = [ours_all.CenterCrop((20, 30)), ours_all.RandomCrop(20), ours_all.RandomRotation(9, expand=True)]
    chain = ours_all.RandomApply([inner, ours_all.RandomCrop(16)], 1)
    assert chain.geometric and chain.draws == 1 + 2 + 1 + 2
    assert chain(noise(1, 100, 90)).size == (16, 16)
    assert not ours_all.RandomApply([ours_all.RandomInvert()]).geometric


def test_choices_name_what_they_do_not_know() -> None:
    for name in ("RandomApply", "RandomChoice", "RandomOrder"):
        kind = getattr(ours_all, name)
        with pytest.raises(
            UsageError, match=rf"{name}: .* is not one of packtrain's transforms: take {name} from torch"
        ):
            kind([ours_all.RandomInvert(), [np.asarray]])
        with pytest.raises(UsageError, match=f"{name} needs at least one transform"):
            kind([])
        with pytest.raises(UsageError, match="expected a list of transforms"):
            kind(ours_all.RandomInvert())
    with pytest.raises(UsageError, match=r"p=\[1\]: expected a weight, 0 or more, for each of the 2"):
        ours_all.RandomChoice([ours_all.RandomInvert()] * 2, [1])
    for weights in ([0, 0], [-1, 2], "ab"):
        with pytest.raises(UsageError, match="expected a weight"):
            ours_all.RandomChoice([ours_all.RandomInvert()] * 2, weights)  # type: ignore[arg-type]
    chosen = ours_all.RandomChoice([ours_all.RandomInvert(), ours_all.RandomVerticalFlip(1)], [1, 0])
    assert len(chosen.operations(3, 3, [math.nextafter(1, 0), 0.9])) == 0, "never what has the weight 0"


# Parameters


EXTREME: list[Callable[[], Transform]] = [
    lambda: ours_all.ColorJitter(*[(3.4e38, 3.4028234e38)] * 3),
    lambda: ours_all.ColorJitter(*[(0, 1e-300)] * 3),
    lambda: ours_all.RandomAdjustSharpness(3.4028234e38, 1),
    lambda: ours_all.GaussianBlur(5, 1e-9),
    lambda: ours_all.GaussianBlur(5, 1e9),
    lambda: ours_all.RandomSolarize(-1e300, 1),
    lambda: ours_all.RandomRotation(1e300, expand=True),
    lambda: ours_all.RandomRotation(180, "bilinear", True, (1e9, -1e9)),
    lambda: ours_all.RandomAffine(1e300, (1, 1), (1e-300, 1e300), 90, center=(1e9, 1e9)),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", range(len(EXTREME)))
def test_the_most_extreme_parameters_work_on_every_image(number: int) -> None:
    transform, image = EXTREME[number](), noise(1, 9, 7)
    for random in np.random.default_rng(4).random((30, transform.draws)).tolist():
        apply(image, transform.operations(*image.size, random))
