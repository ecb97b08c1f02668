"""Laws of batches whose images are decoded by somebody else: they arrive as they were cut, whatever their sizes."""

from __future__ import annotations

import gc
import random as chances
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.batching import Numbers, assert_same
from helpers.datasets import FIELDS, SCHEMA, make_dataset
from helpers.fusing import pack_sources
from helpers.lazily import lazy
from helpers.support import encoded, flip, picture
from helpers.undecoded import decoding, stacked
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packtrain import ImageDataset, Loader, StoreOptions, concat, open_dataset
from packtrain._codec.geometry import Box, Scale
from packtrain._codec.image_plan import ImagePlan
from packtrain._readers.dataset.rows import is_sample
from packtrain._readers.loader.arena import Layout, SlotArray
from packtrain._readers.loader.decoding import UndecodedImages
from packtrain._readers.loader.encoded import MEMORY, PLANS, EncodedWriter, read, with_room
from packtrain._readers.transforms.undecoded import UPSIDE_DOWN, Undecoded
from packtrain.errors import CorruptRecord, LoaderError, UsageError
from packtrain.transforms import (
    CenterCrop,
    Normalize,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToTensor,
)

ROWS, BATCH = 23, 4
CROP = [RandomResizedCrop(24), RandomHorizontalFlip(), RandomVerticalFlip()]
LAYOUT = Layout(BATCH, {"image": SlotArray("|u1", (8, 8, 3), channels_last=True, undecoded=True)})


def sizes(row: int) -> tuple[int, int]:
    return 90 + 11 * row, 300 - 7 * row


