"""Laws of using fused transforms: random numbers, DataLoader, errors, `scaled`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fusing import numbers, pack_sources
from helpers.support import encoded, packed, param_id, picture, require_module
from helpers.transforms import to_tensor
from PIL import Image, ImageOps

from packtrain import PackedDataset, concat, open_dataset
from packtrain._core.options import StoreOptions
from packtrain.errors import CorruptRecord
from packtrain.transforms import (
    CenterCrop,
    Compose,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)

TRAINING = [RandomResizedCrop(24), RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def folder(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("used") / "out", "tar", store=StoreOptions())


@pytest.mark.parametrize(
    ("size", "later"),
    [
        ((20, 24), [CenterCrop((20, 24))]),
        ((20, 24), [CenterCrop((20, 24)), RandomInvert(1)]),
        ((20, 24), [CenterCrop((9, 13)), RandomHorizontalFlip(1)]),
        ((20, 24), [CenterCrop((30, 13)), RandomInvert(1), CenterCrop((13, 30))]),
        ((20, 24), [Pad((1, 2, 3, 4), (7, 8, 9)), Pad((1, 2, 3, 4), padding_mode="reflect")]),
        ((20, 24), [Resize((9, 30)), RandomInvert(1), Resize((9, 9), "lanczos")]),
        ((1, 24), [RandomVerticalFlip(1)]),
        ((1, 24), [RandomVerticalFlip(1), CenterCrop((1, 24)), RandomInvert(1)]),
    ],
    ids=param_id,
)
def test_what_moves_pixels_may_follow_an_effect(folder: Path, size: tuple[int, int], later: list[Any]) -> None:
    transform = [Resize(size), RandomInvert(1), *later]
    opened = open_dataset(folder, transform)
    for row in range(len(opened)):
        expected = np.asarray(Compose(transform)(opened.image(row).convert("RGB")))
        into = np.empty_like(expected)
        assert opened._samples.make(row, (0.0,) * opened._samples.draws, into)[0] is into
        np.testing.assert_array_equal(into, expected)
        np.testing.assert_array_equal(opened[row][0].permute(1, 2, 0), expected)


class TestRandomness:
    @pytest.mark.parametrize(
        ("transform", "draws"),
        [
            (TRAINING, 23),
            ([RandomCrop(9), RandomVerticalFlip(0), np.asarray], 3),
            ([Resize(30), CenterCrop(20)], 0),
            ([np.asarray], 0),
        ],
        ids=param_id,
    )
    def test_every_row_draws_equally_many_numbers(self, folder: Path, transform: Any, draws: int) -> None:
        opened = open_dataset(folder, transform)
        with torch.random.fork_rng():
            for row in range(len(opened)):
                torch.manual_seed(3)
                opened[row]
                after = torch.get_rng_state()
                torch.manual_seed(3)
                drawn = torch.rand(draws, dtype=torch.float64)
                assert torch.equal(torch.get_rng_state(), after)
                torch.manual_seed(3)
                ours, theirs = opened[row][0], opened._samples.make(row, drawn.tolist())[0]
                assert np.array_equal(ours, theirs)


class TestPickling:
    def test_a_dataset_pickles_with_its_transform(self, folder: Path) -> None:
        for transform in (TRAINING, Compose(TRAINING), TRAINING[0], [CenterCrop(20), to_tensor], to_tensor):
            opened: Any = open_dataset(folder, transform, scaled=True)  # type: ignore[arg-type]
            again: Any = pickle.loads(pickle.dumps(opened))
            random = numbers(1, opened._samples.compose.draws)
            for row in range(len(opened)):
                assert torch.equal(opened._samples.make(row, random)[0], again._samples.make(row, random)[0])


class TestChanges:
    def test_a_transform_may_be_set_later(self, folder: Path) -> None:
        opened: Any = open_dataset(folder)
        assert opened[0][0].mode == "RGB"
        opened.transform = crop = CenterCrop(10)
        assert opened.transform is crop
        assert opened[0][0].shape == (3, 10, 10)
        opened.transform = [CenterCrop(12), np.asarray]
        assert opened[0][0].shape == (12, 12, 3)
        opened.transform = None
        assert opened[0][0].mode == "RGB" and opened._samples.compose is None

    def test_subset_and_concat_keep_each_ones_own(self, folder: Path) -> None:
        small, large = open_dataset(folder, CenterCrop(4)), open_dataset(folder, CenterCrop(8))
        both = concat([small.subset([5, 6]), large, open_dataset(folder)])
        shapes = [tuple(both[row][0].shape) for row in (0, 1, 2, 13)]
        assert shapes == [(3, 4, 4), (3, 4, 4), (3, 8, 8), (3, 8, 8)]
        assert torch.equal(both[1][0], small[6][0]) and torch.equal(both[3][0], large[1][0])
        assert isinstance(both[14][0], Image.Image)
        assert both.image(0).tobytes() == small.image(5).tobytes()


class TestErrors:
    @pytest.mark.parametrize("fill", [(1, 2), (1, 2, 3, 4)])
    @pytest.mark.parametrize("name", ["auto", "pillow"])
    def test_a_fill_of_other_channels_is_a_wrong_call(self, folder: Path, fill: tuple[int, ...], name: str) -> None:
        opened = open_dataset(folder, RandomCrop(20, 4, fill=fill), decoder=name)
        with pytest.raises(ValueError, match=f"a fill of {len(fill)} values"):
            opened[0]

    @pytest.mark.parametrize("store", [StoreOptions("raw"), StoreOptions()], ids=param_id)
    def test_a_record_of_another_size_is_damaged(
        self, images: Path, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = packed(images, tmp_path / "out", "tar", store=store)
        whole, part = open_dataset(out, []), open_dataset(out, CenterCrop(30))
        for opened in (whole, part) if store.store == "raw" else (whole,):
            record = opened.store.record(4)
            monkeypatch.setattr(opened.store.field("image"), "_read", {3: record}.get)
            with pytest.raises(CorruptRecord, match="row 3 "):
                opened[3]


def difference(exact: torch.Tensor, scaled: torch.Tensor) -> float:
    """Mean absolute difference of two tensors of one shape."""
    assert (exact.shape, exact.dtype) == (scaled.shape, scaled.dtype)
    return float((exact.float() - scaled.float()).abs().mean())


# Where nothing is halved first: one side is not, or both are only after a flip or a pad.
UNSCALED: list[Any] = [
    Resize((126, 164)),
    Resize((124, 166)),
    [CenterCrop((250, 99)), Resize((30, 50))],
    RandomHorizontalFlip(1),
    [RandomHorizontalFlip(1), Resize(40)],
    CenterCrop(40),
    [],
    [RandomCrop(200, 30), Resize(20)],
]


class TestScaled:
    SIZE = (330, 250)
    PICTURES: dict[str, Callable[[], bytes]] = {  # noqa: RUF012
        "a.jpg": lambda: encoded(picture(1, 330, 250), quality=90),
        "b.jpg": lambda: encoded(picture(2, 330, 250), quality=90, subsampling="4:4:4", progressive=True),
        "c.jpg": lambda: encoded(picture(3, 330, 250, "L")),
        "d.png": lambda: encoded(picture(4, 330, 250), "PNG"),
        "e.jpg": lambda: encoded(picture(5, 330, 250).convert("CMYK")),
    }

    @pytest.fixture(
        scope="class",
        params=[StoreOptions(), StoreOptions("verbatim"), StoreOptions(mode="L"), StoreOptions("raw")],
        ids=param_id,
    )
    @classmethod
    def large(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        files = {name: make() for name, make in cls.PICTURES.items()}
        return pack_sources(tmp_path_factory.mktemp("large"), request.param, files)

    @staticmethod
    def pair(folder: Path, transform: Any, decoder: str = "auto") -> tuple[PackedDataset, PackedDataset]:
        return open_dataset(folder, transform), open_dataset(folder, transform, scaled=True, decoder=decoder)

    @pytest.mark.parametrize("decoder", ["auto", pytest.param("pillow", marks=pytest.mark.complete)])
    @pytest.mark.parametrize(
        "transform",
        [
            Resize(124),
            Resize((30, 41)),
            [Resize(60), CenterCrop(50), RandomHorizontalFlip()],
            [RandomResizedCrop(20), RandomHorizontalFlip()],
            RandomResizedCrop((9, 33), interpolation="bicubic"),
            [CenterCrop((201, 203)), CenterCrop((199, 197)), Resize(48)],
            *UNSCALED,
        ],
        ids=param_id,
    )
    def test_other_pixels_but_hardly(self, large: Path, transform: Any, decoder: str) -> None:
        exact, scaled = self.pair(large, transform, decoder)
        assert exact._samples.compose is not None
        differences = [
            difference(exact._samples.make(row, random)[0], scaled._samples.make(row, random)[0])
            for row in range(len(exact))
            for seed in range(4)
            for random in (numbers(seed, exact._samples.compose.draws),)
        ]
        # Measured: up to 1.6 of 255 on these noisy pictures.
        assert max(differences) < 2.5
        assert (max(differences) == 0) == (exact.store.manifest.store.store == "raw" or transform in UNSCALED)

    def test_the_largest_scale_that_leaves_enough(self, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        exact, _ = self.pair(large, None)
        if exact.store.manifest.store.store == "raw":
            return
        for side, scale in {125: 2, 63: 2, 62: 4, 32: 4, 31: 8, 4: 8}.items():
            _, scaled = self.pair(large, Resize(side), "pillow")
            assert scaled._samples.compose is not None
            asked = []
            decode = type(scaled.decoder).decode

            def spy(self: Any, data: Any, mode: str, box: Any = None, scale: int = 1, decode: Any = decode) -> Any:
                asked.append(scale)  # noqa: B023
                return decode(self, data, mode, box, scale)

            monkeypatch.setattr(type(scaled.decoder), "decode", spy)
            scaled[0]
            monkeypatch.undo()
            assert asked == [scale], side

    def test_a_picture_stays_where_it_is(self, tmp_path: Path) -> None:
        """A shift by a part of a pixel would show in a ramp, where averaging does not."""
        ramp = Image.fromarray(np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None], (256, 256, 3)).copy())
        corner = Image.fromarray((np.asarray(ramp) // 2 + np.asarray(ramp.rotate(90)) // 2).astype(np.uint8))
        folder = pack_sources(tmp_path, StoreOptions(), {"a.jpg": encoded(corner, quality=100, subsampling=0)})
        for seed in range(20):
            exact, scaled = self.pair(folder, RandomResizedCrop(12, (0.1, 0.9)))
            random = numbers(seed, 22)
            ours, theirs = scaled._samples.make(0, random)[0].float(), exact._samples.make(0, random)[0].float()
            assert abs(float((ours - theirs).mean())) < 0.7
            assert difference(exact._samples.make(0, random)[0], scaled._samples.make(0, random)[0]) < 1


@pytest.mark.parametrize("store", ["crop-ready", "coefficients", "verbatim"])
@pytest.mark.parametrize("decoder", ["extension", "simplejpeg", "pillow"])
def test_an_image_brings_its_exif_whoever_decodes_it(tmp_path: Path, store: str, decoder: str) -> None:
    if decoder == "simplejpeg":
        require_module(decoder)
    exif = Image.Exif()
    exif[0x0112] = 6
    image = picture(3, 60, 40)
    (tmp_path / "a.jpg").write_bytes(encoded(image, exif=exif.tobytes(), icc_profile=b"a profile"))
    (tmp_path / "train.txt").write_text("a.jpg 0\n")
    out = packed(tmp_path / "train.txt", tmp_path / "out", "tar", store=StoreOptions(store))
    source = Image.open(tmp_path / "a.jpg")
    upright = ImageOps.exif_transpose(source)
    transforms: list[Any] = [ImageOps.exif_transpose, [CenterCrop((40, 60)), ImageOps.exif_transpose]]
    for transform in transforms:
        found = open_dataset(out, transform, decoder=decoder)[0][0]
        assert (found.size, found.tobytes()) == ((40, 60), upright.tobytes())
    whole = open_dataset(out, decoder=decoder).image(0)
    assert whole.getexif()[0x0112] == 6
    assert whole.info["icc_profile"] == b"a profile"
