"""Laws of chance: what the augmentations draw is distributed as what torchvision draws.

As in `test_statistics`: fixed seeds, and limits that a right implementation would exceed with the stated probability.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from helpers.chance import chi_square, chi_square_limit, kolmogorov_smirnov, kolmogorov_smirnov_limit
from helpers.pixels import noise

import packtrain._readers.transforms.policies as policies_module
import packtrain._readers.transforms.warps as warps_module
import packtrain.transforms as ours_all
from packtrain._readers.transforms.base import Transform

FALSE_ALARM = 1e-6
OURS, THEIRS = 20000, 4000
WIDTH, HEIGHT = 120, 75


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    import random

    state = random.getstate()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        yield
    random.setstate(state)


def operations(transform: Transform, count: int = OURS, seed: int = 1) -> list[Any]:
    rows = np.random.default_rng(seed).random((count, transform.draws)).tolist()
    return [transform.operations(WIDTH, HEIGHT, row) for row in rows]


def drawn(draw: Callable[[], Any], count: int = THEIRS, seed: int = 2) -> list[Any]:
    with seeded(seed):
        return [draw() for _ in range(count)]


def assert_same_categories(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> None:
    seen = Counter(ours) + Counter(theirs)
    rare = {kind for kind, count in seen.items() if count < 10 * len(ours) / len(theirs)}
    # Too few to tell anything, by themselves or all together.
    merged = [[kind if kind not in rare else "rare" for kind in kinds] for kinds in (ours, theirs)]
    if sum(seen[kind] for kind in rare) < 40:
        merged = [[kind for kind in kinds if kind != "rare"] for kinds in merged]
    statistic, freedom = chi_square(*merged)
    assert freedom > 0
    assert statistic < chi_square_limit(freedom, FALSE_ALARM)


def assert_same_numbers(ours: Sequence[float], theirs: Sequence[float], name: str = "") -> None:
    distance = kolmogorov_smirnov(np.array(ours), np.array(theirs))
    assert distance < kolmogorov_smirnov_limit(len(ours), len(theirs), FALSE_ALARM), f"{name}: {distance:.4f}"


def test_colour_jitter(torchvision: Any) -> None:
    ranges = ((0.6, 1.4), (0.2, 3.0), (0.9, 1.0), (-0.1, 0.3))
    ours = [[(type(each).__name__, each) for each in made] for made in operations(ours_all.ColorJitter(*ranges))]
    theirs = drawn(lambda: torchvision.transforms.ColorJitter.get_params(*ranges))
    names = ("Brightness", "Contrast", "Saturation", "Hue")
    orders = [tuple(names[number] for number in order.tolist()) for order, *_ in theirs]
    assert_same_categories([tuple(name for name, _ in made) for made in ours], orders)
    for at, name in enumerate(names):
        factors = [next(each for kind, each in made if kind == name) for made in ours]
        values = [each.shift if name == "Hue" else each.factor for each in factors]
        assert_same_numbers(values, [params[1 + at] for params in theirs], name)
        # The order tells nothing about the factor.
        first = [value for value, made in zip(values, ours, strict=True) if made[0][0] == name]
        assert_same_numbers(first, values, name)


@pytest.mark.parametrize("p", [0.1, *(pytest.param(p, marks=pytest.mark.complete) for p in (0.5, 0.8))])
def test_what_happens_with_a_probability(torchvision: Any, p: float, complete: bool) -> None:
    count = 2000 if complete else 600
    # Of a small image, three corners of a perspective may lie on one line, for which torchvision finds no map.
    image, package = noise(1, 70, 60), torchvision.transforms
    for name, arguments in {
        "RandomGrayscale": (),
        "RandomInvert": (),
        "RandomSolarize": (99,),
        "RandomPerspective": (0.9,),
    }.items():
        ours = operations(getattr(ours_all, name)(*arguments, p=p))
        theirs = getattr(package, name)(*arguments, p=p)
        applied = drawn(lambda theirs=theirs: theirs(image) is not image, count)  # type: ignore[misc]
        assert_same_categories([bool(made) for made in ours], applied)
    applied = drawn(lambda: package.RandomApply([package.RandomInvert(1)], p)(image) is not image, count)
    assert_same_categories(
        [bool(made) for made in operations(ours_all.RandomApply([ours_all.RandomInvert(1)], p))], applied
    )


def test_blur_and_rotation(torchvision: Any) -> None:
    package = torchvision.transforms
    sigmas = [made[0].sigma[0] for made in operations(ours_all.GaussianBlur(3, (0.2, 1.7)))]
    assert_same_numbers(sigmas, drawn(lambda: package.GaussianBlur.get_params(0.2, 1.7)))
    angles = [made[0].angle for made in operations(ours_all.RandomRotation((-20, 50)))]
    assert_same_numbers(angles, drawn(lambda: package.RandomRotation.get_params([-20, 50])))


def test_affine(torchvision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def record(center: Any, angle: Any, shift: Any, scale: Any, shear: Any, version: Any) -> Any:
        seen.append((angle, *shift, scale, *shear))
        return (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)

    monkeypatch.setattr(warps_module, "inverse_matrix", record)
    degrees, translate, scale, shear = (-20, 50), (0.1, 0.3), (0.5, 2), (-5, 10, -20, 3)
    operations(ours_all.RandomAffine(degrees, translate, scale, shear))
    get = torchvision.transforms.RandomAffine.get_params
    theirs = [
        (angle, *shift, factor, *sheared)
        for angle, shift, factor, sheared in drawn(lambda: get(degrees, translate, scale, shear, [WIDTH, HEIGHT]))
    ]
    for ours, others, name in zip(zip(*seen, strict=True), zip(*theirs, strict=True), "axysxy", strict=True):
        if name in "xy" and isinstance(ours[0], int):
            assert_same_categories(ours, others)
        else:
            assert_same_numbers(ours, others, name)


def test_perspective(torchvision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def record(corners: Any, width: int, height: int) -> Any:
        seen.append([value for corner in corners for value in corner])
        return (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)

    monkeypatch.setattr(warps_module, "perspective", record)
    operations(ours_all.RandomPerspective(0.2, 1))
    get = torchvision.transforms.RandomPerspective.get_params
    theirs = [
        [value for corner in corners for value in corner] for _, corners in drawn(lambda: get(WIDTH, HEIGHT, 0.2))
    ]
    for ours, others in zip(zip(*seen, strict=True), zip(*theirs, strict=True), strict=True):
        assert_same_categories(ours, others)


@pytest.mark.complete
def test_choice_and_order(torchvision: Any) -> None:
    image = noise(1, 5, 5)
    path: list[int] = []

    class Step:
        def __init__(self, number: int) -> None:
            self.number = number

        def __call__(self, image: Any) -> Any:
            path.append(self.number)
            return image

    steps = [Step(0), Step(1), Step(2), Step(3)]
    ours = [ours_all.RandomSolarize(number, 1) for number in range(4)]

    def taken(transform: Any) -> tuple[int, ...]:
        path.clear()
        transform(image)
        return tuple(path)

    from torchvision.transforms import v2

    for package in (torchvision.transforms, v2):
        for weights in (None, [1, 2, 3, 4]):
            theirs = package.RandomChoice(steps, weights)
            found = operations(ours_all.RandomChoice(ours, weights))
            names = [tuple(int(each.threshold) for each in made) for made in found]
            assert_same_categories(names, drawn(lambda theirs=theirs: taken(theirs)))  # type: ignore[misc]
        theirs = package.RandomOrder(steps)
        found = operations(ours_all.RandomOrder(ours))
        names = [tuple(int(each.threshold) for each in made) for made in found]
        assert_same_categories(names, drawn(lambda theirs=theirs: taken(theirs)))  # type: ignore[misc]


# Augmentations

Decisions = list[tuple[tuple[str, float], ...]]


@pytest.fixture(params=[1, 2])
def decisions(
    torchvision: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Decisions, Decisions]]:
    """What ours and torchvision's decide: operations and magnitudes of each image."""
    from torchvision.transforms import autoaugment, v2

    version, path = request.param, list[tuple[str, float]]()
    package = torchvision.transforms if version == 1 else v2

    def record(name: str, magnitude: float, *arguments: Any, **more: Any) -> tuple[()]:
        if name != "Identity":
            path.append((name, magnitude))
        return ()

    def theirs_1(image: Any, name: str, magnitude: float, **more: Any) -> Any:
        record(name, magnitude)
        return image

    def theirs_2(self: Any, image: Any, name: str, magnitude: float, **more: Any) -> Any:
        # v2 has it relative to the greatest value of an image's type.
        return theirs_1(image, name, 255 * magnitude if name == "Solarize" else magnitude)

    monkeypatch.setattr(policies_module, "operation", record)
    monkeypatch.setattr(autoaugment, "_apply_op", theirs_1)
    monkeypatch.setattr(v2.RandAugment.__mro__[1], "_apply_image_or_video_transform", theirs_2)

    def both(name: str, *arguments: Any, policy: str | None = None) -> tuple[Decisions, Decisions]:
        given = (policy,) if policy else arguments
        ours = getattr(ours_all, name)(*given, version=version)
        theirs = getattr(package, name)(*((package.AutoAugmentPolicy(policy),) if policy else arguments))
        image = noise(1, WIDTH, HEIGHT)

        def taken(run: Callable[[], Any]) -> tuple[tuple[str, float], ...]:
            path.clear()
            run()
            return tuple((name, round(magnitude, 4)) for name, magnitude in path)

        rows = np.random.default_rng(5).random((OURS, ours.draws)).tolist()
        found = [taken(lambda row=row: ours.operations(WIDTH, HEIGHT, row)) for row in rows]  # type: ignore[misc]
        return found, drawn(lambda: taken(lambda: theirs(image)))

    return both


