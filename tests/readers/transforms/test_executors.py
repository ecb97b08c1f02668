"""Laws of fused reading: torchvision's pixels at the same parameters, whatever is decoded for them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fusing import TRANSFORMS, carried_out, decoded, expected, numbers, pack_sources, sources
from helpers.jpegparts import parsed
from helpers.pixels import assert_same, noise
from helpers.support import encoded, packed, param_id, picture, real_list
from helpers.support import sources as listed
from PIL import Image

from packtrain import PackedDataset, open_dataset
from packtrain._codec import pixels as conversions
from packtrain._codec.cut import has_table
from packtrain._codec.decoders import DECODERS, decoder
from packtrain._codec.geometry import Box
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset import samples as samples_module
from packtrain.errors import MissingDependency, UsageError
from packtrain.transforms import CenterCrop, Compose, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

SOURCES = dict(sources())
STORES = {
    "crop-ready": StoreOptions(),
    "crop-ready, grey": StoreOptions(mode="L"),
    "coefficients": StoreOptions("coefficients"),
    "verbatim": StoreOptions("verbatim"),
    "verbatim, grey": StoreOptions("verbatim", mode="L"),
    "jpeg": StoreOptions("jpeg", quality=60),
    "jpeg, grey": StoreOptions("jpeg", mode="L"),
    "raw": StoreOptions("raw"),
    "raw, grey": StoreOptions("raw", mode="L"),
    "raw, one size": StoreOptions("raw", resize="90x64"),
    "raw, one size, grey": StoreOptions("raw", resize="90x64", mode="L"),
}


def importable() -> Iterator[str]:
    """The decoders that are installed."""
    for name in DECODERS[1:]:
        try:
            decoder(name)
        except MissingDependency:
            continue
        yield name


@pytest.fixture(scope="module", params=STORES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sources, packed in one of the ways."""
    return pack_sources(tmp_path_factory.mktemp("fused"), STORES[request.param], SOURCES)


@pytest.fixture(scope="module")
def crop_ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_sources(tmp_path_factory.mktemp("crop ready"), StoreOptions(), SOURCES)


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[Image.Image]:
    """The images of the rows, decoded without a reader where Pillow can do it."""
    opened = open_dataset(folder)
    store = opened.store.manifest.store
    if store.store == "raw":
        return [opened.image(row) for row in range(len(opened))]
    records = [opened.record(row) for row in range(len(opened))] if store.store == "jpeg" else SOURCES.values()
    return [decoded(data, store.mode) for data in records]


def check(torchvision: Any, opened: PackedDataset, row: int, image: Image.Image, seed: int) -> bool:
    """Compares a row with torchvision's; says whether the transform can be applied to it at all."""
    assert isinstance(opened._samples.compose, Compose)
    random = numbers(seed, opened._samples.compose.draws)
    try:
        steps = opened._samples.compose.operations(*image.size, random)
    except UsageError:
        with pytest.raises(UsageError, match="pad_if_needed"):
            opened._samples.make(row, random)[0]
        return False
    ours, theirs = opened._samples.make(row, random)[0], expected(torchvision, image, steps)
    assert (ours.shape, ours.dtype) == (theirs.shape, torch.uint8), (row, steps)
    assert torch.equal(ours, theirs), (opened, opened.transform, row, opened.filename(row), steps)
    return True


CASES = [*importable(), "extension, RGBX"]
# `make test` has Pillow and the decoder that stands beside it in the list.
USUAL = CASES[:2]


@pytest.mark.parametrize(
    "decoder", [name if name in USUAL else pytest.param(name, marks=pytest.mark.complete) for name in CASES]
)
def test_every_pixel_is_torchvisions(
    torchvision: Any,
    folder: Path,
    whole: list[Image.Image],
    decoder: str,
    monkeypatch: pytest.MonkeyPatch,
    complete: bool,
) -> None:
    """With each decoder; the sample has half of the transforms with one decoder, the others with the next."""
    transforms = list(enumerate(TRANSFORMS.values()))
    if not complete:
        transforms = transforms[CASES.index(decoder) % 2 :: 2]
    if decoder.endswith("RGBX"):
        decoder = decoder.split(",")[0] if "extension" in importable() else "auto"
        monkeypatch.setattr(conversions, "_maps_rgb", lambda: False)
    elif decoder != "pillow" and open_dataset(folder).store.manifest.store.store == "raw":
        pytest.skip("nothing is decoded")
    done = 0
    for number, make in transforms:
        opened = open_dataset(folder, make(), decoder=decoder)
        done += sum(check(torchvision, opened, row, image, 99 * number + row) for row, image in enumerate(whole))
    assert done > 0.9 * len(whole) * len(transforms)


