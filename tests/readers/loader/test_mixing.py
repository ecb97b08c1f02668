"""timm's Mixup and torchvision's MixUp and CutMix as batch transforms: the real ones, on bytes and floats."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.support import import_torchvision, packed, require_module

from packtrain import Loader, PackedDataset, open_dataset
from packtrain._core.keys import mixed
from packtrain._readers.loader.postprocess import _TRANSFORM
from packtrain._readers.loader.randomness import seed_all
from packtrain.errors import UsageError
from packtrain.transforms import RandomCrop, Views

CLASSES = 3
STATISTICS: dict[str, Any] = {"mean": 0.4, "std": 0.2}
FLOATS: dict[str, dict[str, Any]] = {
    "normalised": STATISTICS,
    "half": {**STATISTICS, "dtype": torch.float16},
    "cast": {"dtype": torch.float32},
}


def timms(**options: Any) -> Any:
    require_module("timm")
    import_torchvision()
    from timm.data import mixup

    made: Any = mixup.Mixup
    return made(**{"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "num_classes": CLASSES, **options})


def torchvisions(name: str) -> Any:
    import_torchvision()
    from torchvision.transforms import v2

    both = v2.MixUp(num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)
    return {"MixUp": both[0], "CutMix": both[1], "either": v2.RandomChoice(both)}[name]


MIXERS: dict[str, Callable[[], Any]] = {
    **{f"timm {mode}": partial(timms, mode=mode) for mode in ("batch", "pair", "elem")},
    "timm cutmix": partial(timms, mixup_alpha=0.0),
    **{f"torchvision {name}": partial(torchvisions, name) for name in ("MixUp", "CutMix", "either")},
}


@pytest.fixture(scope="module")
def dataset(images: Path, tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    return open_dataset(packed(images, tmp_path_factory.mktemp("mixing") / "out", "tar"), RandomCrop(20))


def loader_of(dataset: Any, **options: Any) -> Loader:
    fixed = {"shuffle": True, "seed": 5, "num_workers": 0, "multiprocessing_context": "fork"}
    return Loader(dataset, 4, **{**fixed, **options})


def epochs(dataset: Any, count: int = 2, **options: Any) -> list[Any]:
    with loader_of(dataset, **options) as loader:
        return [batch for _ in range(count) for batch in loader]


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("cast", FLOATS)
def test_they_mix_what_the_loader_gives_without_them(dataset: PackedDataset, name: str, cast: str) -> None:
    """Each batch is what the mixer makes of the batch, with the generators seeded as documented."""
    mixer, options = MIXERS[name](), FLOATS[cast]
    plain = epochs(dataset, 1, fields=("position",), **options)
    found = epochs(dataset, 1, fields=("position",), batch_transform=mixer, **options)
    with loader_of(dataset) as loader:
        next(iter(loader))
        key = loader._progress._keys(loader._ranks.now())[1]
    for (images, labels, positions), (mixed_images, targets, _) in zip(plain, found, strict=True):
        seed_all(mixed(key, _TRANSFORM), int(positions[0]))
        wanted = mixer(images.clone(), labels)
        assert torch.equal(mixed_images, wanted[0]) and torch.equal(targets, wanted[1])
        assert mixed_images.dtype == images.dtype and targets.shape == (len(labels), CLASSES)
        assert torch.allclose(targets.float().sum(1), torch.ones(len(labels)), atol=1e-3)


@pytest.mark.parametrize("name", ["timm elem", "torchvision either"])
def test_the_results_are_the_same_for_any_number_of_workers(dataset: PackedDataset, name: str) -> None:
    wanted = epochs(dataset, batch_transform=MIXERS[name](), **STATISTICS)
    assert not torch.equal(wanted[0][0], wanted[3][0])
    for workers in (1, 3):
        random.seed(workers), np.random.seed(workers), torch.manual_seed(workers)
        found = epochs(dataset, batch_transform=MIXERS[name](), num_workers=workers, **STATISTICS)
        assert all(
            torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
            for one, other in zip(found, wanted, strict=True)
        )


@pytest.mark.parametrize("name", MIXERS)
def test_bytes_are_refused_where_mixing_them_would_go_wrong(dataset: PackedDataset, name: str) -> None:
    options = {"batch_transform": MIXERS[name]()}
    if name in ("timm cutmix", "torchvision CutMix"):
        for images, targets in epochs(dataset, 1, **options):
            assert (images.dtype, targets.dtype) == (torch.uint8, torch.float32)
        return
    with pytest.raises(UsageError, match=r"needs images of floating point, but these are torch\.uint8: give mean="):
        epochs(dataset, 1, **options)


def test_so_is_an_odd_number_for_timm(dataset: PackedDataset) -> None:
    part = dataset.subset(range(7))
    with pytest.raises(UsageError, match=r"even number of images, but this batch has 3: .* drop_last=True"):
        epochs(part, 1, batch_transform=timms(), **STATISTICS)
    assert len(epochs(part, 1, batch_transform=timms(), drop_last=True, **STATISTICS)) == 1
    assert len(epochs(part, 1, batch_transform=torchvisions("MixUp"), **STATISTICS)) == 2


def test_so_are_views(dataset: PackedDataset) -> None:
    views = dataset.with_transform(Views([RandomCrop(20), RandomCrop(9)]))
    with pytest.raises(UsageError, match="timm's Mixup mixes one tensor of images, but Views give a tuple"):
        epochs(views, 1, batch_transform=timms(), **STATISTICS)


def test_named_fields_take_a_function(images: Path, tmp_path: Path) -> None:
    """As docs/device.md has it."""
    out = packed(images, tmp_path / "out", "tar")
    named, mixup = open_dataset(out, RandomCrop(20), fields=("image", "label")), timms()

    def mix(batch: Any) -> Any:
        image, label = mixup(batch.image, batch.label)
        return batch._replace(image=image, label=label)

    found = epochs(named, batch_transform=mix, **STATISTICS)
    wanted = epochs(open_dataset(out, RandomCrop(20)), batch_transform=mixup, **STATISTICS)
    assert all(torch.equal(one.image, other[0]) for one, other in zip(found, wanted, strict=True))