def names_of(made: Decisions) -> list[tuple[str, ...]]:
    return [tuple(name for name, _ in each) for each in made]


@pytest.mark.complete
def test_trivial_augment(decisions: Callable[..., tuple[Decisions, Decisions]]) -> None:
    ours, theirs = decisions("TrivialAugmentWide")
    assert_same_categories(names_of(ours), names_of(theirs))
    for name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast"):
        both = [[each[0][1] for each in made if each and each[0][0] == name] for made in (ours, theirs)]
        assert len(set(both[0])) == 61, "31 magnitudes and their negatives"
        assert_same_numbers(both[0], both[1], name)
    for name in ("Posterize", "Solarize"):
        both = [[each[0][1] for each in made if each and each[0][0] == name] for made in (ours, theirs)]
        assert_same_categories(both[0], both[1])
    signs = [[(each[0][0], np.sign(each[0][1])) for each in made if each and each[0][1]] for made in (ours, theirs)]
    assert_same_categories(signs[0], signs[1])


@pytest.mark.complete
def test_rand_augment(decisions: Callable[..., tuple[Decisions, Decisions]]) -> None:
    ours, theirs = decisions("RandAugment", 2, 11)
    assert_same_categories(names_of(ours), names_of(theirs))
    for at in (0, 1):
        assert_same_categories(*([each[at] for each in made if len(each) == 2] for made in (ours, theirs)))
    signs = [[tuple(value < 0 for _, value in each) for each in made] for made in (ours, theirs)]
    assert_same_categories(signs[0], signs[1])


@pytest.mark.complete
@pytest.mark.parametrize(
    "policy", ["imagenet", *(pytest.param(name, marks=pytest.mark.complete) for name in ("cifar10", "svhn"))]
)
def test_auto_augment(decisions: Callable[..., tuple[Decisions, Decisions]], policy: str) -> None:
    ours, theirs = decisions("AutoAugment", policy=policy)
    assert_same_categories(names_of(ours), names_of(theirs))
    assert_same_categories(ours, theirs)
