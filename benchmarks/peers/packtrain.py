"""packtrain itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from packtrain import ImageDataset, Loader, concat, open_dataset
from packtrain._readers.dataset.sound import Check
from packtrain.orders import ChunkShuffled
from packtrain.transforms import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

from .common import BATCH, EPOCH, PACKED, SEED, SHORT, SIDE, WORKERS, Batch

OPTIONS: Final = {"num_workers": WORKERS, "check": True, "scaled": False, "epoch": "as long as the measurement: concat"}


def jpeg(
    folder: Path,
    *,
    once: bool = False,
    check: Check = True,
    packed: str = PACKED,
    decoder: str = "auto",
    **options: Any,
) -> Iterator[Batch]:
    return batches(jpeg_dataset(folder, once=once, check=check, packed=packed, decoder=decoder), **options)


def raw_rrc(folder: Path, *, once: bool = False, check: Check = True, **options: Any) -> Iterator[Batch]:
    return batches(jpeg_dataset(folder, once=once, check=check), **options)


def raw(folder: Path, *, check: Check = True, **options: Any) -> Iterator[Batch]:
    return batches(repeated(open_dataset(folder / PACKED, RandomCrop(SIDE), check=check)), **options)


def remote(stream: str, address: str, folder: Path, limit: int | None) -> Callable[[], Iterator[Batch]]:
    """Also over a dataset on this machine, which needs no folder."""
    transform = [RandomResizedCrop(SIDE), RandomHorizontalFlip()]
    if "://" in address:
        dataset = open_dataset(address, transform, stage=folder, budget=limit)
    else:
        dataset = open_dataset(address, transform)
    order: dict[str, Any] = {"shuffle": True}
    if limit is not None:
        # By default a machine works on 64 chunks at once; in half of a gigabyte there are no more than 40.
        order = {"sampler": ChunkShuffled(dataset, lanes=4, window=1)}
    loader = Loader(dataset, batch_size=BATCH, num_workers=WORKERS, seed=SEED, **order)
    return lambda: iter(loader)


def evaluation(folder: Path, **options: Any) -> Iterator[Batch]:
    return batches(repeated(evaluation_dataset(folder)), **options)


def evaluation_dataset(folder: Path, packed: str = PACKED) -> ImageDataset:
    return open_dataset(folder / packed, [Resize(SHORT), CenterCrop(SIDE)])


def jpeg_dataset(
    folder: Path, *, once: bool = False, check: Check = True, packed: str = PACKED, decoder: str = "auto"
) -> ImageDataset:
    transform = [RandomResizedCrop(SIDE), RandomHorizontalFlip()]
    dataset = open_dataset(folder / packed, transform, check=check, decoder=decoder)
    return dataset if once else repeated(dataset)


def batches(dataset: ImageDataset, *, num_workers: int = WORKERS, **options: Any) -> Iterator[Batch]:
    with Loader(dataset, batch_size=BATCH, shuffle=True, num_workers=num_workers, seed=SEED, **options) as loader:
        yield from loader


def repeated(dataset: ImageDataset) -> ImageDataset:
    """The dataset as often as a measurement needs it, so that no epoch ends in between."""
    return concat([dataset] * (EPOCH // len(dataset) + 1))
