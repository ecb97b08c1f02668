"""Laws of the steps on tensors in a `Loader`: batches hold the dataset's samples, exactly, whoever made them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.lazily import consumed, lazy
from helpers.named import dataset as fields_dataset
from helpers.streams import Device
from helpers.support import packed

from packtrain import ImageDataset, Loader, concat, open_dataset
from packtrain._codec.native import extension
from packtrain._core.options import StoreOptions
from packtrain._readers.transforms import finisher as finisher_module
from packtrain.errors import UsageError
from packtrain.transforms import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ToDtype,
    ToTensor,
    Views,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STORES = {"crop-ready": StoreOptions(), "raw": StoreOptions("raw")}
GEOMETRY = [RandomResizedCrop((20, 24)), RandomHorizontalFlip()]
TAILS: dict[str, list[Any]] = {
    "normalised": [ToTensor(), Normalize(MEAN, STD)],
    "erased": [ToTensor(), Normalize(MEAN, STD), RandomErasing(0.8)],
    "noise": [ToTensor(), Normalize(MEAN, STD), RandomErasing(0.8, value="random")],
    "erased bytes": [RandomErasing(0.8, value=(1, 2, 3)), ToTensor(), Normalize(MEAN, STD)],
    "bytes": [RandomErasing(0.8)],
    "noise between": [ToTensor(), RandomErasing(0.8, value="random"), Normalize(MEAN, STD)],
    "half": [ToDtype(torch.float16, scale=True), RandomErasing(0.8, value="random")],
    "brain": [ToDtype(torch.bfloat16, scale=True), Normalize(MEAN, STD), RandomErasing(0.8, value=(1, 2, 3))],
    "int": [ToDtype(torch.int16, scale=True)],
}


@pytest.fixture(scope="module", params=STORES)
def folder(request: pytest.FixtureRequest, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("finishing") / "out", "tar", store=STORES[request.param])


@pytest.fixture(scope="module")
def raw(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("raw") / "out", "tar", store=STORES["raw"])


def loader_of(dataset: Any, batch_size: int = 5, **options: Any) -> Loader:
    fixed = {"shuffle": True, "seed": 3, "num_workers": 0, "multiprocessing_context": "fork"}
    return Loader(dataset, batch_size, **{**fixed, **options})


def epoch(dataset: Any, **options: Any) -> list[Any]:
    with loader_of(dataset, **options) as loader:
        return list(loader)


def wanted(dataset: ImageDataset, **options: Any) -> list[Any]:
    """The batches of an epoch, made of single samples."""
    with loader_of(dataset, **options) as loader:
        samples = [loader.sample(position) for position in range(len(dataset))]
    batches = [samples[start : start + 5] for start in range(0, len(samples), 5)]
    return [torch.utils.data.default_collate(batch) for batch in batches]


def tensors(batch: Any) -> list[torch.Tensor]:
    """Images, views and labels."""
    images, labels = batch
    return [*(images if isinstance(images, (tuple, list)) else [images]), labels]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(map(tensors, found), map(tensors, expected), strict=True):
        for left, right in zip(one, other, strict=True):
            assert left.dtype == right.dtype and torch.equal(left, right)
        assert all(images.is_contiguous(memory_format=torch.channels_last) for images in one[:-1])


def on_a_device(dataset: Any, workers: int, **options: Any) -> tuple[list[Any], Device]:
    """The batches that a device gets which works when it likes."""
    choose = random.Random(4).randrange
    with lazy(choose) as device, loader_of(dataset, num_workers=workers, device="cuda", **options) as loader:
        return consumed(device, loader, 1, choose), device


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("way", ["extension", "torch"])
def test_batches_hold_the_samples(folder: Path, tail: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, in this process, in workers, and on a device."""
    if way == "torch":
        monkeypatch.setattr(finisher_module, "extension", None)
    dataset = open_dataset(folder, [*GEOMETRY, *TAILS[tail]])
    expected = wanted(dataset)
    assert_same(epoch(dataset), expected)
    if way == "extension":
        assert_same(epoch(dataset, num_workers=2), expected)
    for workers in (0, 2):
        assert_same(on_a_device(dataset, workers)[0], expected)


