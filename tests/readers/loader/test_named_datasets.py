"""Laws of batches of many fields that come from a dataset on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.datasets import FIELDS, LEFT_OUT, ROWS, make_dataset, values_of
from helpers.support import FORMATS
from torch.utils.data import default_collate

from packtrain import Loader, Ragged, open_dataset
from packtrain.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop

pytestmark = pytest.mark.usefixtures("no_process_left")

NAMES = ("label", *(field.name for field in FIELDS), "crop")
EXTRAS = ("row", "line", "position", "path")
FILLS = {"seg": torch.zeros((20, 24), dtype=torch.uint8), "caption": ""}
RANDOM = [RandomResizedCrop((11, 13)), RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_dataset(tmp_path_factory.mktemp("many") / name, name) for name in FORMATS}


def plain(value: Any) -> Any:
    """A value as Python's own objects."""
    if isinstance(value, Ragged):
        return list(map(plain, value))
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_hold_what_the_dataset_gives(folders: dict[str, Path], format: str, workers: int) -> None:
    dataset = open_dataset(folders[format], [CenterCrop((20, 24))], fields=NAMES)
    with Loader(dataset, 4, shuffle=True, seed=2, num_workers=workers, fields=EXTRAS) as loader:
        batches = list(loader)
        assert loader.stats.present.read_bytes >= sum(info.bytes or 0 for info in dataset.store.manifest.fields)
    assert sorted(row for batch in batches for row in batch.row.tolist()) == list(range(ROWS))
    for batch in batches:
        assert batch._fields == (*NAMES, *EXTRAS, "present")
        rows = batch.row.tolist()
        assert batch.path == [dataset.filename(row) for row in rows] and batch.line.tolist() == rows
        for vector in batch.present:
            assert vector.tolist() == [row != LEFT_OUT for row in rows]
        samples = [dataset[row] for row in rows]
        for name in NAMES:
            column = getattr(batch, name)
            found = [FILLS[name] if value is None else value for value in (getattr(each, name) for each in samples)]
            if isinstance(column, torch.Tensor):
                wanted = default_collate(found)
                assert column.dtype == wanted.dtype and torch.equal(column, wanted), name
            else:
                assert plain(column) == list(map(plain, found)), name
        # Not only as read, but as written.
        stored = [values_of(row) for row in rows]
        assert batch.meta == [each["meta"] for each in stored]
        assert plain(batch.boxes) == [each["boxes"].tolist() for each in stored]
        for depth, crop, each in zip(batch.depth, batch.crop.tolist(), stored, strict=True):
            left, top, width, height, _ = crop
            assert np.array_equal(depth.numpy(), each["depth"][top : top + height, left : left + width])


def test_a_single_sample_is_that_of_the_batch(folders: dict[str, Path]) -> None:
    loader = Loader(open_dataset(folders["tar"], RANDOM, fields=NAMES), ROWS, shuffle=True, seed=4, num_workers=0)
    samples = [loader.sample(position) for position in range(ROWS)]
    (batch,) = loader
    for name in ("image", "depth", "crop", "pose"):
        for sample, value in zip(samples, getattr(batch, name), strict=True):
            assert plain(getattr(sample, name)) == value.tolist()
            held = getattr(sample, name)
            assert isinstance(held, torch.Tensor) or held.flags.writeable
