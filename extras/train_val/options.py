"""What training and validation have in common, and the loaders that each back end makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch.utils.data import Dataset

from packtrain._core.arguments import choice, flag, unexpected, whole
from packtrain._core.errors import UsageError
from packtrain._core.options import LabelSpec
from packtrain._core.schema import PAIR
from packtrain._readers.dataset.combined import NAMES, require_same_classes, require_same_label_types
from packtrain._readers.dataset.image_dataset import ImageDataset, instead_of, open_dataset, samples_of
from packtrain._readers.loader.loader import Loader
from packtrain._readers.loader.ranks import Ranks

from ..dali.loader import DaliLoader
from .torch_loader import TorchLoader

Backend = Literal["packtrain", "torch", "dali-cpu", "dali-gpu"]
BACKENDS: Final = ("packtrain", "torch", "dali-cpu", "dali-gpu")


@dataclass(frozen=True)
class Making:
    """How batches are made, for training and for validation alike.

    Attributes:
        backend: Who makes them.
        workers: Number of processes of this rank, or of DALI's threads; ``"auto"``: its share of the cores.
        queue: Number of batches made ahead, by each process, or by DALI.
        common: Arguments of every loader.
    """

    backend: Backend
    workers: int | Literal["auto"]
    queue: int
    common: Mapping[str, Any]

    def loader(self, dataset: Dataset[Any], batch_size: int, **options: Any) -> Loader:
        """A loader of the back end, with the arguments of `packtrain.Loader`.

        Raises:
            UsageError: The back end cannot read the dataset, or an argument is wrong.
            MissingDependency: It is not installed.
        """
        options = {**self.common, **options, "prefetch_factor": self.queue}
        if self.backend == "packtrain":
            return Loader(dataset, batch_size, num_workers=self.workers, **options)
        if self.backend == "torch":
            return TorchLoader(dataset, batch_size, num_workers=self.workers, **options)
        if self.backend == "dali-gpu":
            options["decode"] = "mixed"
        return DaliLoader(dataset, batch_size, num_threads=self.workers, **options)


def making(
    backend: str,
    workers: int | Literal["auto"],
    queue: int,
    device: torch.device,
    *,
    mean: float | Iterable[float],
    std: float | Iterable[float],
    fp16: bool,
    pin_memory: bool,
    on_error: Literal["raise", "skip"],
    decode: Literal["cpu", "cuda"],
) -> Making:
    """Checks what training and validation have in common.

    Raises:
        UsageError: An argument is of the wrong type or out of its range.
    """
    name: Any = choice("backend", backend, BACKENDS)
    if name == "dali-gpu" and device.type != "cuda":
        raise UsageError(
            f"backend='dali-gpu' decodes on a GPU, but the batches go to device={str(device)!r}: give device='cuda', "
            "or take backend='dali-cpu'"
        )
    if workers != "auto":
        # DALI cannot do without a thread.
        workers = whole("workers", workers, 0 if name in ("packtrain", "torch") else 1)
    if decode != "cpu" and name != "packtrain":
        raise UsageError(
            f"decode={decode!r} is for backend='packtrain', not {name!r}: leave it out, or take backend='packtrain'"
        )
    common: dict[str, Any] = {
        "mean": mean,
        "std": std,
        "dtype": torch.float16 if flag("fp16", fp16) else torch.float32,
        "device": device,
        "pin_memory": pin_memory,
        "on_error": on_error,
    }
    if name == "packtrain":
        common["decode"] = decode
    return Making(name, workers, whole("queue", queue, 1), common)


def device_for(device: str | torch.device | None, local_rank: int | None) -> torch.device:
    """The device of the batches: by default the GPU of this process, or the CPU where torch sees no GPU.

    Raises:
        UsageError: It names no device.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise unexpected("device", device, "'cpu', 'cuda' or 'cuda:N'") from None
    # torch says that it is an int, but it may be None.
    index: Any = found.index
    number = local_rank if found.type == "cuda" and index is None else index
    return found if number is None else torch.device(found.type, number)


def ranks_for(rank: int | None, world_size: int | None, local_rank: int | None) -> Ranks:
    """Rank and number of ranks: those that were given, or else those of torch.distributed.

    Raises:
        UsageError: They are not known, or torch.distributed has others.
    """
    now = Ranks(None, None).now()
    if rank is not None or world_size is None:
        return Ranks(rank, world_size)
    world_size = whole("world_size", world_size, 1)
    if now.world_size not in (1, world_size):
        raise UsageError(f"world_size={world_size}, but torch.distributed has {now.world_size} ranks: leave it out")
    if now.world_size == world_size:
        return Ranks(None, None)
    if local_rank is None:
        raise UsageError(
            f"world_size={world_size}: give rank=, or local_rank= if all ranks are on this machine; with "
            "torch.distributed, call init_process_group before"
        )
    return Ranks(local_rank, world_size)


def require_same_labels(train: ImageDataset, val: ImageDataset) -> None:
    """Makes sure that a label stands for the same class in both, as far as their class names tell.

    Where only one has names, the labels of the other are taken as they are, but each of them must have a name. Where
    one has a `target_transform`, its names say nothing about the labels that are handed out.

    Raises:
        UsageError: It does not.
        CorruptFile: An index is damaged.
    """
    one, two = samples_of(train), samples_of(val)
    assert one is not None and two is not None
    both = one, two
    if any(len(each) and each.locate(0)[0].target_transform is not None for each in both):
        return
    require_same_label_types(both)
    require_same_classes(store for each in both for store in each.stores)
    for named, bare in (both, both[::-1]):
        if named.classes is None or bare.classes is not None or bare.schema.labels != LabelSpec() or not len(bare):
            continue
        if (largest := int(bare.labels.max())) >= len(named.classes):
            name, other = bare.stores[0].name, named.stores[0].name
            raise UsageError(
                f"label {largest} of {name} is none of the {len(named.classes)} classes of {other}, which are numbered "
                f"from 0: pack {name} with the numbers of these classes, or with {NAMES}"
            )


def dataset_of(name: str, dataset: str | os.PathLike[str] | ImageDataset) -> ImageDataset:
    """An opened dataset of images and labels, for the folder of one, or for a dataset.

    Raises:
        UsageError: It is something else, or a dataset of other fields.
        DatasetError: The folder cannot be opened.
    """
    if isinstance(dataset, str | os.PathLike):
        return open_dataset(dataset)
    if not isinstance(dataset, ImageDataset):
        raise unexpected(
            name,
            dataset,
            "the folder of a packed dataset, or what open_dataset returned; `packtrain pack` packs loose files"
            + instead_of(dataset),
        )
    if dataset.field_names != PAIR:
        raise UsageError(
            f"{name}= has the fields {', '.join(dataset.field_names)}, but TrainVal hands out images and labels: open "
            "it without fields="
        )
    return dataset
