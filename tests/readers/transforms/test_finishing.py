"""Laws of the steps on tensors: what torchvision makes of the same image, bit for bit; erasing by its distribution."""

from __future__ import annotations

import hashlib
import pickle
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from helpers.chance import kolmogorov_smirnov_limit
from helpers.dice import dice
from helpers.support import packed, picture
from PIL import Image

from packtrain import open_dataset, transforms
from packtrain._codec.native import extension
from packtrain._core.options import StoreOptions
from packtrain._readers.transforms import finisher as finisher_module
from packtrain._readers.transforms.compose import Compose
from packtrain._readers.transforms.erasing import noise
from packtrain._readers.transforms.finisher import Finisher
from packtrain._readers.transforms.tensor_steps import FinishingStep
from packtrain.errors import UsageError
from packtrain.transforms import ConvertImageDtype, RandomErasing, ToDtype

FALSE_ALARM = 1e-6
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int16,
    torch.int32,
    torch.uint8,
    torch.int64,
)


def tails() -> dict[str, Callable[[Any, Any], list[Any]]]:
    """Ends of pipelines, by torchvision.transforms and torchvision.transforms.v2."""
    found: dict[str, Callable[[Any, Any], list[Any]]] = {
        "v1 floats": lambda v1, v2: [v1.ToTensor()],
        "v1": lambda v1, v2: [v1.ToTensor(), v1.Normalize(MEAN, STD)],
        "v1 one mean": lambda v1, v2: [v1.ToTensor(), v1.Normalize([0.5], [0.25], inplace=True)],
        "v1 tensors": lambda v1, v2: [v1.ToTensor(), v1.Normalize(torch.tensor(MEAN), np.array(STD))],
        "v1 bytes": lambda v1, v2: [v1.PILToTensor()],
        "v2 bytes": lambda v1, v2: [v2.PILToTensor(), v2.ToPureTensor()],
        "v2 old": lambda v1, v2: [v2.ToTensor(), v2.Normalize(MEAN, STD)],
        "v2 old dtype": lambda v1, v2: [v2.PILToTensor(), v2.ConvertImageDtype(), v2.Normalize(MEAN, STD)],
        "v2": lambda v1, v2: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
        "v2 unscaled": lambda v1, v2: [v2.ToImage(), v2.ToDtype(torch.float32), v2.Normalize([127.5], [64])],
        "both": lambda v1, v2: [v1.ToTensor(), v2.Normalize(MEAN, STD), v2.ToPureTensor()],
        "twice": lambda v1, v2: [v1.ToTensor(), v1.Normalize(MEAN, STD), v1.ConvertImageDtype(torch.float16)],
        "back": lambda v1, v2: [v1.ToTensor(), v2.ToDtype(torch.uint8, scale=True)],
        "down": lambda v1, v2: [v1.PILToTensor(), v1.ConvertImageDtype(torch.int16), v1.ConvertImageDtype(torch.uint8)],
        "down 2": lambda v1, v2: [
            v2.ToImage(),
            v2.ToDtype(torch.int32, scale=True),
            v2.ToDtype(torch.int8, scale=True),
        ],
    }
    for dtype in TYPES:
        found[f"v1 {dtype}"] = partial(_converted, 1, dtype)
        found[f"v2 {dtype}"] = partial(_converted, 2, dtype)
        if dtype.is_floating_point:
            found[f"v1 {dtype} normalised"] = partial(_normalised, dtype)
    return found


def _converted(version: int, dtype: torch.dtype, v1: Any, v2: Any) -> list[Any]:
    if version == 1:
        return [v1.PILToTensor(), v1.ConvertImageDtype(dtype)]
    return [v2.ToImage(), v2.ToDtype(dtype, scale=True)]


def _normalised(dtype: torch.dtype, v1: Any, v2: Any) -> list[Any]:
    return [*_converted(1, dtype, v1, v2), v1.Normalize(MEAN, STD)]


TAILS = tails()


