"""Laws of undecoded images: what they stand for is what is decoded otherwise, pixel by pixel."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fusing import TRANSFORMS, numbers, pack_sources, sources
from helpers.jpegs import scan_bomb
from helpers.support import encoded, import_torchvision, param_id, picture
from helpers.undecoded import pixels
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packtrain import PackedDataset, open_dataset
from packtrain._codec.geometry import Flip
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset.image_dataset import samples_of
from packtrain._readers.dataset.samples import Samples
from packtrain._readers.transforms.undecoded import UPSIDE_DOWN, Undecoded, black
from packtrain.errors import CorruptRecord, UsageError
from packtrain.transforms import (
    CenterCrop,
    ColorJitter,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    Views,
)

SOURCES = dict(sources())
STORES = {
    "crop-ready": StoreOptions(),
    "coefficients": StoreOptions("coefficients"),
    "verbatim": StoreOptions("verbatim"),
    "jpeg": StoreOptions("jpeg", quality=60),
}
# Others look beyond the border of some images, resize twice, or crop what is upside down.
ALWAYS = {
    *("random resized crop", "the same, bicubic and small", "the same, nearest", "random resized crop and flip"),
    *("the same, perhaps", "resize and crop", "the same, bicubic", "resize", "resize to a limit"),
    *("mirrored", "upside down", "turned", "nothing"),
}
LARGE = ((640, 427), (333, 500), (97, 800), (129, 131))


@pytest.fixture(scope="module", params=STORES)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """All sources, packed in one of the ways."""
    return open_dataset(pack_sources(tmp_path_factory.mktemp("undecoded"), STORES[request.param], SOURCES))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """Crop-ready images with many restart intervals."""
    files = {f"{n}.jpg": encoded(picture(n, *size)) for n, size in enumerate(LARGE)}
    return open_dataset(pack_sources(tmp_path_factory.mktemp("large"), StoreOptions(), files))


def samples_in(dataset: PackedDataset) -> Samples:
    found = samples_of(dataset)
    assert found is not None
    return found


def both(dataset: PackedDataset, transform: Any, row: int, random: list[float]) -> tuple[Undecoded, torch.Tensor]:
    """The undecoded image of a row, and its pixels as they are decoded otherwise, uint8 [height, width, 3]."""
    samples = samples_in(dataset.with_transform(transform))
    random = random[: samples.draws]
    expected = samples.make(row, random, finish=False)[0]
    image = samples.undecoded().make(row, random, finish=False)[0]
    assert isinstance(image, Undecoded)
    return image, expected.permute(1, 2, 0)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_an_undecoded_image_stands_for_is_what_is_decoded_otherwise(dataset: PackedDataset, name: str) -> None:
    for row in range(len(dataset)):
        try:
            image, expected = both(dataset, TRANSFORMS[name](), row, numbers(row, 40))
        except UsageError:
            assert name not in ALWAYS
            continue
        assert image.plan.rest in ((), (UPSIDE_DOWN,))
        assert image.size == (expected.shape[1], expected.shape[0])
        assert torch.equal(pixels(image), expected), (row, image.plan)


def test_an_image_of_too_many_pixels_is_refused(large: PackedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = samples_in(large.with_transform([CenterCrop(64)]))
    width, height = LARGE[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", width * height // 2 - 1)
    with pytest.raises(CorruptRecord, match="more than twice"):
        samples.undecoded().make(0, [])


def claiming_too_much(data: bytes) -> bytes:
    """A JPEG or PNG whose header says that it has 65535 x 65535 pixels."""
    if (at := data.find(b"IHDR")) < 0:
        at = data.find(b"\xff\xc0")
        return data[: at + 5] + b"\xff" * 4 + data[at + 9 :]
    header = b"IHDR" + struct.pack(">II", 65535, 65535) + data[at + 12 : at + 17]
    return data[:at] + header + struct.pack(">I", zlib.crc32(header)) + data[at + 21 :]


@pytest.mark.parametrize(
    ("kind", "why"), [("JPEG", "exceeds"), ("PNG", "exceeds"), ("scans", "60 scans of 6000 x 6000 pixels")]
)
def test_what_promises_too_much_reaches_no_decoder(tmp_path: Path, kind: str, why: str) -> None:
    """It would allocate all of it, or take very long. The index says nothing of it."""
    data, bomb = encoded(picture(0, 160, 120), "PNG" if kind == "PNG" else "JPEG"), scan_bomb(6000, 6000, 60)
    hostile = claiming_too_much(data)
    if kind == "scans":
        data, hostile = data.ljust(len(bomb), b"\0"), bomb
    folder = pack_sources(tmp_path, StoreOptions("verbatim"), {"image": data})
    (shard,) = folder.glob("*.tar")
    shard.write_bytes(shard.read_bytes().replace(data, hostile))
    with pytest.raises(CorruptRecord, match=f"row 0 .*{why}"):
        samples_in(open_dataset(folder, [CenterCrop(64)], check=False)).undecoded().make(0, [])


@st.composite
def steps(draw: st.DrawFn) -> list[Any]:
    """A crop or a resize, or both, and flips after them."""
    side = st.integers(1, 90)
    sizes = st.tuples(side, side)
    filters = st.sampled_from(["bilinear", "bicubic", "nearest", "lanczos", "box"])
    low = draw(st.floats(0.001, 1))
    first = draw(
        st.one_of(
            st.builds(RandomResizedCrop, sizes, st.just((low, 1.0)), interpolation=filters).map(lambda each: [each]),
            st.tuples(st.builds(Resize, st.integers(90, 300), filters), st.builds(CenterCrop, sizes)).map(list),
            st.tuples(st.builds(Resize, st.integers(90, 300), filters), st.builds(RandomCrop, sizes)).map(list),
            st.builds(RandomCrop, sizes).map(lambda each: [each]),
            st.tuples(st.builds(RandomCrop, sizes), st.builds(Resize, sizes, filters)).map(list),
            st.builds(Resize, sizes, filters).map(lambda each: [each]),
            st.just([]),
        )
    )
    flips = [RandomHorizontalFlip(0.5), RandomVerticalFlip(0.5)]
    return [*first, *draw(st.lists(st.sampled_from(flips), max_size=3))]


@given(st.data())
def test_the_same_for_any_crop_resize_and_flips(large: PackedDataset, data: st.DataObject) -> None:
    transform, row = data.draw(steps()), data.draw(st.integers(0, len(LARGE) - 1))
    # Borders are where these numbers are 0 or nearly 1.
    uniform = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53]))
    image, expected = both(large, transform, row, data.draw(st.lists(uniform, min_size=40, max_size=40)))
    assert torch.equal(pixels(image), expected)


def test_only_what_is_needed_is_cut_out(large: PackedDataset) -> None:
    crop = [Resize(256), CenterCrop(64)]
    for row, size in enumerate(LARGE[:2]):
        image, _ = both(large, crop, row, [])
        assert len(image.data) < len(large.record(row)) / 2
        # The window's source was cut, so the box that is resized reaches outside.
        assert min(image.plan.box) < 0 and image.plan.box[2:] == size
        whole, _ = both(large, Resize(64), row, [])
        assert bytes(whole.data) == bytes(large.record(row))


def flipped(horizontal: bool) -> Any:
    return RandomHorizontalFlip(1) if horizontal else RandomVerticalFlip(1)


@given(st.lists(st.booleans(), max_size=6))
def test_flips_in_any_order_are_at_most_one_of_each(large: PackedDataset, flips: list[bool]) -> None:
    image, expected = both(large, [CenterCrop(33), *map(flipped, flips)], 0, [0.5] * len(flips))
    assert image.plan.mirrored == flips.count(True) % 2
    assert image.plan.rest == (UPSIDE_DOWN,) * (flips.count(False) % 2)
    assert torch.equal(pixels(image), expected)


REFUSED: list[tuple[Any, str]] = [
    (None, "give a transform, such as"),
    ([RandomResizedCrop(8), ColorJitter(0.4)], "ColorJitter needs decoded pixels.*decode='cpu'.*batch_transform"),
    ([RandomResizedCrop(8), np.asarray], "asarray needs decoded pixels"),
    (Views([RandomResizedCrop(8), RandomResizedCrop(8)]), "Views makes several images of each"),
]


@pytest.mark.parametrize(("transform", "message"), REFUSED, ids=param_id)
@pytest.mark.parametrize("fields", [None, ("image", "label")])
def test_what_cannot_be_left_to_others_is_refused(
    large: PackedDataset, transform: Any, message: str, fields: tuple[str, ...] | None
) -> None:
    path = samples_in(large).stores[0].path
    samples = samples_in(open_dataset(path, transform=transform, fields=fields))
    with pytest.raises(UsageError, match=f"{path}: .*{message}"):
        samples.undecoded()


@pytest.mark.parametrize(
    ("store", "message"),
    [(StoreOptions(mode="L"), "its images are grey"), (StoreOptions("raw"), "its images are stored raw")],
    ids=param_id,
)
def test_stores_that_nobody_else_decodes_are_refused(tmp_path: Path, store: StoreOptions, message: str) -> None:
    folder = pack_sources(tmp_path, store, {"0.jpg": encoded(picture(0))})
    samples = samples_in(open_dataset(folder, transform=CenterCrop(8)))
    with pytest.raises(UsageError, match=f"{message}.*packtrain.Loader"):
        samples.undecoded()


def test_the_message_says_what_comes_too_early(large: PackedDataset) -> None:
    with pytest.raises(UsageError, match=r"no.* room for Crop.*put flips last, or use packtrain.Loader with decode="):
        both(large, [RandomVerticalFlip(1), CenterCrop(8)], 0, [0.5])


def test_torchvisions_transforms_are_left_to_others_as_well(large: PackedDataset) -> None:
    theirs = import_torchvision().transforms
    steps = [theirs.CenterCrop(20), theirs.RandomVerticalFlip(1), theirs.ToTensor()]
    image, expected = both(large, theirs.Compose(steps), 0, [0.5])
    assert torch.equal(pixels(image), expected) and image.plan.rest == (Flip(horizontal=False),)


@given(st.tuples(st.integers(1, 300), st.integers(1, 300)))
def test_a_missing_image_is_black(size: tuple[int, int]) -> None:
    image = black(size)
    assert image.size == size
    assert torch.equal(pixels(image), torch.zeros(size[1], size[0], 3, dtype=torch.uint8))