def test_grey_of_colour_is_that_of_the_whole_image(torchvision: Any, tmp_path: Path) -> None:
    """pillow-simd rounds otherwise where a row's length is no multiple of four; of this colour, one sees it."""
    image = Image.new("RGB", (67, 40), (208, 73, 4))
    files = {"a.png": encoded(image, "PNG"), "b.jpg": encoded(image, keep_rgb=True, quality=100)}
    for store in ("crop-ready", "verbatim"):
        folder = pack_sources(tmp_path / store, StoreOptions(store, mode="L"), files)
        for width in (1, 2, 3, 4, 5, 30, 63, 64, 65):
            opened = open_dataset(folder, RandomCrop((3, width)))
            for row, data in enumerate(files.values()):
                whole = np.asarray(decoded(data, "L"))
                for left in range(67 - width + 1):
                    pixels = opened._samples.make(row, [(left + 0.5) / (67 - width + 1), 0.0])[0]
                    np.testing.assert_array_equal(pixels[0], whole[:3, left : left + width])


@pytest.mark.complete
def test_photographs(torchvision: Any, tmp_path: Path) -> None:
    listing = real_list()
    photographs = listed(listing)[::12]
    (tmp_path / "train.txt").write_text("".join(f"{listing.parent / each.name} 0\n" for each in photographs))
    for store in ("crop-ready", "verbatim"):
        folder = packed(tmp_path / "train.txt", tmp_path / store, "tar", store=StoreOptions(store))
        chains: list[Any] = [[RandomResizedCrop(224), RandomHorizontalFlip()], [Resize(256), CenterCrop(224)]]
        for name in importable():
            for chain in chains:
                opened = open_dataset(folder, chain, decoder=name)
                for row, photograph in enumerate(photographs):
                    assert check(torchvision, opened, row, decoded(photograph.data, "RGB"), row)


@pytest.mark.parametrize(
    "kind", ["random resized crop and flip", "resize", "centre", "crop", "mirrored", "nothing", "large centre"]
)
def test_the_result_is_a_tensor_of_the_callers_own_with_the_channels_of_a_pixel_side_by_side(
    folder: Path, kind: str
) -> None:
    opened = open_dataset(folder, TRANSFORMS[kind]())
    for row in range(len(SOURCES)):
        torch.manual_seed(row)
        first, label = opened[row]
        assert (type(first), first.dtype, first.ndim, label) == (torch.Tensor, torch.uint8, 3, row)
        assert first.shape[0] == opened.store.manifest.store.channels
        assert first.permute(1, 2, 0).is_contiguous()
        before = first.clone()
        first += 1
        torch.manual_seed(row)
        assert torch.equal(opened[row][0], before)