@pytest.fixture(params=["extension", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the extension and without it."""
    if request.param == "torch":
        monkeypatch.setattr(finisher_module, "extension", None)
    elif extension is None:
        pytest.skip("packtrain's C extension is not built")
    return str(request.param)


@pytest.fixture(scope="module")
def folder(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("finishing") / "out", "tar", store=StoreOptions())


def tail_of(torchvision: Any, name: str) -> list[Any]:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TAILS[name](v1, v2)


def through(steps: list[Any], image: Any) -> Any:
    for step in steps:
        image = step(image)
    return image.as_subclass(torch.Tensor)


def every_byte(mode: str = "RGB") -> Image.Image:
    """An image in which each channel has every value."""
    values = np.random.default_rng(3).permuted(np.tile(np.arange(256, dtype=np.uint8), (3, 2)), axis=1)
    return Image.fromarray(values.reshape(3, 16, 32).transpose(1, 2, 0).copy()).convert(mode)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and torch.equal(found, expected)


@pytest.mark.parametrize("name", TAILS)
def test_every_byte_becomes_what_torchvision_makes_of_it(torchvision: Any, way: str, name: str) -> None:
    steps, image = tail_of(torchvision, name), every_byte()
    recognised = Compose(steps)
    assert not recognised.fused and not recognised.foreign
    expected = through(steps, image)
    pixels = np.array(image)
    finisher = Finisher(recognised.finishing)
    assert finisher.dtype(3) == expected.dtype
    assert same(finisher.image(torch.from_numpy(pixels.copy()).permute(2, 0, 1), ()), expected)
    batch = finisher.batch(torch.from_numpy(np.stack([pixels] * 2)).permute(0, 3, 1, 2), ())
    assert same(batch, torch.stack([expected] * 2)) and batch.is_contiguous(memory_format=torch.channels_last)
    if expected.dtype != torch.bfloat16:
        out = np.empty((2, *pixels.shape), torch.empty(0, dtype=expected.dtype).numpy().dtype)
        finisher.array(np.stack([pixels] * 2), (), out)
        assert same(torch.from_numpy(out).permute(0, 3, 1, 2), batch)
    # packtrain's own steps, called one after the other as torchvision's would be.
    assert same(through(list(recognised.finishing), image), expected)


def test_values_are_not_scaled_to_a_dtype_without_a_range(torchvision: Any) -> None:
    steps = [torchvision.transforms.PILToTensor(), torchvision.transforms.ConvertImageDtype(torch.bool)]
    given = Compose(steps)
    assert given.finishing == () and len(given.foreign) == 2
    image = every_byte()
    assert torch.equal(given(image), steps[1](steps[0](image)))
    for make in (ConvertImageDtype, lambda dtype: ToDtype(dtype, scale=True)):
        for dtype in (torch.bool, torch.complex64):
            with pytest.raises(UsageError, match="scaled to its range"):
                make(dtype)
    assert ToDtype(torch.bool).dtype == torch.bool


def test_a_grey_image_has_one_channel(torchvision: Any, way: str) -> None:
    from torchvision.transforms import v2

    steps = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.4], [0.2])]
    image = every_byte("L")
    found = Finisher(Compose(steps).finishing).image(torch.from_numpy(np.array(image))[None], ())
    assert same(found, through(steps, image))


def test_samples_are_those_of_torchvision(torchvision: Any, way: str, folder: Path) -> None:
    """Bit for bit, contiguous as torchvision's."""
    from torchvision import transforms as v1

    tail = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    dataset = open_dataset(folder, [transforms.CenterCrop((20, 24)), *tail])
    for row in range(len(dataset)):
        found, expected = dataset[row][0], through([v1.CenterCrop((20, 24)), *tail], dataset.image(row))
        assert same(found, expected) and found.is_contiguous()
    assert dataset[0][0].data_ptr() != dataset[0][0].data_ptr()


def test_torchs_default_dtype_is_that_of_to_tensor(torchvision: Any) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        found = Finisher([transforms.ToTensor()]).image(torch.from_numpy(np.array(every_byte())).permute(2, 0, 1), ())
        assert same(found, through(tail_of(torchvision, "v1 floats"), every_byte()))
    finally:
        torch.set_default_dtype(torch.float32)


# --- what is recognised ---


def test_what_foreign_callables_follow_is_left_to_them(torchvision: Any, folder: Path) -> None:
    """They get what torchvision's steps make of a PIL image."""
    seen: list[torch.Tensor] = []

    def spy(image: torch.Tensor) -> torch.Tensor:
        seen.append(image)
        return image

    steps = [transforms.CenterCrop(16), *tail_of(torchvision, "v1"), spy]
    dataset = open_dataset(folder, steps)
    assert not dataset._samples.finishers and len(dataset._samples.compose.foreign) == 3  # type: ignore[union-attr]
    image = dataset[0][0]
    assert seen[0] is image and same(image, open_dataset(folder, steps[:-1])[0][0])


def test_what_has_a_meaning_of_its_own_is_not_recognised(torchvision: Any) -> None:
    from torchvision import transforms as v1
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    class Own(v1.Normalize):  # type: ignore[misc]
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        odd = [
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}),
            Own(MEAN, STD),
            v1.Normalize(MEAN, (1, 0, 1)),
            v1.RandomErasing(ratio=(3, 1)),
        ]
    for transform in odd:
        assert Compose([transform]).foreign == (transform,)


