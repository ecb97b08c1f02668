"""The two loaders of the usual ImageNet recipe, over one of four back ends."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import torch

from packtrain._core.arguments import choice, refuse_unknown, unexpected, whole
from packtrain._core.overriding import override
from packtrain._readers.dataset.image_dataset import ImageDataset, instead_of, open_dataset
from packtrain._readers.loader.arguments import REFUSED
from packtrain._readers.loader.loader import Loader
from packtrain._readers.loader.order import Rows, Sequential
from packtrain._readers.loader.ranks import Ranks
from packtrain._readers.transforms.geometric import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

from ..dali.loader import DaliLoader
from .torch_loader import TorchLoader

Backend = Literal["packtrain", "torch", "dali-cpu", "dali-gpu"]
_LOADERS: Final[Mapping[str, Callable[..., Loader]]] = {
    "packtrain": Loader,
    "torch": TorchLoader,
    "dali-cpu": DaliLoader,
    "dali-gpu": partial(DaliLoader, decode="mixed"),
}
_MEAN: Final = (0.485, 0.456, 0.406)
_STD: Final = (0.229, 0.224, 0.225)
# Options of the training loader alone. The others are those of both.
_TRAINING: Final = ("shuffle", "sampler", "seed", "drop_last", "batch_transform", "rank", "world_size")


def imagenet_loaders(
    train: str | os.PathLike[str] | ImageDataset,
    val: str | os.PathLike[str] | ImageDataset,
    backend: Backend = "packtrain",
    *,
    batch_size: int,
    val_batch_size: int | None = None,
    crop: int = 224,
    val_size: int = 256,
    scale: Sequence[float] = (0.08, 1.0),
    ratio: Sequence[float] = (3 / 4, 4 / 3),
    **options: Any,
) -> tuple[Loader, Loader]:
    """Make the loaders of a training set and of a validation set, with the usual augmentation of ImageNet.

        with TrainVal(*imagenet_loaders("train", "val", "dali-cpu", batch_size=256)) as data:
            ...

    A batch is (images, labels) on the same device with each back end: normalised images, float32 unless `dtype` says
    otherwise, [batch, 3, crop, crop] in channels_last memory, and labels int64 [batch]. Training takes a crop of random
    area, resizes it to `crop`, and mirrors every second image. Validation resizes the shorter side to `val_size` and
    takes the centre. With the same `seed`, all back ends hand out the same samples in the same order with the same
    crops. Only where DALI decodes on a GPU do the pixels differ a little.

    Each pass through the validation loader hands out every sample once, over all ranks together, in the order of the
    rows. A rank has a block of the rows. The blocks differ by at most one sample, so one rank may have one batch more
    than another: add up counts after the last batch, not after each. The last batch may be smaller.

    Args:
        train: The training set: the folder of a packed dataset, or a dataset from `open_dataset`, `concat` or `subset`,
            whose own transform is not used. DALI takes images that are stored encoded, not raw.
        val: The validation set, likewise.
        backend: Maker of the batches. ``"packtrain"``: `packtrain.Loader`. ``"torch"``: torch's DataLoader, whose
            workers read the same datasets. ``"dali-cpu"``: `packtrain.dali.DaliLoader`. ``"dali-gpu"``: the same with
            ``decode="mixed"``, which needs a GPU as `device`.
        batch_size: Number of samples in a training batch of this rank.
        val_batch_size: Number of samples in a validation batch; None: as in training.
        crop: Height and width of the images, in pixels.
        val_size: Length of the shorter side before validation takes the centre, in pixels; at least `crop`.
        scale: Smallest and largest area of a random crop, relative to that of the image.
        ratio: Smallest and largest ratio of width to height of a random crop.
        options: Further arguments of `packtrain.Loader`, or of `packtrain.dali.DaliLoader`, for both loaders.
            `num_workers` is the number of DALI's threads, where DALI decodes. `shuffle`, `sampler`, `seed`,
            `drop_last`, `batch_transform`, `rank` and `world_size` are for training; validation takes its part of the
            rows by the same `rank` and `world_size`. Defaults that differ from the loader's: ``shuffle=True``
            unless there is a `sampler`, ImageNet's `mean` and `std`, and as `device` the current GPU, or the CPU where
            torch sees no GPU.

    Returns:
        The loader for training, and the loader for validation.

    Raises:
        UsageError: An argument is unknown, of the wrong type or out of its range, or the back end cannot read a
            dataset.
        MissingDependency: DALI is not installed.
        DatasetError: A dataset cannot be opened.
    """
    loader = _LOADERS[choice("backend", backend, _LOADERS)]
    known = [name for each in (imagenet_loaders, Loader, loader) for name in inspect.signature(each).parameters]
    # What a loader refuses with a hint of its own is left to it.
    refuse_unknown("imagenet_loaders", [name for name in options if name not in {*known, *REFUSED}], known)
    crop = whole("crop", crop, 1)
    val_size = whole("val_size", val_size, crop)
    train, val = _opened("train", train), _opened("val", val)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = {"shuffle": "sampler" not in options, "mean": _MEAN, "std": _STD, "device": device, **options}
    if "num_workers" in options and backend.startswith("dali"):
        options["num_threads"] = options.pop("num_workers")
    ranks = Ranks(options.get("rank"), options.get("world_size"))
    return (
        loader(
            train.with_transform([RandomResizedCrop(crop, scale, ratio), RandomHorizontalFlip()]),
            batch_size,
            **options,
        ),
        loader(
            val.with_transform([Resize(val_size), CenterCrop(crop)]),
            batch_size if val_batch_size is None else whole("val_batch_size", val_batch_size, 1),
            **{name: value for name, value in options.items() if name not in _TRAINING},
            sampler=RankRows(len(val), ranks),
            # As if there were no other ranks: with them, a loader fills the last step up with samples that count twice.
            rank=0,
            world_size=1,
            seed=0,
        ),
    )


class RankRows(Sequential):
    """A block of the rows for each rank, in their order, so that it is read in one go.

    Every row is in exactly one block. Blocks differ by at most one row.
    """

    def __init__(self, rows: int, ranks: Ranks) -> None:
        super().__init__(rows)
        self._ranks: Final = ranks

    def __len__(self) -> int:
        return len(self._block())

    @override
    def rows(self, key: int, start: int, stop: int) -> Rows:
        return super().rows(key, start, stop) + self._block().start

    def _block(self) -> range:
        rank, world_size = self._ranks.now()
        return range(self._rows * rank // world_size, self._rows * (rank + 1) // world_size)


def _opened(name: str, dataset: str | os.PathLike[str] | ImageDataset) -> ImageDataset:
    if isinstance(dataset, str | os.PathLike):
        return open_dataset(dataset)
    if not isinstance(dataset, ImageDataset):
        raise unexpected(
            name,
            dataset,
            "the folder of a packed dataset, or what open_dataset returned; `packtrain pack` packs loose files"
            + instead_of(dataset),
        )
    return dataset
