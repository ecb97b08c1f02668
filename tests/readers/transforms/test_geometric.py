"""Laws of the transforms: torchvision's pixels, random numbers as arguments, one flat list."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fusing import numbers
from helpers.pixels import assert_same, noise
from helpers.support import param_id
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

SIDES = st.integers(1, 60)
SEEDS = st.integers(0, 2**32 - 1)
NUMBERS = st.floats(0, 1, exclude_max=True)
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


@given(SIDES, SIDES, SIDES, SIDES, st.sampled_from(["RGB", "L"]), SEEDS)
@example(59, 60, 30, 31, "RGB", 1)
@example(60, 31, 25, 40, "L", 1)
def test_center_crop_is_torchvisions(
    torchvision: Any, width: int, height: int, crop_width: int, crop_height: int, mode: str, seed: int
) -> None:
    image, size = noise(seed, width, height, mode), (crop_height, crop_width)
    ours = CenterCrop(size)(image)
    assert_same(ours, torchvision.transforms.CenterCrop(size)(image))
    assert_same(ours, torchvision.transforms.functional.center_crop(image, [*size]))


@given(SIDES, SIDES, SIDES, st.none() | SIDES, st.sampled_from(sorted(FILTERS)), SEEDS)
@example(500, 375, 256, None, "bilinear", 1)
@example(375, 500, 256, 300, "bicubic", 1)
@example(31, 30, 60, None, "bilinear", 1)
@example(30, 31, 60, None, "bilinear", 1)
def test_resize_of_the_short_side_is_torchvisions(
    torchvision: Any, width: int, height: int, size: int, extra: int | None, name: str, seed: int
) -> None:
    image, max_size = noise(seed, width, height), None if extra is None else size + extra
    if max_size is not None:
        assume(int(max_size * min(width, height) / max(width, height)) > 0)
    theirs = torchvision.transforms.Resize(size, torchvision.transforms.InterpolationMode(name), max_size)
    assert_same(Resize(size, name, max_size)(image), theirs(image))


@given(SIDES, SIDES, SIDES, SIDES, st.sampled_from(sorted(FILTERS)), SEEDS)
def test_resize_of_both_sides_is_torchvisions(
    torchvision: Any, width: int, height: int, new_width: int, new_height: int, name: str, seed: int
) -> None:
    image, size = noise(seed, width, height), (new_height, new_width)
    theirs = torchvision.transforms.Resize(size, torchvision.transforms.InterpolationMode(name))
    assert_same(Resize(size, name)(image), theirs(image))


def test_no_side_becomes_nothing() -> None:
    """Where torchvision asks Pillow for a side of 0 pixels, and fails."""
    assert Resize(4, max_size=8)(noise(1, 900, 2)).size == (8, 1)
    assert size_after(RandomResizedCrop(4, (4, 4), (3, 4)).operations(1, 5, [0.5] * 22)[:1], 1, 5) == (1, 1)


# Random numbers as arguments


@given(SIDES, SIDES, st.lists(NUMBERS, min_size=22, max_size=22))
@example(1, 1, [math.nextafter(1, 0)] * 22)
@example(60, 1, [math.nextafter(1, 0)] * 22)
def test_random_resized_crop_lies_in_the_image(width: int, height: int, random: list[float]) -> None:
    crop, scale = RandomResizedCrop((5, 6), interpolation="bicubic").operations(width, height, random)
    assert isinstance(crop, Crop)
    box = crop.box
    assert box.left >= 0 and box.top >= 0 and box.width > 0 and box.height > 0
    assert box.left + box.width <= width and box.top + box.height <= height
    assert scale == Scale(6, 5, FILTERS["bicubic"])


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


@given(ANY_KIND, st.integers(24, 60), st.integers(24, 60), SEEDS)
def test_a_call_draws_from_torchs_generator_and_applies_the_steps(
    transform: Transform, width: int, height: int, seed: int
) -> None:
    image = noise(seed, width, height)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random = torch.rand(transform.draws, dtype=torch.float64).tolist()
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        assert_same(transform(image), apply(image, transform.operations(width, height, random)))
        assert torch.equal(torch.get_rng_state(), after), "as many numbers as it says"


@given(ANY_KIND, st.integers(24, 60), st.integers(24, 60), SEEDS)
def test_so_many_numbers_are_enough(transform: Transform, width: int, height: int, seed: int) -> None:
    random = numbers(seed, transform.draws + 1)
    assert transform.operations(width, height, random[:-1]) == transform.operations(width, height, random)


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


def test_the_transforms_work_in_torchvisions_compose(torchvision: Any) -> None:
    image, transforms = noise(1, 30, 20), torchvision.transforms
    chain = transforms.Compose([Resize(14), CenterCrop(12), transforms.PILToTensor()])
    expected = transforms.Compose([transforms.Resize(14), transforms.CenterCrop(12), transforms.PILToTensor()])
    assert torch.equal(chain(image), expected(image))
    ours = Compose([Resize(14), CenterCrop(12), transforms.PILToTensor()])
    assert torch.equal(ours(image), expected(image))


@pytest.mark.parametrize(
    "chain", [Resize(3), RandomCrop(3), compose([Resize(3), shout])], ids=["one", "random", "many"]
)
def test_what_is_no_image_is_named(chain: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"expected a PIL image, got torch\.Tensor"):
        chain(torch.zeros(3, 8, 8))
    with pytest.raises(TypeError, match=r"expected a PIL image, got numpy\.ndarray"):
        chain(np.zeros((8, 8, 3)))


# Parameters


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RandomResizedCrop", ((64, 32), (0.1234, 0.5), (0.5, 2.0), "bicubic", None)),
        ("Resize", (256,)),
        ("Resize", ((256, 128), "nearest-exact")),
        ("Resize", (256, "lanczos", 300, True)),
        ("CenterCrop", (224,)),
        ("CenterCrop", ((224, 200),)),
        ("RandomHorizontalFlip", ()),
        ("RandomVerticalFlip", (0.25,)),
    ],
)
def test_repr_is_torchvisions(torchvision: Any, name: str, arguments: tuple[Any, ...]) -> None:
    modes = torchvision.transforms.InterpolationMode
    theirs = [modes(argument) if isinstance(argument, str) else argument for argument in arguments]
    transform = getattr(torchvision.transforms, name)(*theirs)
    assert repr(globals()[name](*arguments)) == repr(transform)
    # With torchvision's own enumeration too.
    assert repr(globals()[name](*theirs)) == repr(transform)
    assert repr(Compose([transform, transform])) == repr(torchvision.transforms.Compose([transform, transform]))


def test_repr_hides_no_option() -> None:
    crop = RandomCrop(8, 2, True, (1, 2, 3), "edge")
    assert repr(crop) == ("RandomCrop(size=(8, 8), padding=2, pad_if_needed=True, fill=(1, 2, 3), padding_mode=edge)")


@pytest.mark.parametrize("name", FILTERS)
def test_interpolations_are_torchvisions(torchvision: Any, name: str) -> None:
    mode = torchvision.transforms.InterpolationMode(name)
    number = torchvision.transforms.functional.pil_modes_mapping[mode]
    for interpolation in (name, mode, number, Image.Resampling(number)):
        assert Resize((2, 3), interpolation).operations(9, 9) == (Scale(3, 2, number),)


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: RandomResizedCrop(0), "size=0: expected 1 or 2 whole numbers >= 1"),
    (lambda: RandomResizedCrop((1, 2, 3)), r"size=\(1, 2, 3\)"),
    (lambda: RandomResizedCrop(22.5), "size=22.5"),  # type: ignore[arg-type]
    (lambda: CenterCrop("12"), "size='12'"),  # type: ignore[arg-type]
    (lambda: CenterCrop([]), r"size=\[\]"),
    (lambda: RandomResizedCrop(8, scale=(1, 0.5)), r"scale=\(1, 0.5\): expected \(least, greatest\)"),
    (lambda: RandomResizedCrop(8, scale=(0, 0)), "scale="),
    (lambda: RandomResizedCrop(8, scale=0.5), "scale=0.5"),  # type: ignore[arg-type]
    (lambda: RandomResizedCrop(8, scale=(-0.1, 0.5)), "scale="),
    (lambda: RandomResizedCrop(8, scale=(0.5, math.inf)), "scale="),
    (lambda: RandomResizedCrop(8, ratio=(0, 1)), "ratio="),
    (lambda: RandomResizedCrop(8, ratio=(2, 1)), "ratio="),
    (lambda: RandomResizedCrop(8, ratio=(math.nan, 1)), "ratio="),
    (lambda: RandomResizedCrop(8, interpolation="cubic"), "interpolation='cubic': expected one of nearest,"),
    (lambda: Resize(8, interpolation=6), "interpolation=6: expected one of"),
    (lambda: Resize(8, interpolation=None), "interpolation=None: expected one of"),
    (lambda: Resize(8, interpolation=True), "interpolation=True: expected one of"),
    (lambda: Resize(8, antialias=False), "antialias=False: .* always antialiased"),
    (lambda: RandomResizedCrop(8, antialias=False), "antialias=False"),
    (lambda: Resize(8, max_size=8), "max_size=8 must be greater than the short side, size=8"),
    (lambda: Resize((8, 8), max_size=9), r"max_size=9 with size=\(8, 8\)"),
    (lambda: RandomCrop(8, padding=-1), "padding=-1: expected 1 or 2 or 4 whole numbers >= 0"),
    (lambda: RandomCrop(8, padding=(1, 2, 3)), "padding="),
    (lambda: RandomCrop(8, padding_mode="wrap"), "padding_mode='wrap': expected one of constant, edge,"),
    (lambda: RandomCrop(8, fill="red"), "fill='red'"),  # type: ignore[arg-type]
    (lambda: RandomCrop(8, fill=math.nan), "fill=nan"),
    (lambda: RandomHorizontalFlip(1.5), "p=1.5: expected a probability"),
    (lambda: RandomVerticalFlip(-0.1), "p=-0.1"),
    (lambda: compose(3), "3 is not a transform"),
    (lambda: compose([Resize(3), None]), "None is not a transform"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_parameters_are_named(number: int) -> None:
    make, message = BAD[number]
    with pytest.raises(UsageError, match=message):
        make()


def test_a_crop_larger_than_the_image_says_what_to_do() -> None:
    for size in ((8, 4), (4, 8)):
        with pytest.raises(UsageError, match=r"a crop of \d x \d pixels .* from an image of 5 x 5: set pad_if_needed="):
            RandomCrop(size)(noise(1, 5, 5))
        assert RandomCrop(size, pad_if_needed=True)(noise(1, 5, 5)).size == size[::-1]
        assert RandomCrop(size, padding=2)(noise(1, 5, 5)).size == size[::-1]


@pytest.mark.parametrize("transform", [*EVERY_KIND, Compose([*EVERY_KIND[:3], shout])], ids=param_id)
def test_transforms_travel_to_other_processes(transform: Transform | Compose) -> None:
    for other in (pickle.loads(pickle.dumps(transform)), copy.deepcopy(transform)):
        assert repr(other) == repr(transform)
        random = numbers(1, transform.draws)
        assert other.operations(50, 40, random) == transform.operations(50, 40, random)


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