def test_the_parameters_are_torchvisions(torchvision: Any) -> None:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    for library in (v1, v2):
        for options in (
            {},
            {"p": 0.2, "scale": (0.1, 0.2), "ratio": (0.5, 2), "value": (1, 2, 3)},
            {"value": "random"},
        ):
            assert Compose([library.RandomErasing(**options)]).finishing == (RandomErasing(**options),)
    assert RandomErasing() != RandomErasing(0.4) and len({RandomErasing(), RandomErasing()}) == 1


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([transforms.Normalize(MEAN, STD)], "put ToTensor"),
        ([transforms.ToTensor(), transforms.ToTensor()], "put it first"),
        ([transforms.ToTensor(), transforms.Normalize((0, 0), (1, 1))], "3 channels"),
        ([transforms.ToTensor(), RandomErasing(1, value=(0, 0))], "3 channels"),
        ([transforms.ToTensor(), transforms.ConvertImageDtype(torch.int64)], "more digits"),
    ],
)
def test_steps_that_do_not_fit_are_refused(folder: Path, steps: list[Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        open_dataset(folder, [transforms.CenterCrop(20), *steps])[0]


BYTES = ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])
RIGHT = "mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)"


def test_statistics_of_bytes_are_refused_for_images_from_0_to_1(torchvision: Any) -> None:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    wrong = transforms.Normalize(*BYTES)
    scaled: list[tuple[str, list[Any]]] = [
        ("ToTensor", [transforms.CenterCrop(20), transforms.ToTensor(), wrong]),
        ("ToTensor", [transforms.ToTensor(), RandomErasing(), wrong, str]),
        ("ToDtype", [transforms.ToImage(), transforms.ToDtype(torch.float32, scale=True), wrong]),
        ("ConvertImageDtype", [transforms.ConvertImageDtype(torch.float16), wrong]),
        ("ToTensor", [v1.ToTensor(), v1.Normalize(*BYTES)]),
        ("ToDtype", [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*BYTES)]),
    ]
    for name, steps in scaled:
        expected = (
            "mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375): "
            f"{name} has scaled the images to [0, 1] before Normalize: pass {RIGHT}"
        )
        with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
            Compose(steps)
    others: list[list[Any]] = [
        [transforms.ToDtype(torch.float32), wrong],
        [transforms.ToTensor(), transforms.ConvertImageDtype(torch.uint8), transforms.ToDtype(torch.float32), wrong],
        [transforms.ToTensor(), lambda image: image * 255, wrong],
        # From normalised values back to those before.
        [transforms.ToTensor(), transforms.Normalize(MEAN, STD), transforms.Normalize([-2.1], [4.4])],
    ]
    for steps in others:
        Compose(steps)


def test_a_pipeline_pickles() -> None:
    steps = [transforms.ToTensor(), transforms.Normalize(MEAN, STD), RandomErasing(value="random")]
    finisher = Finisher(steps, 3)
    finisher.dtype(3)
    assert pickle.loads(pickle.dumps(finisher)) == finisher
    assert Finisher(steps, 4) != finisher and Finisher(steps[:2], 3) == Finisher(steps[:2], 4)


# --- erasing ---


def rectangle(step: RandomErasing, width: int, height: int, random: list[float]) -> tuple[int, int, int, int] | None:
    found = step.rectangles(width, height, random)
    return found[0][0] if found else None


