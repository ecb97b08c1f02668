"""Training and validation as the well-known ImageNet recipe with DALI has them, over any back end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self

import torch

from packtrain._core.arguments import checks_names, number, whole
from packtrain._readers.dataset.image_dataset import ImageDataset
from packtrain._readers.loader.loader import Loader
from packtrain._readers.loader.postprocess import BatchTransform
from packtrain._readers.transforms.arguments import bounds
from packtrain._readers.transforms.geometric import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

from .memory import give_back, limit
from .options import Backend, dataset_of, device_for, making, ranks_for, require_same_labels

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)


@checks_names()
class TrainVal:
    """A training set and a validation set, with the usual augmentation of ImageNet, over one of four back ends.

    Whichever back end it is, a batch is (images, labels) on `device`: images normalised, float32 or float16 [batch, 3,
    crop, crop] in channels_last memory, and labels int64 [batch]. Training takes a crop of random area, resized to
    `crop`, and mirrors every second image. Validation resizes the shorter side to `val_size` and takes the centre. With
    the same `seed`, all back ends hand out the same samples in the same order with the same crops; only pixels differ a
    little where DALI decodes on a GPU.

        with TrainVal("train", "val", "dali-cpu", batch_size=256) as data:
            for epoch in range(90):
                for images, labels in data.get_train_loader():
                    ...
                data.prep_for_val()
                for images, labels in data.get_val_loader():
                    ...
                data.reset()

    At any time, only one of the two loaders has processes, threads and memory: `prep_for_val` releases those of
    training, and `reset` those of validation. Each loader starts its own when a pass through it begins.

    Args:
        train: The training set: the folder of a packed dataset, or what `open_dataset` returned. Its own transform is
            not used. DALI takes images that are stored encoded, not raw.
        val: The validation set, likewise.
        backend: ``"packtrain"``: `packtrain.Loader`. ``"torch"``: torch's DataLoader, whose workers read the same
            datasets. ``"dali-cpu"``: DALI decodes on the CPU. ``"dali-gpu"``: it decodes and resizes on the GPU.
        batch_size: Number of samples in a training batch of this rank.
        val_batch_size: Number of samples in a validation batch; None: as in training.
        crop: Height and width of the images, in pixels.
        val_size: Length of the shorter side before validation takes the centre, in pixels; at least `crop`.
        mean: Mean of each channel, for images in [0, 1], or one number for all channels.
        std: Standard deviation of each channel, or one number for all channels.
        fp16: True for float16 images, False for float32.
        min_crop_size: Smallest area of a random crop, as a part of the image's area.
        aspect: Smallest and largest ratio of width to height of a random crop.
        workers: Number of worker processes of this rank; with DALI, of its threads. ``"auto"`` takes as many as the
            cores that affinity and the cgroup allow, divided among the ranks on this machine.
        queue: Number of batches that are made ahead by each worker; with DALI, by all of it.
        rank: Rank of this process; None: the rank in torch.distributed, or `local_rank` if that is not initialised.
        world_size: Number of ranks; None: that of torch.distributed, or 1. Ranks that are given need a `seed`.
        local_rank: Number of this process's GPU on this machine; None: torch's current device.
        device: Device of the batches; None: this process's GPU, or the CPU where torch sees no GPU.
        seed: Seed of the order and of all random numbers; None: torch's seed, that of rank 0 for all ranks.
        pin_memory: True to hand out batches in pinned memory, see `packtrain.Loader`. Not needed with a GPU as
            `device`.
        on_error: What to do about a damaged record, see `packtrain.Loader`. Also in validation.
        drop_last: True to drop the incomplete step at the end of a training epoch. Validation drops nothing.
        batch_transform: Called last with images and labels of each training batch, and returns both; for MixUp, for
            example. See `packtrain.Loader`.
        decode: Where ``backend="packtrain"`` decodes, see `packtrain.Loader`.

    Raises:
        UsageError: An argument is of the wrong type or out of its range, the back end cannot read a dataset, or a label
            stands for different classes in the two.
        MissingDependency: DALI is not installed.
        DatasetError: A dataset cannot be opened.
    """

    def __init__(
        self,
        train: str | os.PathLike[str] | ImageDataset,
        val: str | os.PathLike[str] | ImageDataset,
        backend: Backend = "packtrain",
        *,
        batch_size: int,
        val_batch_size: int | None = None,
        crop: int = 224,
        val_size: int = 256,
        mean: float | Iterable[float] = IMAGENET_MEAN,
        std: float | Iterable[float] = IMAGENET_STD,
        fp16: bool = False,
        min_crop_size: float = 0.08,
        aspect: Sequence[float] = (3 / 4, 4 / 3),
        workers: int | Literal["auto"] = "auto",
        queue: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        local_rank: int | None = None,
        device: str | torch.device | None = None,
        seed: int | None = None,
        pin_memory: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
        drop_last: bool = False,
        batch_transform: BatchTransform | None = None,
        decode: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        batch_size = whole("batch_size", batch_size, 1)
        val_batch_size = batch_size if val_batch_size is None else whole("val_batch_size", val_batch_size, 1)
        crop = whole("crop", crop, 1)
        val_size = whole("val_size", val_size, crop)
        area = number("min_crop_size", min_crop_size, 1e-6, 1, "a part of the image's area, more than 0 and at most 1")
        local_rank = None if local_rank is None else whole("local_rank", local_rank, 0)
        self._ranks: Final = ranks_for(rank, world_size, local_rank)
        self._place: Final = self._ranks.now()
        make = making(
            backend,
            workers,
            queue,
            device_for(device, local_rank),
            mean=mean,
            std=std,
            fp16=fp16,
            pin_memory=pin_memory,
            on_error=on_error,
            decode=decode,
        )
        self.backend: Final = make.backend
        self._with_dali: Final = self.backend.startswith("dali")
        if self._with_dali:
            limit()
        self.train: Final = dataset_of("train", train)
        self.val: Final = dataset_of("val", val)
        require_same_labels(self.train, self.val)
        given = self._place if self._ranks.given else (None, None)
        self._train: Final = make.loader(
            self.train,
            batch_size,
            transform=[
                RandomResizedCrop(crop, scale=(area, 1), ratio=bounds("aspect", aspect, zero=False)),
                RandomHorizontalFlip(),
            ],
            shuffle=True,
            seed=seed,
            drop_last=drop_last,
            batch_transform=batch_transform,
            rank=given[0],
            world_size=given[1],
        )
        # A loader would fill the last step up with samples that count twice.
        mine = self.val.subset(part(len(self.val), *self._place))
        self._val: Final = make.loader(
            mine, val_batch_size, transform=[Resize(val_size), CenterCrop(crop)], seed=0, rank=0, world_size=1
        )

    def get_train_loader(self) -> Loader:
        """The loader of the training set, always the same one. Each pass through it is an epoch, in another order.

        It has what a `packtrain.Loader` has: ``len``, `epoch`, `remaining`, `set_epoch`, `stats`, `skipped`.

        Raises:
            UsageError: torch.distributed has been initialised or ended since this object was made.
        """
        self._ranks.require(self._place)
        return self._train

    def get_val_loader(self) -> Loader:
        """The loader of this rank's part of the validation set, always the same one, in the order of the rows.

        Over all ranks, a pass hands out each sample exactly once. The parts differ by at most one sample, so one rank
        may have one batch more than another: add up counts after the last batch, not after each. The last batch is
        smaller.

        Raises:
            UsageError: As for `get_train_loader`.
        """
        self._ranks.require(self._place)
        return self._val

    def prep_for_val(self) -> None:
        """Ends the processes and threads of training, and releases their memory, before a validation.

        Passes that are under way end here: the next one of validation begins with the first sample again. If a training
        pass has handed out two batches, the next one goes through the next epoch. If it has handed out one, that was a
        look, see `packtrain.Loader`, and the next one begins where it began.
        """
        self._turn(self._train, self._val)

    def reset(self) -> None:
        """Does the same for validation, before the next epoch of training.

        A state that was loaded stays, if no pass has begun since.
        """
        self._turn(self._val, self._train)

    def state_dict(self) -> dict[str, Any]:
        """The state of training between two steps, see `packtrain.Loader.state_dict`; any back end can continue it."""
        return self._train.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues training from a state, in the middle of an epoch if it was saved there.

        Raises:
            UsageError: The state belongs to another dataset.
        """
        self._train.load_state_dict(state)

    def close(self) -> None:
        """Ends all processes and threads. Batches that were handed out stay valid."""
        try:
            self._release(self._train)
        finally:
            self._release(self._val)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TrainVal(backend={self.backend!r}, train={self._train!r}, val={self._val!r})"

    def _turn(self, last: Loader, following: Loader) -> None:
        """Releases a loader, and the other one, too, if it is in the middle of a pass."""
        self._release(last)
        if 0 < following.remaining < len(following):
            self._release(following)

    def _release(self, loader: Loader) -> None:
        loader.close()
        give_back(dali=self._with_dali)


def part(length: int, rank: int, world_size: int) -> range:
    """The rows of a rank: a block, so that it is read in one go. Blocks differ by at most one row."""
    return range(length * rank // world_size, length * (rank + 1) // world_size)
