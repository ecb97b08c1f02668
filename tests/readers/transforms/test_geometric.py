"""Laws of the transforms: torchvision's pixels, random numbers as arguments, one flat list."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fusing import numbers
from helpers.pixels import assert_same, noise
from hypothesis import assume, example, given
from hypothesis import strategies as st
from PIL import Image

from packtrain._codec.geometry import FILTERS, Box, Crop, Flip, Scale, apply, size_after
from packtrain._readers.transforms.base import Transform
from packtrain._readers.transforms.compose import compose
from packtrain.errors import UsageError
from packtrain.transforms import (
    CenterCrop,
    Compose,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)

SEEDS = st.integers(0, 2**32 - 1)
EVERY_KIND: list[Transform] = [
    RandomResizedCrop(16),
    RandomResizedCrop((8, 12), scale=(0.5, 1), ratio=(0.5, 2), interpolation="bicubic"),
    Resize(20),
    Resize((20, 30), "nearest"),
    Resize(20, max_size=24),
    CenterCrop(16),
    CenterCrop((10, 80)),
    RandomCrop(3),
    RandomCrop((30, 20), padding=(1, 2), pad_if_needed=True, fill=(1, 2, 3)),
    RandomCrop(24, padding=[1, 2, 3, 4], pad_if_needed=True, padding_mode="reflect"),
    RandomHorizontalFlip(),
    RandomVerticalFlip(0.3),
]
ANY_KIND = st.sampled_from(EVERY_KIND)


def shout(image: Any) -> Any:
    return image


# Pixels


def test_no_side_becomes_nothing() -> None:
    """Where torchvision asks Pillow for a side of 0 pixels, and fails."""
    assert Resize(4, max_size=8)(noise(1, 900, 2)).size == (8, 1)
    assert size_after(RandomResizedCrop(4, (4, 4), (3, 4)).operations(1, 5, [0.5] * 22)[:1], 1, 5) == (1, 1)


# Random numbers as arguments


@pytest.mark.parametrize(("scale", "ratio"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.2, 0.6), (0.4, 3.0))])
@pytest.mark.parametrize(
    ("width", "height"),
    [(500, 375), (375, 500), (64, 64), (400, 100), (90, 300), (1000, 30), (20, 900), (7, 5)],
)
def test_random_resized_crop_is_torchvisions(
    torchvision: Any, width: int, height: int, scale: Any, ratio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision's own arithmetic, fallback included, fed with our random numbers."""
    feed: list[float] = []
    pending: list[float] = []

    def uniform(tensor: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
        return torch.tensor([float(low) + (float(high) - float(low)) * pending.pop(0)], dtype=torch.float64)

    def randint(low: int, high: int, size: tuple[int]) -> torch.Tensor:
        return torch.tensor([int(feed.pop() * high)])  # the top is drawn first, and is our last number

    monkeypatch.setattr(torch.Tensor, "uniform_", uniform)
    monkeypatch.setattr(torch, "randint", randint)
    image, ours = Image.new("L", (width, height)), RandomResizedCrop(224, scale, ratio)
    fallbacks = 0
    for random in np.random.default_rng(1).random((300, ours.draws)).tolist():
        pending[:], feed[:] = random[:20], random[20:]
        top, left, *size = torchvision.transforms.RandomResizedCrop.get_params(image, [*scale], [*ratio])
        fallbacks += len(feed) == 2
        assert ours.operations(width, height, random)[0] == Crop(Box(left, top, *reversed(size)))
    longish = max(width, height) / min(width, height)
    assert fallbacks == 0 if longish < 2 else fallbacks > 0 if longish > 5 else True


@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(0.1, 10), st.floats(1, 5), SEEDS)
@example(4, 3, 4 / 3, 1, 1)
def test_the_fallback_is_torchvisions(
    torchvision: Any, width: int, height: int, least: float, spread: float, seed: int
) -> None:
    """A part of four times the image's area is never found by chance."""
    scale, ratio = (4.0, 4.0), (least, least * spread)
    place = torchvision.transforms.RandomResizedCrop.get_params(Image.new("L", (width, height)), scale, ratio)
    assume(all(place[2:]))
    top, left, crop_height, crop_width = place
    ours = RandomResizedCrop(9, scale, ratio).operations(width, height, numbers(seed, 22))
    assert ours[0] == Crop(Box(left, top, crop_width, crop_height))