@pytest.mark.parametrize(("mean", "value"), [(0.0, 7.0), (0.5, (1.0, 2.0, 3.0))])
@pytest.mark.parametrize("where", ["bytes", "floats", "before Normalize"])
def test_a_rectangle_has_the_value(way: str, where: str, mean: float, value: Any) -> None:
    """Only that, and what follows acts on it as torchvision's steps would."""
    erasing = RandomErasing(1, value=value)
    to_floats: list[FinishingStep] = [transforms.ToTensor(), transforms.Normalize([mean], [0.5])]
    steps = {
        "bytes": [erasing, *to_floats],
        "floats": [*to_floats, erasing],
        "before Normalize": [to_floats[0], erasing, to_floats[1]],
    }[where]
    random = np.random.default_rng(8).random((4, 2 + erasing.draws)).tolist()
    pixels = np.stack([np.array(picture(seed)) for seed in range(4)])
    expected = []
    for image, numbers in zip(pixels, random, strict=True):
        left, top, width, height = rectangle(erasing, 48, 36, numbers[2:]) or (0, 0, 0, 0)
        tensor = torch.from_numpy(image).permute(2, 0, 1).clone()
        for step in steps:
            if step is erasing:
                filling = torch.tensor(value).reshape(-1, 1, 1).to(tensor.dtype)
                tensor[:, top : top + height, left : left + width] = filling
            else:
                tensor = step.finish(tensor, ())
        expected.append(tensor)
    finisher = Finisher(steps, 2)
    found = finisher.batch(torch.from_numpy(pixels.copy()).permute(0, 3, 1, 2), random)
    assert same(found, torch.stack(expected))
    out = np.empty(pixels.shape, np.float32)
    finisher.array(pixels.copy(), random, out)
    assert same(torch.from_numpy(out).permute(0, 3, 1, 2), found)
    for number, image in enumerate(pixels):
        assert same(finisher.image(torch.from_numpy(image.copy()).permute(2, 0, 1), random[number]), expected[number])


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_values_are_converted_as_torchvision_does(torchvision: Any, dtype: torch.dtype) -> None:
    from torchvision.transforms.v2 import functional

    values = (127.7, -3.2, 300.1)
    found = RandomErasing(1, value=values).finish(torch.zeros(3, 20, 20, dtype=dtype), [0.0] + [0.5] * 23)
    (left, right), (top, bottom) = ((one.min(), one.max() + 1) for one in found[0].nonzero().T.flip(0))
    filling = torch.tensor(values)[:, None, None]
    place = int(top), int(left), int(bottom - top), int(right - left)
    assert same(found, functional.erase(torch.zeros(3, 20, 20, dtype=dtype), *place, filling))


def test_a_call_leaves_its_argument_alone() -> None:
    image = torch.ones(3, 20, 30)
    found = RandomErasing(1)(image)
    assert found.min() == 0 and image.min() == 1


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (2, 2)])
def test_images_too_small_to_erase_stay(size: tuple[int, int]) -> None:
    image = torch.ones(3, *size)
    assert RandomErasing(1, scale=(0.9, 1)).finish(image, [0.0] + [0.999] * 23) is image and image.min() == 1


def test_noise_never_changes() -> None:
    """Saved states rely on it."""
    found = hashlib.sha256(noise((3, 41, 37), 0.3125).astype("<f4").tobytes()).hexdigest()
    assert found == "66297979d10efc93ad13e72c06f141210a4d28950315d62eeb9b6274eba720a3"
    np.testing.assert_array_equal(noise((2, 5), 0.3125).ravel(), noise((3, 41, 37), 0.3125).ravel()[:10])
    assert not np.array_equal(noise((4,), 0.3125), noise((4,), 0.3125 + 2**-53))


def test_noise_is_normally_distributed() -> None:
    values = np.sort(np.concatenate([noise((3, 50, 50), seed / 64).ravel() for seed in range(20)]).astype(np.float64))
    expected = np.array([NormalDist().cdf(value) for value in values])
    distance = np.abs(expected - (np.arange(len(values)) + 0.5) / len(values)).max()
    assert distance < kolmogorov_smirnov_limit(len(values), 1 << 40, FALSE_ALARM)
    assert abs(values.mean()) < 0.02 and abs(values.std() - 1) < 0.02


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, (64, 64)),
        ({"ratio": (0.1, 10)}, (80, 30)),
        ({"p": 1, "scale": (0.97, 1), "ratio": (0.8, 1.25)}, (64, 64)),
    ],
    ids=["default", "long", "large"],
)
def test_rectangles_are_torchvisions(torchvision: Any, options: dict[str, Any], size: tuple[int, int]) -> None:
    """Where the first attempt fails, all do. `timm`'s tests have other numbers for each."""
    from torchvision.transforms import v2

    width, height = size
    step, theirs, image = RandomErasing(**options), v2.RandomErasing(**options), torch.zeros(1, height, width)
    for p, area, ratio, top, left in np.random.default_rng(5).random((500, 5)).tolist():
        found = rectangle(step, width, height, [p, *[area, ratio] * 10, top, left, 0.0])
        if p >= step.p:
            assert found is None
            continue
        with dice([area, ratio, top, left] if found else [area, ratio] * 10):
            drawn = theirs.make_params([image])
        assert found == (None if drawn["v"] is None else tuple(drawn[name] for name in ("j", "i", "w", "h")))