def test_raw_records_are_still_copied_a_batch_at_a_time(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(raw, [RandomCrop(16, pad_if_needed=True), RandomHorizontalFlip(), *TAILS["erased"]])
    direct = open_dataset(raw, [CenterCrop(16), RandomHorizontalFlip(), *TAILS["erased"]])
    assert_same(epoch(dataset), wanted(dataset))
    expected = wanted(direct)
    with loader_of(direct) as loader:
        copied: list[bool] = []
        copy = type(loader._maker_for(loader.dataset).samples).copy

        def spy(*arguments: Any) -> bool:
            copied.append(copy(*arguments))
            return copied[-1]

        monkeypatch.setattr(type(loader._maker_for(loader.dataset).samples), "copy", spy)
        assert_same(list(loader), expected)
    assert copied == [extension is not None] * 3


def test_views_end_with_steps_of_their_own(folder: Path) -> None:
    small = [RandomResizedCrop(9), ToDtype(torch.float16, scale=True), RandomErasing(0.7, value="random")]
    dataset = open_dataset(
        folder, Views([[*GEOMETRY, *TAILS["erased"]], GEOMETRY, small, [*GEOMETRY, *TAILS["noise"]]])
    )
    expected = wanted(dataset)
    assert [view.dtype for view in expected[0][0]] == [torch.float32, torch.uint8, torch.float16, torch.float32]
    assert_same(epoch(dataset), expected)
    assert_same(epoch(dataset, num_workers=1), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_views_on_a_device(folder: Path, workers: int) -> None:
    dataset = open_dataset(folder, Views([[*GEOMETRY, *TAILS["erased"]], GEOMETRY]))
    with lazy(lambda count: count - 1) as device:
        loader = loader_of(dataset, num_workers=workers, device="cuda")
        found = []
        for views, labels in loader:
            read = [device.read(tensor) for tensor in (*views, labels)]
            device.finish()
            *images, label = (one.pop() for one in read)
            found.append((images, label))
        loader.close()
    assert_same(found, wanted(dataset))


def test_only_bytes_go_to_a_device(folder: Path) -> None:
    for tail in ("erased", "bytes"):
        dataset = open_dataset(folder, [*GEOMETRY, *TAILS[tail]])
        with lazy(lambda count: count - 1), loader_of(dataset, num_workers=1, device="cuda") as loader:
            next(iter(loader))
            assert loader._pipeline._engine.layout.fields["image"].dtype == "|u1"  # type: ignore[union-attr]


# --- what else a loader does ---


def read(dataset: Any, names: tuple[str, ...], *, device: bool, **options: Any) -> list[list[torch.Tensor]]:
    """Some fields of each batch, from a device or without one."""
    if not device:
        return [[getattr(batch, name) for name in names] for batch in epoch(dataset, **options)]
    found = []
    with lazy(lambda count: count - 1) as fake, loader_of(dataset, device="cuda", **options) as loader:
        for batch in loader:
            each = [fake.read(getattr(batch, name)) for name in names]
            fake.finish()
            found.append([one.pop() for one in each])
    return found


@pytest.mark.parametrize("device", [False, True])
def test_damaged_records_shift_no_random_numbers(device: bool) -> None:
    steps = [ToTensor(), RandomErasing(0.9, value="random")]
    dataset = fields_dataset(20, ("image", "number"), damaged=(0, 6, 7, 13), steps=steps)
    whole = fields_dataset(20, ("image", "number"), steps=steps)
    options: dict[str, Any] = {"shuffle": False, "fields": ("row",)}
    with loader_of(whole, **options) as loader:
        # The image of row 0 is missing: its batch shows no size.
        expected = {row: loader.sample(row).image for row in range(1, 20)}
    with pytest.warns(RuntimeWarning, match="left out"):
        found = read(dataset, ("image", "row"), device=device, on_error="skip", **options)
    rows = [row for _, those in found for row in those.tolist()]
    assert rows == [row for row in range(20) if row not in (0, 6, 7, 13)]
    for images, those in found:
        assert all(torch.equal(image, expected[row]) for image, row in zip(images, those.tolist(), strict=True))


@pytest.mark.parametrize("device", [False, True])
def test_all_images_of_a_sample_are_finished_alike_and_missing_ones_are_zeros(device: bool) -> None:
    steps = [ToTensor(), Normalize([0.5], [0.25]), RandomErasing(0.9, value=9)]
    dataset = fields_dataset(12, ("near", "image", "mask", "label"), steps=steps)
    with loader_of(dataset, shuffle=False) as loader:
        samples = [loader.sample(row) for row in range(12)]
    found = read(dataset, ("near", "image", "mask"), device=device, shuffle=False)
    near, image, mask = (torch.cat([batch[at] for batch in found]) for at in range(3))
    assert near.dtype == image.dtype == torch.float32 and mask.dtype == torch.uint8
    for row, sample in enumerate(samples):
        assert torch.equal(image[row], sample.image)
        assert torch.equal(near[row], torch.zeros_like(near[row]) if sample.near is None else sample.near)


def test_several_parts_may_end_alike_or_not(folder: Path) -> None:
    one, same, other = (open_dataset(folder, [*GEOMETRY, *TAILS[tail]]) for tail in ("erased", "erased", "noise"))
    longer = open_dataset(folder, [CenterCrop((20, 24)), *TAILS["erased"]])
    assert concat([one, same])._samples.finishers and concat([one, same]).subset(range(3))._samples.finishers
    for parts in ([one, same], [one, other], [one, longer]):
        together = concat(parts)
        for batch, expected in zip(epoch(together, num_workers=1), wanted(together), strict=True):
            assert all(map(torch.equal, batch, expected))
    assert concat([one, other])._samples.finishers is None and concat([one, longer])._samples.finishers is None


def test_parts_of_bytes_and_of_floats_are_an_error(raw: Path) -> None:
    """Not bytes that nobody finished."""
    crop = [CenterCrop(16)]
    together = concat([open_dataset(raw, crop), open_dataset(raw, [*crop, ToTensor()])])
    with pytest.raises(Exception, match="float32"):
        epoch(together, shuffle=False)


def test_collate_functions_get_finished_samples(folder: Path) -> None:
    dataset = open_dataset(folder, [*GEOMETRY, *TAILS["noise"]])
    for workers in (0, 1):
        found = epoch(dataset, collate_fn=torch.utils.data.default_collate, num_workers=workers)
        for batch, expected in zip(found, wanted(dataset), strict=True):
            assert all(map(torch.equal, batch, expected))


def test_normalising_twice_is_refused(folder: Path) -> None:
    dataset = open_dataset(folder, [*GEOMETRY, *TAILS["normalised"]])
    with pytest.raises(UsageError, match="in the transforms or in the loader"):
        loader_of(dataset, mean=MEAN, std=STD)
    with loader_of(dataset.with_transform([*GEOMETRY, RandomErasing(0.9)]), mean=MEAN, std=STD) as loader:
        assert next(iter(loader))[0].dtype == torch.float32
        loader.transform = dataset.transform
        with pytest.raises(UsageError, match="in the transforms or in the loader"):
            next(iter(loader))


def test_a_cast_comes_last(folder: Path) -> None:
    dataset = open_dataset(folder, [*GEOMETRY, *TAILS["normalised"]])
    found = epoch(dataset, dtype=torch.float16)
    assert_same(found, [(images.half(), labels) for images, labels in wanted(dataset)])


def test_another_transform_may_end_otherwise(folder: Path) -> None:
    dataset = open_dataset(folder, GEOMETRY)
    with loader_of(dataset, num_workers=1) as loader:
        assert next(iter(loader))[0].dtype == torch.uint8
        for tail in ("noise", "brain", "bytes"):
            loader.transform = [*GEOMETRY, *TAILS[tail]]
            loader.set_epoch(0)
            assert_same(list(loader), wanted(open_dataset(folder, loader.transform)))
