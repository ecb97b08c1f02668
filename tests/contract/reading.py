"""Laws of what the reader gives, for every format; those of any dataset are in `packtrain.testing`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fusing import decoded, expected, numbers
from helpers.support import sources
from PIL import Image

from packtrain import open_dataset
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import UsageError
from packtrain.testing import DatasetContract, Sample
from packtrain.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

from .laws import Laws


class ReadingLaws(Laws, DatasetContract):
    @pytest.fixture
    def samples(self, images: Path) -> list[Sample]:
        listed = sources(images)
        pictures = [np.asarray(Image.open(io.BytesIO(source.data)).convert("RGB")) for source in listed]
        return [
            Sample(source.name, source.label, source.data, pixels)
            for source, pixels in zip(listed, pictures, strict=True)
        ]

    def test_views_outlive_the_store(self, folder: Path, samples: list[Sample]) -> None:
        for io_mode in ("mmap", "pread"):
            with RecordStore(folder, io=io_mode) as store:
                views = [store.record(row) for row in range(len(store))]
            del store
            assert [view.tobytes() for view in views] == [sample.record for sample in samples]

    def test_fused_transforms_give_torchvisions_pixels(
        self, torchvision: Any, images: Path, tmp_path: Path, samples: list[Sample]
    ) -> None:
        for store in (StoreOptions(), StoreOptions("verbatim"), StoreOptions("raw"), StoreOptions(mode="L")):
            out = self.pack(images, tmp_path / f"{store.store} {store.mode}", store=store)
            for io_mode in ("mmap", "pread"):
                opened = open_dataset(out, [RandomResizedCrop(20), RandomHorizontalFlip()], io=io_mode)
                assert isinstance(opened._samples.compose, Compose)
                for row, sample in enumerate(samples):
                    image, random = decoded(sample.record, store.mode), numbers(row, 23)
                    steps = opened._samples.compose.operations(*image.size, random)
                    assert torch.equal(opened._samples.make(row, random)[0], expected(torchvision, image, steps))

    def test_an_unknown_way_of_reading_is_refused(self, folder: Path) -> None:
        with pytest.raises(UsageError, match="expected one of auto, mmap, pread"):
            open_dataset(folder, io="magic")
