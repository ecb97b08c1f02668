"""Laws of chance: what the transforms draw is distributed as what torchvision draws.

Thousands of draws from fixed seeds are compared. The limit of each comparison is the one that a right implementation
would exceed with the stated probability, were the seeds drawn anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from helpers.chance import chi_square, chi_square_limit, kolmogorov_smirnov, kolmogorov_smirnov_limit
from helpers.pixels import noise
from hypothesis import assume, example, given
from hypothesis import strategies as st
from PIL import Image

from packtrain._codec.geometry import Box, Crop, Operation
from packtrain._readers.transforms.base import Transform
from packtrain.transforms import RandomCrop, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip

FALSE_ALARM = 1e-6


def numbers(seed: int, count: int, draws: int) -> list[list[float]]:
    rows: list[list[float]] = np.random.default_rng(seed).random((count, draws)).tolist()
    return rows


def placed(steps: Sequence[Operation]) -> Box:
    """Where the first step, a crop, lies."""
    crop = steps[0]
    assert isinstance(crop, Crop)
    return crop.box


def our_boxes(transform: Transform, width: int, height: int, count: int) -> npt.NDArray[np.int64]:
    """Left, top, width, height of `count` random crops: int64 [count, 4]."""
    random = numbers(width * 1000 + height, count, transform.draws)
    return np.array([placed(transform.operations(width, height, row)) for row in random])


def their_boxes(
    draw: Callable[[Image.Image], tuple[int, int, int, int]], width: int, height: int, count: int
) -> npt.NDArray[np.int64]:
    """The same of torchvision's `get_params`, whose order is top, left, height, width."""
    image = Image.new("L", (width, height))
    with torch.random.fork_rng():
        torch.manual_seed(width * 1000 + height)
        return np.array([draw(image) for _ in range(count)])[:, [1, 0, 3, 2]]


QUANTITIES: dict[str, Callable[..., npt.NDArray[Any]]] = {
    "left": lambda left, top, width, height: left,
    "top": lambda left, top, width, height: top,
    "width": lambda left, top, width, height: width,
    "height": lambda left, top, width, height: height,
    "area": lambda left, top, width, height: width * height,
    "ratio": lambda left, top, width, height: width / height,
    "middle": lambda left, top, width, height: 2 * left + width,
    "left against top": lambda left, top, width, height: left - top,
}
SIZES = [(500, 375), (375, 500), (64, 64), (400, 100), (90, 300), (1000, 30), (20, 900), (7, 5)]