class TestForeign:
    """Callables of others behind, before or around ours."""

    @pytest.mark.parametrize("kind", ["random resized crop and flip", "crop", "nothing", "large centre"])
    def test_they_get_an_ordinary_image_with_torchvisions_pixels(
        self, torchvision: Any, folder: Path, whole: list[Image.Image], kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for maps in (True, False):
            if not maps:
                monkeypatch.setattr(conversions, "_maps_rgb", lambda: False)
            seen: list[Image.Image] = []
            opened = open_dataset(folder, [TRANSFORMS[kind](), seen.append])
            assert isinstance(opened._samples.compose, Compose)
            for row, image in enumerate(whole):
                random = numbers(row, opened._samples.compose.draws)
                steps = opened._samples.compose.operations(*image.size, random)
                assert opened._samples.make(row, random)[0] is None, "what the last of them returns"
                assert not seen[-1].readonly
                assert_same(seen[-1], carried_out(torchvision, image, steps))
                seen[-1].putpixel((0, 0), 17)
                opened._samples.make(row, random)[0]
                assert_same(seen[-1], carried_out(torchvision, image, steps))

    def test_one_that_comes_first_gets_the_whole_image(self, torchvision: Any, crop_ready: Path) -> None:
        t = torchvision.transforms
        opened = open_dataset(crop_ready, [t.Grayscale(), Resize((20, 30)), np.asarray])
        theirs = t.Compose([t.Grayscale(), t.Resize((20, 30))])
        for row, data in enumerate(SOURCES.values()):
            np.testing.assert_array_equal(opened[row][0], np.asarray(theirs(decoded(data, "RGB"))))

    def test_a_lone_one_gets_what_image_gives(self, crop_ready: Path) -> None:
        opened = open_dataset(crop_ready, np.asarray)
        for row, data in enumerate(SOURCES.values()):
            np.testing.assert_array_equal(opened[row][0], np.asarray(decoded(data, "RGB")))
            assert_same(opened.image(row), decoded(data, "RGB"))


class Recorder:
    """Pillow, with a list of what it was asked for."""

    name, version = "recorder", "1"

    def __init__(self) -> None:
        self.asked: list[tuple[int, Box | None, int]] = []

    def decode(self, data: Any, mode: str, box: Box | None = None, scale: int = 1) -> Image.Image:
        self.asked.append((len(data), box, scale))
        return decoder("pillow").decode(data, mode, box, scale)

    def pixels(self, data: Any, box: Box | None = None, scale: int = 1) -> Any:
        return np.asarray(self.decode(data, "RGB", box, scale))


def laid_out(record: bytes) -> tuple[int, list[tuple[Box, int]]]:
    """The beginning of the coded data of a record without subsampling; place and length of its restart intervals."""
    parts = parsed(record)
    (frame,), (interval,) = parts.bodies(0xC0), parts.bodies(0xDD)
    height, width = struct.unpack(">HH", frame[1:5])
    step = 8 * int.from_bytes(interval)
    places = [Box(left, top, step, 8) for top in range(0, height, 8) for left in range(0, width, step)]
    lengths = [len(data) + 2 for data in parts.intervals]
    return len(record) - sum(lengths), list(zip(places, lengths, strict=True))


def touches(one: Box, other: Box) -> bool:
    """True if two rectangles have a pixel in common."""
    return not (
        one.left + one.width <= other.left
        or other.left + other.width <= one.left
        or one.top + one.height <= other.top
        or other.top + other.height <= one.top
    )


class TestLittleIsDecoded:
    @pytest.fixture
    def recorder(self, monkeypatch: pytest.MonkeyPatch) -> Recorder:
        made = Recorder()
        monkeypatch.setattr(samples_module, "find_decoder", lambda name: made)
        return made

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return pack_sources(
            tmp_path, StoreOptions(), {"a.jpg": encoded(picture(1, 640, 480), quality=90, subsampling="4:4:4")}
        )

    @pytest.mark.parametrize(
        ("transform", "box"),
        [
            (CenterCrop((120, 160)), Box(240, 180, 160, 120)),
            ([CenterCrop((240, 320)), Resize(30)], Box(160, 120, 320, 240)),
            ([RandomHorizontalFlip(1), RandomCrop((240, 320))], Box(160, 120, 320, 240)),
            ([CenterCrop((240, 320)), CenterCrop((120, 160)), RandomHorizontalFlip(1)], Box(240, 180, 160, 120)),
            ([RandomCrop((200, 300), 8), CenterCrop((120, 160))], Box(240, 180, 160, 120)),
            ([Resize(240), CenterCrop((120, 160)), Resize(30)], Box(158, 118, 324, 244)),
            ([Resize((960, 1280)), CenterCrop((240, 320)), RandomHorizontalFlip(1)], Box(239, 179, 162, 122)),
            (RandomResizedCrop(20, (0.1, 0.1), (1, 1)), Box(232, 152, 175, 175)),
        ],
        ids=param_id,
    )
    def test_a_crop_decodes_the_intervals_that_it_touches(
        self, folder: Path, recorder: Recorder, transform: Any, box: Box
    ) -> None:
        opened = open_dataset(folder, transform)
        assert isinstance(opened._samples.compose, Compose)
        opened._samples.make(0, [0.5] * opened._samples.compose.draws)[0]
        ((size, _, scale),) = recorder.asked
        record = opened.record(0).tobytes()
        scan, intervals = laid_out(record)
        part = sum(length for place, length in intervals if touches(place, box))
        assert part < size <= part + scan < 0.7 * len(record)
        assert scale == 1

    @pytest.mark.parametrize(
        "transform", [Resize(64), [], RandomHorizontalFlip(1), CenterCrop((480, 640))], ids=param_id
    )
    def test_what_needs_everything_decodes_the_record_itself(
        self, folder: Path, recorder: Recorder, transform: Any
    ) -> None:
        opened = open_dataset(folder, transform)
        opened[0]
        assert recorder.asked == [(len(opened.record(0)), None, 1)]

    def test_damage_beside_the_crop_changes_nothing(self, torchvision: Any, folder: Path) -> None:
        source = (folder.parent / "images" / "a.jpg").read_bytes()
        opened = open_dataset(folder, CenterCrop((100, 160)))
        record, offset = opened.record(0).tobytes(), int(opened.store.index["offset"][0])
        assert has_table(memoryview(record))
        place, intervals = laid_out(record)
        damaged = bytearray(record)
        for box, length in intervals:
            if not touches(box, Box(240, 190, 160, 100)):
                damaged[place : place + length - 2] = bytes(length - 2)
            place += length
        assert place == len(record)
        assert damaged.count(0) > len(record) // 2
        with (shard := next(folder.glob("*.tar"))).open("r+b") as file:
            file.seek(offset)
            file.write(damaged)
        assert shard.stat().st_size > len(damaged)
        for name in importable():
            spoilt = open_dataset(folder, CenterCrop((100, 160)), check=False, decoder=name)
            assert spoilt.record(0) == bytes(damaged)
            image = decoded(source, "RGB").crop((240, 190, 400, 290))
            assert torch.equal(spoilt[0][0], torchvision.transforms.functional.pil_to_tensor(image))

    def test_a_raw_record_is_not_copied_into_an_image(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        image = noise(1, 50, 40)
        folder = pack_sources(tmp_path, StoreOptions("raw"), {"a.png": encoded(image, "PNG")})
        opened = open_dataset(folder, RandomCrop((20, 30)))
        monkeypatch.setattr("packtrain._codec.decode.RecordDecoder.region", None)
        pixels = opened._samples.make(0, [0.99, 0.0])[0]
        np.testing.assert_array_equal(pixels.permute(1, 2, 0), np.asarray(image)[:20, 20:])
