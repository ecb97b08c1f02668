"""Laws of FiveCrop and TenCrop: torchvision's crops in torchvision's order, of an image that is decoded once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fusing import decoded, pack_sources
from helpers.support import encoded, picture
from PIL import Image

import packtrain.transforms as ours_all
from packtrain import open_dataset
from packtrain._codec import resizing
from packtrain._codec.decode import RecordDecoder
from packtrain._core.options import StoreOptions
from packtrain.errors import UsageError
from packtrain.transforms import Compose, FiveCrop, RandomCrop, RandomHorizontalFlip, Resize, TenCrop

SOURCES = {
    "wide.jpg": encoded(picture(1, 211, 140), quality=90, subsampling="4:2:0"),
    "high.jpg": encoded(picture(2, 97, 160), quality=90, subsampling="4:4:4"),
    "progressive.jpg": encoded(picture(3, 120, 100), progressive=True),
    "odd.png": encoded(picture(4, 91, 67), "PNG"),
    # Its short side has the new length already.
    "small.png": encoded(picture(5, 75, 64), "PNG"),
}
STORES = {
    "crop-ready": StoreOptions(),
    "crop-ready, grey": StoreOptions(mode="L"),
    "coefficients": StoreOptions("coefficients"),
    "verbatim": StoreOptions("verbatim"),
    "raw": StoreOptions("raw"),
    "raw, grey": StoreOptions("raw", mode="L"),
}
# What makes them of packtrain's transforms or of torchvision's.
CROPS: list[Any] = [
    lambda t: t.FiveCrop(50),
    lambda t: t.TenCrop((41, 32)),
    lambda t: t.TenCrop(55, vertical_flip=True),
]
BEFORE: list[Any] = [
    lambda t, modes: [],
    lambda t, modes: [t.Resize(64)],
    lambda t, modes: [t.Resize(64, modes.BICUBIC, max_size=100)],
    lambda t, modes: [t.Resize((60, 61), modes.LANCZOS)],
]


@pytest.fixture(scope="module", params=STORES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_sources(tmp_path_factory.mktemp("crops"), STORES[request.param], SOURCES)


@pytest.fixture(scope="module")
def crop_ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_sources(tmp_path_factory.mktemp("crop ready"), StoreOptions(), SOURCES)


@pytest.mark.parametrize("decoder", ["auto", "pillow"])
@pytest.mark.parametrize("crops", CROPS, ids=["five", "ten", "ten, vertical"])
@pytest.mark.parametrize("before", BEFORE, ids=["alone", "resized", "bicubic", "lanczos"])
def test_they_are_torchvisions(torchvision: Any, folder: Path, before: Any, crops: Any, decoder: str) -> None:
    t = torchvision.transforms
    opened = open_dataset(folder, [*before(ours_all, t.InterpolationMode), crops(ours_all)], decoder=decoder)
    plain = open_dataset(folder)
    theirs = t.Compose([*before(t, t.InterpolationMode), crops(t)])
    for row in range(len(SOURCES)):
        found, label = opened[row]
        expected = theirs(plain.image(row))
        assert type(found) is tuple and len(found) == len(expected) and label == row
        for ours, image in zip(found, expected, strict=True):
            assert torch.equal(ours, t.functional.pil_to_tensor(image)), (row, before, crops)


@pytest.mark.parametrize("scaled", [False, True])
def test_shrunken_decoding_gives_what_it_gives_for_each_crop(crop_ready: Path, scaled: bool) -> None:
    whole = open_dataset(crop_ready, Resize(24), scaled=scaled)
    crops = open_dataset(crop_ready, [Resize(24), FiveCrop(20)], scaled=scaled)
    for row in range(len(SOURCES)):
        image, (first, *_, centre) = whole[row][0], crops[row][0]
        assert torch.equal(first, image[:, :20, :20]) and centre.shape == (3, 20, 20)


def test_random_transforms_before_them_do_the_same_to_all(crop_ready: Path) -> None:
    opened = open_dataset(crop_ready, [RandomCrop(50), RandomHorizontalFlip(), FiveCrop(50)])._samples
    assert opened.draws == 3
    found = [opened.make(0)[0] for _ in range(6)]
    assert all(torch.equal(views[0], view) for views in found for view in views)
    assert len({views[0].numpy().tobytes() for views in found}) > 1


@pytest.mark.skipif(resizing.style() is None, reason="nothing is resized by packtrain itself here")
def test_the_image_is_decoded_and_resized_once(crop_ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for owner, name in ((RecordDecoder, "rgb"), (RecordDecoder, "region"), (resizing, "array_resized")):
        call = getattr(owner, name)

        def spy(*arguments: Any, _name: str = name, _call: Any = call, **options: Any) -> Any:
            asked.append(_name)
            return _call(*arguments, **options)

        monkeypatch.setattr(owner, name, spy)
    open_dataset(crop_ready, [Resize(64), TenCrop(56, vertical_flip=True)])[0]
    assert asked == ["rgb", "array_resized"]
    asked.clear()
    open_dataset(crop_ready, TenCrop(56))[0]
    assert asked == ["rgb"]


def test_before_callables_of_others_they_make_a_tuple_of_images(torchvision: Any, crop_ready: Path) -> None:
    def stacked(crops: tuple[Image.Image, ...]) -> torch.Tensor:
        return torch.stack([torchvision.transforms.functional.pil_to_tensor(crop) for crop in crops])

    chain: list[Any] = [Resize(64), TenCrop(50), stacked]
    for given in (chain, torchvision.transforms.Compose(chain), Compose(chain)):
        found = open_dataset(crop_ready, given)[0][0]
        assert torch.equal(found, torch.stack(open_dataset(crop_ready, chain[:2])[0][0]))


@pytest.mark.parametrize("crops", CROPS, ids=["five", "ten", "ten, vertical"])
def test_called_with_an_image_they_are_torchvisions(torchvision: Any, crops: Any) -> None:
    image, ours = decoded(SOURCES["wide.jpg"], "RGB"), crops(ours_all)
    expected = crops(torchvision.transforms)(image)
    assert [np.asarray(each).tobytes() for each in ours(image)] == [np.asarray(each).tobytes() for each in expected]
    assert repr(pickle.loads(pickle.dumps(ours))) == repr(ours) == repr(crops(torchvision.transforms))


def test_an_image_that_is_too_small_is_an_error_that_says_what_to_do(crop_ready: Path) -> None:
    with pytest.raises(UsageError, match="put a Resize before them"):
        open_dataset(crop_ready, FiveCrop(120))[2]