@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.2, 0.6), (0.4, 3.0))], ids=["default", "other"]
)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_random_resized_crop_has_torchvisions_statistics(
    torchvision: Any, width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], complete: bool
) -> None:
    """Two-sample Kolmogorov-Smirnov over eight quantities; all sizes together miss it with a probability of 1e-6."""

    def draw(image: Image.Image) -> tuple[int, int, int, int]:
        place: tuple[int, int, int, int] = torchvision.transforms.RandomResizedCrop.get_params(image, scale, ratio)
        return place

    draws = 4000 if complete else 1000
    theirs = their_boxes(draw, width, height, draws)
    ours = our_boxes(RandomResizedCrop(224, scale, ratio), width, height, 5 * draws)
    limit = kolmogorov_smirnov_limit(len(ours), len(theirs), FALSE_ALARM / (2 * len(SIZES) * len(QUANTITIES)))
    for name, quantity in QUANTITIES.items():
        distance = kolmogorov_smirnov(quantity(*ours.T), quantity(*theirs.T))
        assert distance < limit, f"{name}: {distance:.4f}"


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_random_resized_crop_on_the_same_numbers_is_torchvisions(
    torchvision: Any, width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sharper than statistics: torchvision's own arithmetic, fallback included, fed with our random numbers."""
    feed: list[float] = []
    pending: list[float] = []

    def uniform(tensor: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
        return torch.tensor([float(low) + (float(high) - float(low)) * pending.pop(0)], dtype=torch.float64)

    def randint(low: int, high: int, size: tuple[int]) -> torch.Tensor:
        return torch.tensor([int(feed.pop() * high)])  # the top is drawn first, and is our last number

    monkeypatch.setattr(torch.Tensor, "uniform_", uniform)
    monkeypatch.setattr(torch, "randint", randint)
    image = Image.new("L", (width, height))
    ours = RandomResizedCrop(224)
    fallbacks = 0
    for random in numbers(1, 300, ours.draws):
        pending[:], feed[:] = random[:20], random[20:]
        top, left, *size = torchvision.transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        fallbacks += len(feed) == 2
        assert placed(ours.operations(width, height, random)) == (left, top, *reversed(size))
    longish = max(width, height) / min(width, height)
    assert fallbacks == 0 if longish < 2 else fallbacks > 0 if longish > 5 else True


@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(0.1, 10), st.floats(1, 5), st.integers(0, 2**32 - 1))
@example(4, 3, 4 / 3, 1, 1)
def test_the_fallback_is_torchvisions(
    torchvision: Any, width: int, height: int, least: float, spread: float, seed: int
) -> None:
    """A part of four times the image's area is never found by chance."""
    scale, ratio = (4.0, 4.0), (least, least * spread)
    (random,) = numbers(seed, 1, 22)
    place = torchvision.transforms.RandomResizedCrop.get_params(Image.new("L", (width, height)), scale, ratio)
    assume(all(place[2:]))
    top, left, crop_height, crop_width = place
    ours = placed(RandomResizedCrop(9, scale, ratio).operations(width, height, random))
    assert ours == (left, top, crop_width, crop_height)


@pytest.mark.parametrize(("size", "options"), [((8, 6), {}), ((5, 4), {}), ((3, 2), {"pad_if_needed": True})])
def test_random_crop_has_torchvisions_places(torchvision: Any, size: tuple[int, int], options: dict[str, Any]) -> None:
    """Chi-square over all places."""
    crop, padded = (4, 5), (size[0] + 2 * max(0, 5 - size[0]), size[1] + 2 * max(0, 4 - size[1]))
    ours = RandomCrop(crop, **options)
    counted = [tuple(cast(Crop, ours.operations(*size, random)[-1])) for random in numbers(3, 20000, ours.draws)]
    image = Image.new("L", padded)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        drawn = [torchvision.transforms.RandomCrop.get_params(image, crop) for _ in range(5000)]
    statistic, freedom = chi_square(counted, [(Box(left, top, *crop[::-1]),) for top, left, *_ in drawn])
    places = (padded[0] - 5 + 1) * (padded[1] - 4 + 1)
    assert freedom == places - 1
    assert places == 1 or statistic < chi_square_limit(freedom, FALSE_ALARM)


@pytest.mark.parametrize("kind", [RandomHorizontalFlip, RandomVerticalFlip])
@pytest.mark.parametrize("p", [0.5, 0.2, 0.9])
def test_flips_have_torchvisions_frequency(torchvision: Any, kind: Any, p: float) -> None:
    """Chi-square over flipped or not."""
    theirs = getattr(torchvision.transforms, kind.__name__)(p)
    image = noise(1, 3, 3)
    counted = [bool(kind(p).operations(3, 3, random)) for random in numbers(5, 20000, 1)]
    with torch.random.fork_rng():
        torch.manual_seed(6)
        drawn = [theirs(image).tobytes() != image.tobytes() for _ in range(5000)]
    statistic, freedom = chi_square(counted, drawn)
    assert statistic < chi_square_limit(freedom, FALSE_ALARM)


def test_the_statistics_notice_a_difference() -> None:
    random = np.random.default_rng(1)
    left, right = random.random(4000), random.random(20000)
    limit = kolmogorov_smirnov_limit(4000, 20000, FALSE_ALARM / 128)
    assert kolmogorov_smirnov(left, right) < limit < kolmogorov_smirnov(left**1.2, right)
    for freedom, probability, quantile in ((1, 0.05, 3.841), (11, 0.001, 31.264), (2, 1e-6, -2 * math.log(1e-6))):
        assert chi_square_limit(freedom, probability) == pytest.approx(quantile, rel=0.1)
    for share, alike in ((0.5, True), (0.45, False)):
        statistic, freedom = chi_square(left < 0.5, right < share)
        assert (statistic < chi_square_limit(freedom, FALSE_ALARM)) == alike
