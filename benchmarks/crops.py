"""The same random crops for all contestants, and what users write without packtrain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch
from PIL import Image

from packtrain import PackedDataset, PackOptions, open_dataset, pack
from packtrain._codec.geometry import Operation, apply
from packtrain._core.options import StoreOptions
from packtrain._readers.transforms.compose import compose
from packtrain.transforms import CenterCrop, Compose, RandomResizedCrop, Resize

SEED: Final = 0
TRAIN: Final = compose(RandomResizedCrop(224))
EVALUATE: Final = compose([Resize(256), CenterCrop(224)])

Item = TypeVar("Item")


def pack_images(images: Path, out: Path, store: StoreOptions, *, root: Path | None = None) -> Path:
    """Packs a list of images into tar shards, in the order of the list; returns `out`."""
    pack(images, out, PackOptions(root=root, store=store, seed=None))
    return out


def packed(path: Path, transform: Compose, **options: Any) -> Callable[[], float]:
    """A case: everything that ``dataset[row]`` does, for all rows; the random numbers are drawn in it, too."""
    dataset = open_dataset(path, transform, **options)

    def once() -> float:
        torch.manual_seed(SEED)
        return microseconds(dataset.__getitem__, range(len(dataset)))

    return once


def plain(
    load: Callable[[Any], Image.Image], items: Iterable[Any], steps: Iterable[tuple[Operation, ...]]
) -> Callable[[], float]:
    """A case: load an image, transform it, make a tensor of it; random numbers are drawn beforehand."""
    work = list(zip(items, steps, strict=True))
    return lambda: microseconds(lambda pair: tensor(apply(load(pair[0]), pair[1])), work)


def load_file(path: str) -> Image.Image:
    """As torchvision's `pil_loader`, which ImageFolder uses."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def tensor(image: Image.Image) -> torch.Tensor:
    """As torchvision's `pil_to_tensor`."""
    return torch.as_tensor(np.array(image, copy=True)).permute(2, 0, 1)


def drawn_steps(dataset: PackedDataset, transform: Compose) -> list[tuple[Operation, ...]]:
    """What `transform` comes down to for each image in a case made by `packed`."""
    torch.manual_seed(SEED)
    drawn = []
    for width, height in zip(dataset.store.index["width"], dataset.store.index["height"], strict=True):
        random = torch.rand(transform.draws, dtype=torch.float64).tolist() if transform.draws else ()
        drawn.append(transform.operations(int(width), int(height), random))
    return drawn


def require_same_pixels(
    path: Path, transform: Compose, load: Callable[[Any], Image.Image], items: Iterable[Any], **options: Any
) -> None:
    """Raises if a case made by `packed` compares other pixels with one made by `plain`."""
    dataset = open_dataset(path, transform, **options)
    expected = [
        tensor(apply(load(item), steps)) for item, steps in zip(items, drawn_steps(dataset, transform), strict=True)
    ]
    torch.manual_seed(SEED)
    for row, pixels in enumerate(expected):
        if not torch.equal(dataset[row][0], pixels):
            raise RuntimeError(f"{dataset.store.describe(row)} has other pixels than the file (options {options})")


def microseconds(call: Callable[[Item], object], arguments: Iterable[Item]) -> float:
    """Mean time of one call."""
    arguments = list(arguments)
    started = time.perf_counter()
    for argument in arguments:
        call(argument)
    return (time.perf_counter() - started) / len(arguments) * 1e6


def steady(case: Callable[[], float], untimed: int) -> Callable[[], float]:
    """The case after some passes of which the time is not kept, so that the caches are its own, as in a long epoch."""

    def once() -> float:
        for _ in range(untimed):
            case()
        return case()

    return once


def file_paths(images: Path) -> list[str]:
    """The files that a list names."""
    return [str(images.parent / line.rsplit(None, 1)[0]) for line in images.read_text().splitlines()]


def one_thread() -> None:
    """torch computes with one thread: what is measured is one core."""
    torch.set_num_threads(1)


def rates(middle: Mapping[str, float]) -> dict[str, float]:
    """Images per second out of microseconds per image."""
    return {name: 1e6 / value for name, value in middle.items()}
