"""Laws of transforms: those of a dataset in a loader, and the pixels that the image itself would give."""

from __future__ import annotations

import copy
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packtrain import PackOptions, StoreOptions, open_dataset, pack
from packtrain._core.overriding import override
from packtrain._core.store_modes import STORE_MODES
from packtrain.transforms import Compose

from .loading import LoadingContract, require_same


class TransformContract(LoadingContract):
    """Laws of a transform: those of `LoadingContract`, and that it takes a stored record for the image in the file.

    A subclass defines the fixture `transform`: any callable, or a list of these and of packtrain's transforms, whose
    results have one shape. It may define `files`: the contents of the image files that the transform is tried on.

    Needs Pillow. packtrain's `RandomErasing` fails it where it is fused: called with an image, it draws other numbers.
    """

    @pytest.fixture
    def transform(self) -> Any:
        """The transform."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture `transform`, which returns what is tested")

    @pytest.fixture
    def files(self) -> list[bytes]:
        """Twelve JPEGs of several sizes, all of them larger than 64 pixels, and some of them grey."""
        return [jpeg(seed, 70 + 5 * seed, 130 - 4 * seed, "L" if seed % 5 == 4 else "RGB") for seed in range(12)]

    @pytest.fixture
    @override
    def dataset(self, transform: Any, files: list[bytes], tmp_path: Path) -> Any:
        """The files with the transform."""
        return open_dataset(packed(files, tmp_path, StoreOptions("verbatim")), transform)

    @pytest.mark.parametrize("store", [name for name, mode in STORE_MODES.items() if not mode.takes_quality])
    def test_a_record_gives_what_the_file_gives(
        self, transform: Any, files: list[bytes], tmp_path: Path, store: str
    ) -> None:
        from PIL import Image

        stored = open_dataset(packed(files, tmp_path / store, StoreOptions(store)))
        for row, data in enumerate(files):
            # Each call gets a copy, with the same state of any generator of its own.
            made = stored.with_transform(copy.deepcopy(transform))
            seed_everything(row)
            found = made[row][0]
            with Image.open(io.BytesIO(data)) as image:
                seed_everything(row)
                expected = Compose([copy.deepcopy(transform)])(image.convert("RGB"))
            law = f"from a {store} record, the transform makes something else than from the file itself, image {row}"
            require_same(as_tensors(found), as_tensors(expected), law)


def jpeg(seed: int, width: int, height: int, mode: str = "RGB") -> bytes:
    """A JPEG with a smooth picture and some noise, different for every seed."""
    from PIL import Image

    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (5, 7, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = (smooth + random.integers(-8, 9, smooth.shape, np.int16)).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).convert(mode).save(file, "JPEG")
    return file.getvalue()


def packed(files: list[bytes], folder: Path, store: StoreOptions) -> Path:
    """Packs files, each with its number for a label. Returns the dataset's folder."""
    folder.mkdir(exist_ok=True)
    for label, data in enumerate(files):
        (folder / f"{label}.jpg").write_bytes(data)
    (folder / "train.txt").write_text("".join(f"{label}.jpg {label}\n" for label in range(len(files))))
    pack(folder / "train.txt", folder / "out", PackOptions(store=store), num_workers=1)
    return folder / "out"


def seed_everything(seed: int) -> None:
    """Seeds the generators that a transform may draw from without owning them."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def as_tensors(made: Any) -> Any:
    """The result of a transform, with a tensor for each image or array; of an image, with channels first."""
    if isinstance(made, (list, tuple)):
        return [as_tensors(view) for view in made]
    if isinstance(made, torch.Tensor):
        return made
    array = np.array(made)
    is_image = not isinstance(made, np.ndarray)
    return torch.from_numpy(array.reshape(*array.shape[:2], -1).transpose(2, 0, 1) if is_image else array)
