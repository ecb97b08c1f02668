"""Parameters of transforms: wrong ones are named, and right ones travel to other processes and are shown."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from helpers.fusing import numbers
from helpers.pixels import assert_same, noise
from helpers.support import param_id

import packtrain.transforms as t
from packtrain._codec.geometry import apply
from packtrain._readers.transforms.base import Transform
from packtrain.errors import UsageError

# A name, its arguments, and what the error says.
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("RandomResizedCrop", (0,), {}, "size=0: expected 1 or 2 whole numbers >= 1"),
    ("RandomResizedCrop", ((1, 2, 3),), {}, r"size=\(1, 2, 3\)"),
    ("RandomResizedCrop", (22.5,), {}, "size=22.5"),
    ("CenterCrop", ("12",), {}, "size='12'"),
    ("FiveCrop", (0,), {}, "size=0"),
    ("TenCrop", ((3, 4, 5),), {}, "size="),
    ("RandomResizedCrop", (8, (1, 0.5)), {}, r"scale=\(1, 0.5\): expected \(least, greatest\)"),
    ("RandomResizedCrop", (8, (0, 0)), {}, "scale="),
    ("RandomResizedCrop", (8, 0.5), {}, "scale=0.5"),
    ("RandomResizedCrop", (8, (-0.1, 0.5)), {}, "scale="),
    ("RandomResizedCrop", (8, (0.5, math.inf)), {}, "scale="),
    ("RandomResizedCrop", (8,), {"ratio": (0, 1)}, "ratio="),
    ("RandomResizedCrop", (8,), {"ratio": (math.nan, 1)}, "ratio="),
    ("RandomResizedCrop", (8,), {"antialias": False}, "antialias=False: .* always antialiased"),
    ("Resize", (8, "cubic"), {}, "interpolation='cubic': expected one of nearest,"),
    ("Resize", (8, 6), {}, "interpolation=6: expected one of"),
    ("Resize", (8, True), {}, "interpolation=True: expected one of"),
    ("Resize", (8,), {"max_size": 8}, "max_size=8 must be greater than the short side, size=8"),
    ("Resize", ((8, 8),), {"max_size": 9}, r"max_size=9 with size=\(8, 8\)"),
    ("RandomCrop", (8, -1), {}, "padding=-1: expected 1 or 2 or 4 whole numbers >= 0"),
    ("Pad", ((1, 2, 3),), {}, "padding="),
    ("RandomCrop", (8,), {"padding_mode": "wrap"}, "padding_mode='wrap': expected one of constant, edge,"),
    ("RandomCrop", (8,), {"fill": "red"}, "fill='red'"),
    ("RandomCrop", (8,), {"fill": math.nan}, "fill=nan"),
    ("RandomHorizontalFlip", (1.5,), {}, "p=1.5: expected a probability"),
    ("RandomVerticalFlip", (-0.1,), {}, "p=-0.1"),
    ("RandomGrayscale", (2,), {}, "p=2: expected a probability"),
    ("RandomErasing", (1.5,), {}, "p="),
    ("ColorJitter", (-1,), {}, "brightness=-1: expected a number, 0 or more, or"),
    ("ColorJitter", (1e39,), {}, r"brightness=1e\+39: expected .* from 0 to 3.40282e\+38"),
    ("ColorJitter", (), {"contrast": (2, 1)}, r"contrast=\(2, 1\)"),
    ("ColorJitter", (), {"contrast": (1, 2, 3)}, r"contrast=\(1, 2, 3\)"),
    ("ColorJitter", (), {"contrast": (0, 1e39)}, r"contrast=\(0, 1e\+39\)"),
    ("ColorJitter", (), {"saturation": "0.1"}, "saturation='0.1'"),
    ("ColorJitter", (), {"hue": 0.6}, "hue=0.6: .* from -0.5 to 0.5"),
    ("Grayscale", (2,), {}, "num_output_channels=2: expected 1 or 3"),
    ("RandomPosterize", (9,), {}, "bits=9: expected a whole number from 1 to 8"),
    ("RandomSolarize", (math.nan,), {}, "threshold=nan"),
    ("RandomAdjustSharpness", (-0.1,), {}, "sharpness_factor=-0.1"),
    ("RandomAdjustSharpness", (1e39,), {}, r"sharpness_factor=1e\+39: expected a number from 0 to 3.40"),
    ("GaussianBlur", (4,), {}, "kernel_size=4: expected odd"),
    ("GaussianBlur", (3, (2, 1)), {}, "sigma="),
    ("GaussianBlur", (3, 1e39), {}, r"sigma=1e\+39: expected pixels, from 1e-09 to 1e\+09"),
    ("GaussianBlur", (3, (1e-46, 1)), {}, "sigma="),
    ("RandomRotation", (-1,), {}, "degrees=-1: expected an angle in degrees, 0 or more"),
    ("RandomRotation", ((3, 1),), {}, r"degrees=\(3, 1\)"),
    ("RandomRotation", ((1, 2, 3, 4),), {}, "degrees="),
    ("RandomRotation", (1, "lanczos"), {}, "interpolation='lanczos': expected nearest, bilinear or bicubic"),
    ("RandomRotation", (1,), {"center": (1,)}, "center="),
    ("RandomRotation", (1,), {"center": (0, 1e10)}, r"center=\(0, .*\(x, y\) in pixels, each from -1e\+09"),
    ("RandomRotation", (1,), {"expand": 1}, "expand=1"),
    ("RandomRotation", (1,), {"fill": (1, 2)}, r"fill=\(1, 2\)"),
    ("RandomRotation", (1,), {"fill": 256}, "fill=256"),
    ("RandomAffine", (1, (0, 1.1)), {}, "translate="),
    ("RandomAffine", (1, (-0.1, 1)), {}, "translate="),
    ("RandomAffine", (1,), {"scale": (0, 1)}, "scale="),
    ("RandomAffine", (1,), {"shear": (1, 2, 3)}, "shear="),
    ("RandomAffine", (1,), {"shear": (1, 2, 4, 3)}, "shear="),
    ("RandomAffine", (1,), {"version": 3}, "version=3: expected 1 or 2"),
    ("RandomPerspective", (1.1,), {}, "distortion_scale=1.1"),
    ("TrivialAugmentWide", (1,), {}, "num_magnitude_bins=1"),
    ("RandAugment", (-1,), {}, "num_ops=-1"),
    ("RandAugment", (2, 31), {}, "magnitude=31: expected a whole number from 0 to 30"),
    ("AutoAugment", ("image",), {}, "policy='image': expected one of imagenet, cifar10, svhn"),
    ("Normalize", ((0.5,), (1, 0, 1)), {}, "std="),
    ("Normalize", ("a", (1,)), {}, "mean="),
    ("Normalize", ([], (1,)), {}, "mean="),
    ("ConvertImageDtype", ("float32",), {}, "dtype="),
    ("ToDtype", (None,), {}, "dtype="),
    ("RandomErasing", (), {"scale": (0.1, 1.5)}, "scale="),
    ("RandomErasing", (), {"ratio": (2, 1)}, "ratio="),
    ("RandomErasing", (), {"value": "rand"}, "value="),
    ("RandomErasing", (), {"value": ()}, "value="),
    ("Compose", ([t.Resize(3), None],), {}, "None is not a transform"),
    ("Compose", ([t.Resize],), {}, "Resize is a class of transforms"),
    ("Views", ([],), {}, "at least one"),
    ("Views", (t.Resize(9),), {}, "a list with a transform for each view"),
    ("Views", ([t.Views([t.Resize(9)])],), {}, "Views inside of Views"),
]


@pytest.mark.parametrize(("name", "arguments", "options", "message"), WRONG, ids=param_id)
def test_wrong_ones_are_named(name: str, arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        getattr(t, name)(*arguments, **options)


EVERY_KIND: list[Transform] = [
    t.RandomResizedCrop((8, 12), scale=(0.5, 1), ratio=(0.5, 2), interpolation="bicubic"),
    t.Resize(20, max_size=24),
    t.CenterCrop((10, 80)),
    t.RandomCrop((30, 20), padding=(1, 2), pad_if_needed=True, fill=(1, 2, 3)),
    t.RandomHorizontalFlip(),
    t.RandomVerticalFlip(0.3),
    t.ColorJitter(0.4, 0.4, 0.4, 0.1),
    t.Grayscale(3),
    t.GaussianBlur(5),
    t.RandomGrayscale(0.5),
    t.RandomPosterize(3),
    t.RandomRotation(30, expand=True),
    t.RandomAffine(10, (0.1, 0.1), (0.5, 2), 10, "bilinear", (1, 2, 3)),
    t.RandomPerspective(p=0.9),
    t.Pad(3, 1),
    t.TrivialAugmentWide(),
    t.RandAugment(3, interpolation="bicubic"),
    t.AutoAugment("svhn", fill=3, version=2),
    t.RandomApply([t.RandomInvert(), [t.RandomEqualize()]]),
    t.RandomChoice([t.RandomAutocontrast(), t.RandomSolarize(9)], [1, 2]),
    t.RandomOrder([t.RandomAdjustSharpness(2), t.RandomHorizontalFlip()]),
]


@pytest.mark.parametrize("transform", EVERY_KIND, ids=lambda each: type(each).__name__)
def test_every_kind_travels_says_what_it_is_and_takes_a_picture(transform: Transform) -> None:
    random = numbers(1, transform.draws + 1)
    for other in (pickle.loads(pickle.dumps(transform)), copy.deepcopy(transform)):
        assert repr(other) == repr(transform)
        assert other.operations(50, 40, random[:-1]) == transform.operations(50, 40, random), "so many are enough"
    image = noise(1, 50, 40)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        random = torch.rand(transform.draws, dtype=torch.float64).tolist()
        after = torch.get_rng_state()
        torch.manual_seed(3)
        assert_same(transform(image), apply(image, transform.operations(50, 40, random)))
        assert torch.equal(torch.get_rng_state(), after), "as many numbers as it says"
    if not transform.geometric:
        assert transform(image).size == image.size
    names = {name: name for name in ("nearest", "bilinear", "bicubic", "svhn", "constant")}
    assert repr(eval(repr(transform), vars(t), names)) == repr(transform)