@pytest.mark.parametrize("p", [0, 1, 0.25])
@pytest.mark.parametrize(("kind", "horizontal"), [(RandomHorizontalFlip, True), (RandomVerticalFlip, False)])
def test_a_flip_is_decided_by_its_number(kind: Any, horizontal: bool, p: float) -> None:
    for number in (0.0, 0.2499, 0.25, 0.9999):
        assert kind(p).operations(5, 4, [number]) == ((Flip(horizontal),) if number < p else ())


@given(st.lists(ANY_KIND, max_size=4), st.integers(60, 80), st.integers(60, 80), SEEDS)
def test_the_steps_of_many_are_the_steps_of_each(
    transforms: list[Transform], width: int, height: int, seed: int
) -> None:
    chain = Compose([*transforms, shout])
    assert chain.draws == sum(transform.draws for transform in transforms)
    random = numbers(seed, chain.draws)
    image = expected = noise(seed, width, height)
    rest = random
    for transform in transforms:
        drawn, rest = rest[: transform.draws], rest[transform.draws :]
        expected = apply(expected, transform.operations(*expected.size, drawn))
    assert_same(apply(image, chain.operations(width, height, random)), expected)


# Compose


def test_lists_and_composes_are_one_flat_list() -> None:
    crop, flip, resize, center = RandomResizedCrop(8), RandomHorizontalFlip(), Resize(9), CenterCrop(4)
    inner = Compose([flip, (resize, [shout, center])])
    chain = compose([crop, inner, [], np.asarray])
    assert chain.fused == (crop, flip, resize)
    assert chain.foreign == (shout, center, np.asarray)
    assert chain.draws == 23
    assert compose(inner) is inner
    assert compose(crop).fused == (crop,) and not compose(crop).foreign
    assert compose(shout).foreign == (shout,) and not compose(shout).fused
    assert compose([]).fused == compose([]).foreign == ()


def test_compose_runs_everything_in_order() -> None:
    image = noise(1, 30, 20)
    chain = Compose([Resize((8, 9)), np.asarray, lambda pixels: pixels[::2]])
    np.testing.assert_array_equal(chain(image), np.asarray(image.resize((9, 8), Image.Resampling.BILINEAR))[::2])
    assert Compose([len])([1, 2]) == 2, "what comes first may be foreign, and takes what it likes"
    assert Compose([])(image) is image


@pytest.mark.parametrize(
    "chain", [Resize(3), RandomCrop(3), compose([Resize(3), shout])], ids=["one", "random", "many"]
)
def test_what_is_no_image_is_named(chain: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"expected a PIL image, got torch\.Tensor"):
        chain(torch.zeros(3, 8, 8))
    with pytest.raises(TypeError, match=r"expected a PIL image, got numpy\.ndarray"):
        chain(np.zeros((8, 8, 3)))


# Parameters


@pytest.mark.parametrize("name", FILTERS)
def test_interpolations_are_torchvisions(torchvision: Any, name: str) -> None:
    mode = torchvision.transforms.InterpolationMode(name)
    number = torchvision.transforms.functional.pil_modes_mapping[mode]
    for interpolation in (name, mode, number, Image.Resampling(number)):
        assert Resize((2, 3), interpolation).operations(9, 9) == (Scale(3, 2, number),)


def test_a_crop_larger_than_the_image_says_what_to_do() -> None:
    for size in ((8, 4), (4, 8)):
        with pytest.raises(UsageError, match=r"a crop of \d x \d pixels .* from an image of 5 x 5: set pad_if_needed="):
            RandomCrop(size)(noise(1, 5, 5))
        assert RandomCrop(size, pad_if_needed=True)(noise(1, 5, 5)).size == size[::-1]
        assert RandomCrop(size, padding=2)(noise(1, 5, 5)).size == size[::-1]


def test_torch_and_pillow_are_loaded_when_they_are_used() -> None:
    code = (
        "import sys\n"
        "from packtrain.transforms import CenterCrop, Compose, RandomInvert, RandomResizedCrop, TrivialAugmentWide\n"
        "Compose([RandomResizedCrop(9), CenterCrop(8)]).operations(50, 40, [0.5] * 22)\n"
        "Compose([TrivialAugmentWide(), RandomInvert(), len])\n"
        "assert not {'torch', 'PIL', 'torchvision'} & set(sys.modules)\n"
        "from PIL import Image\n"
        "CenterCrop(8)(Image.new('L', (9, 9)))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
