"""albumentations: called with arrays, without a detour over PIL images; seeded like all others; masks follow.

A stand-in takes its place in most of these laws, so that they hold without the library too.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.datasets import make_dataset
from helpers.fusing import pack_sources, sources
from PIL import Image

from packtrain import PackedDataset, open_dataset
from packtrain._core.options import StoreOptions
from packtrain._readers.transforms.recognition.albumentations import OnArray
from packtrain.errors import UsageError
from packtrain.testing import LoadingContract
from packtrain.transforms import CenterCrop, Compose, Views


class BasicTransform:
    """A transform as albumentations has them: it takes named arrays, and its own method seeds its own generator."""

    def __init__(self) -> None:
        self.random = np.random.default_rng()

    def set_random_seed(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def __call__(self, *args: Any, **targets: Any) -> dict[str, Any]:
        raise NotImplementedError


class DualTransform(BasicTransform):
    """One that moves pixels."""


BasicTransform.__module__ = DualTransform.__module__ = "albumentations.core.transforms_interface"


class Noise(BasicTransform):
    """Adds a random number to all values of the image."""

    def __call__(self, *args: Any, **targets: Any) -> dict[str, Any]:
        image = targets["image"]
        assert type(image) is np.ndarray and image.dtype == np.uint8
        return {**targets, "image": image + np.uint8(self.random.integers(256))}


class Mirrored(DualTransform):
    """Exchanges left and right of all that it gets, in views."""

    def __call__(self, *args: Any, **targets: Any) -> dict[str, Any]:
        return {
            name: [mask[:, ::-1] for mask in value] if name == "masks" else value[:, ::-1]
            for name, value in targets.items()
        }


@pytest.fixture(scope="module", params=["verbatim", "crop-ready", "raw"])
def packed_images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of images of all kinds."""
    files = {name: data for name, data in sources() if name.endswith(".jpg")}
    return pack_sources(tmp_path_factory.mktemp("images"), StoreOptions(request.param), files)


@pytest.mark.parametrize("fused", [[], [CenterCrop(40)]], ids=["alone", "cropped"])
def test_they_get_the_array_of_the_image(packed_images: Path, fused: list[Any]) -> None:
    images, plain = open_dataset(packed_images, [*fused, Mirrored()]), open_dataset(packed_images, [*fused, _as_image])
    for row in range(len(images)):
        expected = np.asarray(plain[row][0])
        found = images[row][0]
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, expected[:, ::-1])


def test_no_image_of_pillow_is_made(packed_images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_dataset(packed_images, [CenterCrop(40), Noise()])
    if opened.decoder.name != "extension":
        pytest.skip("this decoder makes images of Pillow")
    monkeypatch.setattr(Image, "frombuffer", None)
    monkeypatch.setattr(Image, "frombytes", None)
    assert opened[0][0].shape == (40, 40, 3)


def test_called_with_images_they_take_them_too() -> None:
    image = Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3))
    for transform in (Compose([Mirrored()]), Compose([CenterCrop((4, 5)), Mirrored()])):
        np.testing.assert_array_equal(transform(image), np.asarray(image)[:, ::-1])
    np.testing.assert_array_equal(Compose([Mirrored()])(image.convert("L")), np.asarray(image.convert("L"))[:, ::-1])
    assert [view.shape for view in Views([Mirrored(), CenterCrop(3)])(image)[:1]] == [(4, 5, 3)]


def test_what_is_shown_of_them() -> None:
    lines = str(Compose([CenterCrop(4), Mirrored()])).splitlines()
    assert [line[4:].split("  ")[0] for line in lines[1:3]] == ["fused", "on arrays"]


class TestWhatTheyDrawDependsOnThePositionAlone(LoadingContract):
    start_methods = ("fork",)

    @pytest.fixture
    def dataset(self, packed_images: Path) -> PackedDataset:
        return open_dataset(packed_images, [CenterCrop(8), Noise()])


def test_masks_move_with_the_image(tmp_path: Path) -> None:
    folder = make_dataset(tmp_path / "out")
    for fields in (("image", "depth"), ("image", "depth", "seg")):
        plain, mirrored = open_dataset(folder, fields=fields), open_dataset(folder, [Mirrored()], fields=fields)
        for row in (0, 1):
            before, after = plain[row], mirrored[row]
            np.testing.assert_array_equal(after.image, np.asarray(before.image)[:, ::-1])
            for name in fields[1:]:
                if getattr(before, name) is not None:
                    assert torch.equal(getattr(after, name), getattr(before, name).flip(1)), name


def test_a_second_image_would_not_move(tmp_path: Path) -> None:
    folder = make_dataset(tmp_path / "out")
    with pytest.raises(UsageError, match=r"would move the image, but not other"):
        open_dataset(folder, [Mirrored()], fields=("image", "other"))
    assert open_dataset(folder, [Noise()], fields=("image", "other"))[0].image.ndim == 3


def test_their_own_transforms_are_theirs() -> None:
    """Their crops and flips stay theirs: the resizes are OpenCV's, with other pixels."""
    if find_spec("albumentations") is None:
        pytest.skip("albumentations is not installed")
    import albumentations as library

    made = Compose([library.Compose([library.RandomResizedCrop((8, 8)), library.HorizontalFlip(), library.Blur()])])
    assert not made.fused and isinstance(made.foreign[0], OnArray) and made.foreign[0].moves
    assert not OnArray(library.Compose([library.Blur()])).moves
    image = Image.effect_noise((30, 20), 50).convert("RGB")
    assert made(image).shape == (8, 8, 3)
    pixels = np.asarray(image)
    mirrored = OnArray(library.Compose([library.HorizontalFlip(p=1)]))
    found, masks = mirrored.with_masks(image, [pixels[..., 0], pixels[..., 1].astype(np.int32)])
    np.testing.assert_array_equal(found, pixels[:, ::-1])
    for channel, mask in enumerate(masks):
        np.testing.assert_array_equal(mask, pixels[:, ::-1, channel])


def _as_image(image: Image.Image) -> Image.Image:
    return image
