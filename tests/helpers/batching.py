"""Shared by tests of the loader: datasets and transforms for its workers, and the order of batches in plain Python.

In a module of its own, because spawned processes import it by name.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, default_collate

from packtrain._readers.loader.schedule import Dealing
from packtrain._testing.loading import difference


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """A plain torch dataset: an image is its row number and a draw from each of three generators, a label is the row.

    `rows_at` stands for the order on disk of a packed dataset.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        drawn = (random.random(), float(np.random.random()), float(torch.rand((), dtype=torch.float64)))
        return torch.tensor([row, *drawn], dtype=torch.float64), row

    def rows_at(self, places: Any) -> Any:
        return self.rows - 1 - places

    def chunk_bounds(self) -> Any:
        return np.append(np.arange(0, self.rows, 4), self.rows)


class Fixed(Dataset[tuple[Any, Any]]):
    """A dataset of the given samples."""

    def __init__(self, *samples: tuple[Any, Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return self.samples[row]


def jitter(image: Image) -> Image:
    """A crop of 9 x 7 pixels. Its place and the value of one pixel are drawn from three generators."""
    left = random.randrange(image.width - 9)
    top = int(np.random.randint(image.height - 7))
    image = image.crop((left, top, left + 9, top + 7))
    image.putpixel((0, 0), tuple(torch.randint(256, (3,)).tolist()))
    return image


def chw_float(image: Image) -> torch.Tensor:
    """Returns what torchvision's ToTensor does: float32 [3, height, width] in [0, 1]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().div(255)


def hwc_array(image: Image) -> Any:
    """uint8 [height, width, 3] for numpy."""
    return np.array(image)


def pair(label: int) -> Any:
    """A label of two numbers, one of them drawn."""
    return np.array([label, random.randrange(1000)], np.int32)


def half(label: int) -> float:
    return label / 2


def padded(samples: list[Any]) -> dict[str, Any]:
    """A collate function for images of several sizes."""
    images, *columns = zip(*samples, strict=True)
    arrays = [torch.from_numpy(np.array(image)) for image in images]
    side = max(max(array.shape[:2]) for array in arrays)
    batch = torch.zeros(len(arrays), side, side, 3, dtype=torch.uint8)
    for row, array in enumerate(arrays):
        batch[row, : array.shape[0], : array.shape[1]] = array
    return {"images": batch, "columns": [default_collate(list(column)) for column in columns]}


def mixing(samples: list[Any]) -> Any:
    """Draws from all three generators for each batch, like MixUp in a collate function."""
    drawn = random.random(), float(np.random.random()), float(torch.rand(()))
    return *default_collate(samples), drawn


def steps(
    length: int,
    consumed: int,
    *,
    batch: int,
    world: int,
    drop_last: bool,
    dealing: Dealing = "blocks",
    lanes: int = 1,
    nodes: int = 1,
) -> Iterator[tuple[list[list[int]], int]]:
    """The rest of an epoch, in plain Python: for each step, the positions of every rank, and what is consumed then."""
    left = list(range(consumed, length))
    while left:
        taken, left = left[: world * batch], left[world * batch :]
        consumed += len(taken)
        if len(taken) < world * batch:
            if drop_last:
                return
            taken += islice(cycle(range(length)), -len(taken) % world)
        share = len(taken) // world
        if dealing == "interleaved":
            yield [taken[rank::world] for rank in range(world)], consumed
            continue
        if dealing == "lanes":
            by_lane = sorted(range(len(taken)), key=lambda index: taken[index] % lanes)
            size = len(taken) // nodes
            dealt = [index for node in range(nodes) for index in sorted(by_lane[node * size :][:size])]
            # Those of one node are not dealt out by lane.
            dealt = dealt if nodes > 1 else list(range(len(taken)))
            yield [[taken[index] for index in dealt[rank * share :][:share]] for rank in range(world)], consumed
            continue
        yield [taken[rank * share :][:share] for rank in range(world)], consumed


def assert_same(found: Any, expected: Any, *, strides: bool = False) -> None:
    """Asserts that two batches, or lists of batches, are equal in value, type and shape, and in memory if asked to."""
    place = difference(found, expected)
    assert not place, place
    if strides:
        leaves = (tree_leaves(batches) for batches in (found, expected))
        one, other = ([leaf.stride() for leaf in each if isinstance(leaf, torch.Tensor)] for each in leaves)
        assert one == other


def through_json(state: Any) -> Any:
    """A state after it was written to a JSON file and read back."""
    return json.loads(json.dumps(state))