@pytest.fixture(scope="module", params=["crop-ready", "coefficients", "verbatim"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    """Pictures of different sizes, of which parts can be cut out if they are crop-ready."""
    files = {f"{row}.jpg": encoded(picture(row, *sizes(row))) for row in range(ROWS)}
    folder = tmp_path_factory.mktemp("undecoded")
    return open_dataset(pack_sources(folder, StoreOptions(request.param), files), transform=CROP)


def plain(value: Any) -> Any:
    """A batch without the memory of the loader."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return type(value)(*map(plain, value)) if is_sample(value) else value


def batches_of(dataset: Any, epochs: int = 2, **options: Any) -> list[Any]:
    options = {"decode": "cuda", "shuffle": True, "seed": 5, "num_workers": 0, **options}
    with Loader(dataset, BATCH, **options) as loader:
        return [tuple(map(plain, batch)) for _ in range(epochs) for batch in loader]


# --- in the slot ---


@st.composite
def images(draw: st.DrawFn) -> Undecoded:
    length = draw(st.one_of(st.integers(1, 40), st.integers(1, 3000)))
    number, side = st.integers(-(2**40), 2**40), st.integers(1, 2**31)
    box = Box(draw(number), draw(number), draw(side), draw(side))
    resize = draw(st.none() | st.builds(Scale, side, side, st.integers(0, 5)))
    window = draw(st.none() | st.builds(Box, st.integers(0, 9), st.integers(0, 9), side, side))
    plan = ImagePlan(box, resize, window, draw(st.booleans()), draw(st.sampled_from([(), (UPSIDE_DOWN,)])))
    data = np.random.default_rng(length).bytes(length)
    return Undecoded(draw(st.sampled_from([bytes, bytearray, memoryview]))(data), plan)


@given(st.lists(images(), min_size=1, max_size=BATCH), st.lists(st.integers(0, 2000), max_size=5))
def test_what_is_written_is_read_and_what_has_no_room_goes_through_the_pipe(
    given_images: list[Undecoded], measured: list[int]
) -> None:
    layout = with_room(LAYOUT, measured)
    arrays = layout.arrays(bytearray(layout.slot_bytes))
    spilt: list[Any] = []
    writer = EncodedWriter(arrays, spilt)
    for at, image in enumerate(given_images):
        writer.write(at, image)
    assert writer.images == []
    found = read(arrays, len(given_images), [bytes(data) for data in spilt])
    assert [(bytes(data), plan) for data, plan in found] == [(bytes(data), plan) for data, plan in given_images]
    assert all(type(plan) is ImagePlan for _, plan in found)
    # What is left of the room would not have held any of them.
    room = arrays[MEMORY].size - sum(
        len(data) for (data, _), other in zip(given_images, spilt, strict=True) if not other
    )
    assert room >= 0 and all(len(data) > room for data in spilt if data)


@given(st.lists(images(), min_size=1, max_size=BATCH))
def test_in_one_process_they_stay_as_they_are(given_images: list[Undecoded]) -> None:
    arrays = with_room(LAYOUT, [100]).new()
    assert MEMORY not in arrays and PLANS not in arrays
    spilt: list[Any] = []
    writer = EncodedWriter(arrays, spilt)
    for at, image in enumerate(given_images):
        writer.write(at, image)
    assert all(one is other for one, other in zip(writer.images, given_images, strict=True))
    assert spilt == [b""] * len(given_images)


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=40))
def test_there_is_room_for_somewhat_more_than_the_mean(measured: list[int]) -> None:
    room = with_room(LAYOUT, measured).fields[MEMORY].shape[0]
    mean = sum(measured) / len(measured)
    # Never more than for the pixels as float32, unless that is very little.
    assert min(1.2 * mean, 256 << 10) <= room <= min(1.5 * mean + 8, 256 << 10)


# --- batches ---


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_those_of_the_ordinary_loader(dataset: ImageDataset, workers: int) -> None:
    options: dict[str, Any] = {"fields": ("row", "path", "position", "line")}
    expected = batches_of(dataset, decode="cpu", **options)
    with decoding():
        assert_same(batches_of(dataset, num_workers=workers, **options), expected, strides=True)


@pytest.mark.parametrize("large_first", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_records_may_be_of_very_different_sizes(tmp_path: Path, large_first: bool, workers: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    small, large = [encoded(picture(n, 9, 9)) for n in range(40)], [encoded(Image.fromarray(noise), quality=95)] * 9
    assert len(large[0]) > 500 * len(small[0])
    files = [*large, *small] if large_first else [*small, *large, *small[:2]]
    folder = pack_sources(tmp_path, StoreOptions("verbatim"), {f"{n}.jpg": data for n, data in enumerate(files)})
    data = open_dataset(folder, transform=Resize((8, 8)))
    expected = batches_of(data, 1, decode="cpu", shuffle=False)
    with decoding():
        assert_same(batches_of(data, 1, shuffle=False, num_workers=workers), expected, strides=True)


def test_images_keep_their_slot_from_being_used_again(dataset: ImageDataset) -> None:
    expected = batches_of(dataset, 3, decode="cpu")
    # Kept until the end, so that later batches have to be copied.
    with decoding(lambda images: images):
        found = [tuple(batch) for batch in batches_of_kept(dataset)]
    gc.collect()
    made = [(stacked(images), labels) for images, labels in found]
    assert_same(made, expected, strides=True)


def batches_of_kept(dataset: ImageDataset) -> list[Any]:
    with Loader(dataset, BATCH, shuffle=True, seed=5, num_workers=2, prefetch_factor=1, decode="cuda") as loader:
        return [batch for _ in range(3) for batch in loader]


def test_a_slot_is_not_written_again_while_a_device_reads_its_images(dataset: ImageDataset) -> None:
    choose = chances.Random(3).randrange
    with lazy(choose) as device:

        def copied(data: Any) -> torch.Tensor:
            # Queued: it reads the slot later, as a decoder on a stream does.
            if data.readonly:
                return device.copy(device.pinned(torch.frombuffer(bytearray(data), dtype=torch.uint8)))
            return device.copy(torch.frombuffer(data, dtype=torch.uint8))

        def decode(images: UndecodedImages) -> list[tuple[torch.Tensor, Any]]:
            return [(copied(data), plan) for data, plan in images.images]

        with decoding(decode), Loader(dataset, BATCH, device="cuda", num_workers=1, decode="cuda") as loader:
            found = []
            for images, _ in loader:
                found += [(device.read(data), plan) for data, plan in images]
                del images
                device.work(choose(8))
            device.finish()
    with decoding(lambda images: images):
        expected = [
            image for images, _ in Loader(dataset, BATCH, num_workers=0, decode="cuda") for image in images.images
        ]
    assert [plan for _, plan in found] == [plan for _, plan in expected]
    assert [bytes(data[0].numpy()) for data, _ in found] == [bytes(data) for data, _ in expected]


# --- what goes with them ---


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A field of every kind; one row is without the optional ones, of which the image is one."""
    schema = replace(SCHEMA, fields=(replace(FIELDS[0], optional=True), *FIELDS[1:]))
    return make_dataset(tmp_path_factory.mktemp("named") / "set", schema=schema, rows=9)


@pytest.mark.complete
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("finish", [[], [ToTensor(), Normalize([0.5], [0.2]), RandomErasing(1)]])
def test_other_fields_and_steps_on_tensors_are_those_of_the_ordinary_loader(
    named: Path, workers: int, finish: list[Any]
) -> None:
    names = ("label", "image", "seg", "depth", "caption", "meta", "boxes", "pose", "blob", "crop")
    transform = [RandomResizedCrop(16), RandomHorizontalFlip(), *finish]
    data = open_dataset(named, transform=transform, fields=names)
    options: dict[str, Any] = {"fields": ("row", "path")}
    expected = batches_of(data, decode="cpu", **options)
    with decoding():
        assert_same(batches_of(data, num_workers=workers, **options), expected, strides=True)


def test_another_image_of_a_sample_is_decoded_by_the_workers(named: Path) -> None:
    data = open_dataset(named, transform=CROP, fields=("image", "other", "label"))
    expected = batches_of(data, decode="cpu")
    with decoding():
        assert_same(batches_of(data, num_workers=1), expected, strides=True)


# --- datasets and transforms ---


def test_parts_may_have_transforms_of_their_own(dataset: ImageDataset) -> None:
    other = dataset.with_transform([Resize(40), CenterCrop(24)])
    data = concat([dataset.subset([3, 1, 4]), other, other.subset([1, 5])])
    expected = batches_of(data, decode="cpu")
    with decoding():
        assert_same(batches_of(data, num_workers=2), expected, strides=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_another_size_are_refused_by_name(dataset: ImageDataset, workers: int) -> None:
    data = concat([dataset, dataset.with_transform(CenterCrop(20))])
    expected = f"position {ROWS}: its image will have 20 x 20 pixels, that of the first sample 24 x 24.*same *shape"
    with decoding(), pytest.raises(LoaderError, match=expected):
        batches_of(data, shuffle=False, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_another_transform_takes_effect_with_the_next_pass(dataset: ImageDataset, workers: int) -> None:
    transforms = [CROP, [Resize(60), CenterCrop(50)], CenterCrop(9), CROP]

    def run(decode: str, workers: int) -> Iterator[Any]:
        options: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": workers, "decode": decode}
        with Loader(dataset, BATCH, **options) as loader:
            for transform in transforms:
                loader.transform = transform
                yield from [tuple(map(plain, batch)) for batch in loader]

    expected = list(run("cpu", 0))
    with decoding():
        assert_same(list(run("cuda", workers)), expected, strides=True)


def test_a_transform_that_needs_pixels_is_refused_when_it_is_set(dataset: ImageDataset) -> None:
    with decoding(), Loader(dataset, BATCH, num_workers=0, decode="cuda") as loader:
        loader.transform = [CenterCrop(8), np.asarray]
        with pytest.raises(UsageError, match=r"asarray needs decoded pixels.*decode='cpu'"):
            next(iter(loader))


# --- damage ---


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_records_are_left_out_or_named(tmp_path: Path, workers: int) -> None:
    files = {f"{row}.jpg": encoded(picture(row, *sizes(row))) for row in range(ROWS)}
    folder = pack_sources(tmp_path, StoreOptions(), files)
    data = open_dataset(folder, transform=CROP)
    for row in (0, 7):
        found = bytes(data.record(row))
        shard = next(folder.glob("*.tar"))
        flip(shard, shard.read_bytes().index(found) + len(found) // 2)
    data = open_dataset(folder, transform=CROP)
    options: dict[str, Any] = {"shuffle": False, "on_error": "skip", "fields": ("row",)}
    with pytest.warns(RuntimeWarning, match="left out"):
        expected = batches_of(data, 1, decode="cpu", **options)
    with decoding():
        with pytest.warns(RuntimeWarning, match="left out: ") as warned:
            assert_same(batches_of(data, 1, num_workers=workers, **options), expected, strides=True)
        said = [str(one.message) for one in warned if one.category is RuntimeWarning]
        assert [f"row {row} (" in message for row, message in zip((0, 7), said, strict=True)] == [True, True]
        with pytest.raises(CorruptRecord, match="row 0"):
            batches_of(data, num_workers=workers, shuffle=False)


# --- the loader's face ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collate_fn": list}, "collate_fn gets decoded images.*batch_transform.*decode='cpu'"),
        ({"transform": [CenterCrop(8), ToTensor(), Normalize([0.5], [0.5])], "mean": 0.5, "std": 0.5}, "mean"),
        ({"dataset": Numbers(9)}, "only a dataset from open_dataset, concat or subset can hand out images undecoded"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused_at_once(
    dataset: ImageDataset, options: dict[str, Any], message: str
) -> None:
    options = {"dataset": dataset, "decode": "cuda", **options}
    with decoding(), pytest.raises(UsageError, match=message):
        Loader(batch_size=BATCH, num_workers=0, **options)


def test_the_loader_says_that_a_gpu_decodes(dataset: ImageDataset) -> None:
    assert "decode='cuda'" not in repr(Loader(dataset, BATCH, num_workers=0))
    with decoding():
        loader = Loader(dataset, BATCH, num_workers=0, decode="cuda")
    assert "decode='cuda'" in repr(loader)
    with pytest.raises(UsageError, match=r"loader.decode cannot be set"):
        loader.decode = "cpu"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_single_sample_is_decoded_here(dataset: ImageDataset, workers: int) -> None:
    with decoding(), Loader(dataset, BATCH, shuffle=True, seed=5, num_workers=workers, decode="cuda") as loader:
        images, labels = (tensor.clone() for tensor in next(iter(loader)))
        for position in range(BATCH):
            image, label = loader.sample(position)
            assert torch.equal(image, images[position]) and label == labels[position]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_can_be_normalised_mixed_and_replayed(dataset: ImageDataset, workers: int) -> None:
    options: dict[str, Any] = {
        "mean": (0.2, 0.4, 0.6),
        "std": (0.5, 0.25, 0.2),
        "batch_transform": lambda images, labels: (images.flip(0), labels.flip(0)),
    }
    expected = batches_of(dataset, decode="cpu", **options)
    with decoding():
        assert_same(batches_of(dataset, num_workers=workers, **options), expected, strides=True)
        loader = Loader(dataset, BATCH, shuffle=True, seed=5, num_workers=workers, decode="cuda", **options)
        with loader, loader.headspace():
            replayed = [tuple(map(plain, batch)) for batch in loader]
    assert_same(replayed[:4], expected[:4], strides=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_stages_are_counted(dataset: ImageDataset, workers: int) -> None:
    with decoding(), Loader(dataset, BATCH, num_workers=workers, decode="cuda") as loader:
        for _ in range(3):
            for batch in loader:
                del batch
        found = loader.stats.total
    assert (found.samples, found.copied) == (3 * ROWS, 0)
    stages = found.stage_seconds
    assert "decode" not in stages and min(stages[name] for name in ("read", "cut", "write")) > 0
