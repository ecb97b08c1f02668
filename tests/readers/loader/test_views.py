"""Laws of `Views` in a `Loader`: a tensor per view in the place of the images, whoever makes the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.batching import Fixed, jitter
from helpers.support import packed, shard_bytes

from packtrain import Loader, PackedDataset, concat, open_dataset
from packtrain._core.options import StoreOptions
from packtrain._readers.loader.batches import BatchMaker, Probe
from packtrain._readers.loader.samples import SampleMaker
from packtrain.errors import LoaderError
from packtrain.testing import LoadingContract
from packtrain.transforms import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, Views

STORES = {"crop-ready": StoreOptions(), "raw": StoreOptions("raw")}
GLOBAL, LOCAL = [RandomResizedCrop((22, 24), (0.4, 1)), RandomHorizontalFlip()], RandomResizedCrop(9, (0.05, 0.4))
TWO_AND_THREE = Views([GLOBAL] * 2 + [LOCAL] * 3)
FOREIGN = Views([[RandomCrop((20, 26)), jitter], LOCAL, jitter])
SHAPES = [(5, 3, 22, 24)] * 2 + [(5, 3, 9, 9)] * 3
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


@pytest.fixture(scope="module", params=STORES)
def folder(request: pytest.FixtureRequest, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The session's images, several shards of them."""
    out = tmp_path_factory.mktemp("views") / "out"
    return packed(images, out, "tar", store=STORES[request.param], shard_size=shard_bytes(images, 5))


def loader_of(dataset: Any, **options: Any) -> Loader:
    fixed = {"shuffle": True, "seed": 3, "num_workers": 0, "multiprocessing_context": "fork"}
    return Loader(dataset, 5, **{**fixed, **options})


def epoch(dataset: Any, **options: Any) -> list[Any]:
    with loader_of(dataset, **options) as loader:
        return list(loader)


def test_a_batch_has_a_tensor_for_each_view(folder: Path) -> None:
    with loader_of(open_dataset(folder, TWO_AND_THREE), fields=("position",)) as loader:
        position = 0
        for views, labels, positions in loader:
            assert type(views) is tuple and [view.dtype for view in views] == [torch.uint8] * 5
            assert [view.shape[1:] for view in views] == [torch.Size(shape[1:]) for shape in SHAPES]
            assert all(view.is_contiguous(memory_format=torch.channels_last) for view in views)
            assert [len(view) for view in views] == [len(labels)] * 5
            for at in range(len(labels)):
                samples, label, _ = loader.sample(position)
                assert positions[at] == position and labels[at] == label
                assert all(torch.equal(view[at], sample) for view, sample in zip(views, samples, strict=True))
                position += 1
    assert position == 12


class TestSeedEpochAndPositionDecide(LoadingContract):
    """Also over callables that draw for themselves."""

    start_methods = ("fork",)

    @pytest.fixture(params=[TWO_AND_THREE, FOREIGN], ids=["ours", "foreign"])
    def dataset(self, folder: Path, request: pytest.FixtureRequest) -> PackedDataset:
        return open_dataset(folder, request.param)


def test_views_are_decoded_in_their_place(folder: Path) -> None:
    """Nothing but pixels that are in their place already is written to the arrays."""
    maker = BatchMaker(SampleMaker(open_dataset(folder, TWO_AND_THREE), ()))
    layout = maker.layout(Probe(4, 0, [0], [0]))
    arrays = layout.new()
    arrays["row"][:], arrays["position"][:] = range(4), range(4)
    seen = []
    make = maker.samples._packed.make  # type: ignore[union-attr]

    def spy(row: int, random: Any, into: Any, on_stage: Any, **options: Any) -> Any:
        views, label = make(row, random, into, on_stage, **options)
        seen.append([view is target for view, target in zip(views, into, strict=True)])
        return views, label

    maker.samples._packed.make = spy  # type: ignore[union-attr, method-assign]
    maker.make(0, 4, layout, arrays)
    assert seen == [[True] * 5] * 4


def test_each_view_is_cast_and_normalised(folder: Path) -> None:
    views = [TWO_AND_THREE, *[Views([Resize((side, 8)) for side in range(1, 21)])]]
    mean, std = torch.tensor(MEAN).view(-1, 1, 1), torch.tensor(STD).view(-1, 1, 1)
    for each in views:
        dataset = open_dataset(folder, each)
        found = epoch(dataset, mean=MEAN, std=STD)
        for (ours, _), (bytes_, _) in zip(found, epoch(dataset), strict=True):
            for normalised, view in zip(ours, bytes_, strict=True):
                assert torch.allclose(normalised, (view / 255 - mean) / std, atol=1e-5)
    assert {view.dtype for images, _ in epoch(dataset, dtype=torch.float16) for view in images} == {torch.float16}


def test_a_batch_transform_gets_all_views(folder: Path) -> None:
    def stacked(images: Any, labels: Any) -> Any:
        assert [image.shape for image in images] == [torch.Size((len(labels), 3, 9, 9))] * 3
        return torch.stack(images, 1), labels

    dataset = open_dataset(folder, Views([LOCAL] * 3))
    for (ours, _), (views, _) in zip(epoch(dataset, batch_transform=stacked), epoch(dataset), strict=True):
        assert torch.equal(ours, torch.stack(views, 1))


def test_views_of_any_dataset(folder: Path) -> None:
    """Also one that is not packtrain's, and of other kinds than bytes."""
    samples = [((torch.full((2, 3), row), np.float32(row) * np.ones((4, 1), np.float32)), row) for row in range(5)]
    ((first, second), labels) = epoch(Fixed(*samples), shuffle=False)[0]
    assert labels.tolist() == list(range(5))
    assert torch.equal(first[:, 0, 0], labels) and torch.equal(second[:, 0, 0], labels.float())


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (Views([CenterCrop(8)]), "its image has 1 views, that of the first sample had 2"),
        (CenterCrop(8), "its image has no views, that of the first sample had 2"),
        (Views([CenterCrop(8), CenterCrop(7)]), r"its image, view 1 is uint8 \[7, 7, 3\]"),
    ],
)
def test_samples_with_other_views_are_an_error(folder: Path, others: Any, message: str) -> None:
    both = concat([open_dataset(folder, Views([CenterCrop(8), CenterCrop(9)])), open_dataset(folder, others)])
    with pytest.raises(LoaderError, match=message):
        epoch(both, shuffle=False)
    if not isinstance(others, Views):
        with pytest.raises(LoaderError, match="its image is an object of type tuple"):
            epoch(concat([open_dataset(folder, others), open_dataset(folder, TWO_AND_THREE)]), shuffle=False)


def test_no_views_at_all_are_an_error() -> None:
    with pytest.raises(LoaderError, match="its image is a tuple without views"):
        epoch(Fixed(((), 1)))
