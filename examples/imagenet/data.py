"""The images: loaders of every back end, and how batches are mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from imagenet.options import TrainOptions
from imagenet.processes import Processes
from mixup.train import CutMix, Mixup
from torch import Tensor

from packtrain import PackedDataset, TrainVal, imagenet_loaders, open_dataset
from packtrain.errors import UsageError

Mix = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def train_val(options: TrainOptions, processes: Processes, train: PackedDataset, val: PackedDataset) -> TrainVal:
    """The loaders of training and validation.

    Raises:
        PacktrainError: The back end is not installed or cannot read the datasets, or an option is out of its range.
    """
    backend: Any = options.backend
    if processes.device.type != "cuda":
        if options.backend == "dali-gpu":
            raise UsageError("--backend dali-gpu: torch sees no GPU: choose another --backend, such as dali-cpu")
        if options.decode == "cuda":
            raise UsageError("--decode cuda: torch sees no GPU: leave it out")
    # The loaders of DALI decode where the name of the back end says.
    decode: dict[str, Any] = {"decode": options.decode} if options.decode != "cpu" else {}
    loaders = imagenet_loaders(
        train,
        val,
        backend,
        batch_size=options.batch_size,
        crop=options.size,
        # 256 for 224, as usual.
        val_size=options.size * 8 // 7,
        dtype=torch.float16 if options.amp == "fp16" else torch.float32,
        num_workers="auto" if options.workers < 0 else options.workers,
        device=processes.device,
        seed=options.seed,
        on_error=options.on_error,
        batch_transform=mixer(options.mixup, options.cutmix, classes_of(train, val)),
        **decode,
    )
    return TrainVal(*loaders)


def datasets(options: TrainOptions) -> tuple[PackedDataset, PackedDataset]:
    """The images to train with, and those to validate with.

    Those to validate with are read in the order of their rows, for which all of them have to be on this machine.

    Raises:
        DatasetError: A dataset cannot be opened.
    """
    stage = options.stage or None
    train = open_dataset(options.train, stage=stage, budget=options.budget or None)
    return train, open_dataset(options.val, stage=stage)


def classes_of(train: PackedDataset, val: PackedDataset) -> int:
    """Number of classes: one more than the largest label of the training images.

    Raises:
        UsageError: Labels are no class indices, or there are others among the validation images.
    """
    for dataset in (train, val):
        if not len(dataset):
            raise UsageError(f"{dataset.store.path}: has no images")
        if dataset.targets.ndim != 1 or dataset.targets.dtype.kind not in "iu" or int(dataset.targets.min()) < 0:
            raise UsageError(f"{dataset.store.path}: labels are no class indices: pack it with one number per image")
    classes = int(train.targets.max()) + 1
    largest = int(val.targets.max())
    if largest >= classes:
        raise UsageError(
            f"{val.store.path}: label {largest} is none of the {classes} classes of {train.store.path}: pack both with "
            "the same class indices"
        )
    return classes


def mixer(mixup: float, cutmix: float, classes: int) -> Mix | None:
    """Return a function that mixes the images of a batch, and their labels; None for no mixing.

    The loader seeds the random numbers of each batch, so a training that continues mixes as it would have.

    Args:
        mixup: Both parameters of the beta distribution of mixup; 0 for none.
        cutmix: Both parameters of the beta distribution of cutmix; 0 for none.
        classes: Number of classes.
    """
    try:
        from torchvision.transforms import v2
    # A torchvision that was built for another torch raises a RuntimeError.
    except (ImportError, RuntimeError):
        v2 = None
    mixes: list[Mix] = []
    if mixup:
        mixes.append(Mixup(classes, mixup) if v2 is None else v2.MixUp(alpha=mixup, num_classes=classes))
    if cutmix:
        mixes.append(CutMix(classes, cutmix) if v2 is None else v2.CutMix(alpha=cutmix, num_classes=classes))
    return AnyOf(tuple(mixes)) if mixes else None


@dataclass(frozen=True)
class AnyOf:
    """Mixes each batch in one of several ways."""

    mixes: tuple[Mix, ...]

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.mixes[int(torch.randint(len(self.mixes), ()))](images, labels)
