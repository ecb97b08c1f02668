"""A project that extends packtrain: what is right keeps its contract, and what is broken says which law it breaks.

`testing/test_suites.py` runs it in a folder of its own. Each broken class names the law, and words of the message.
"""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import Phase, settings
from PIL import Image, ImageOps
from torch.utils.data import Dataset

from packtrain import PackOptions, StoreOptions, pack
from packtrain.orders import Order
from packtrain.testing import DatasetContract, LoadingContract, OrderContract, Sample, TransformContract
from packtrain.transforms import RandomResizedCrop

FOUND = (Phase.explicit, Phase.generate)  # what was found need not become smaller
settings.register_profile("outside", deadline=None, derandomize=True, database=None, max_examples=10, phases=FOUND)
settings.load_profile("outside")


# Datasets


class Noise(Dataset[Any]):
    """A number with noise from torch's generator."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __len__(self) -> int:
        return 13

    def noise(self, row: int) -> torch.Tensor:
        return torch.rand(3)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return row + self.scale * self.noise(row), row


class Counting(Noise):
    calls = 0

    def noise(self, row: int) -> torch.Tensor:
        self.calls += 1
        return torch.rand(3) + self.calls


class FromTheSystem(Noise):
    def noise(self, row: int) -> torch.Tensor:
        return torch.tensor([*os.urandom(3)]).float()


class OwnSeed(Noise):
    def noise(self, row: int) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng(row).random(3))


class Forgetful(Noise):
    def __reduce__(self) -> Any:
        return type(self), ()


class LoadingSuite(LoadingContract):
    start_methods = ("fork",)
    made: Any = Noise

    @pytest.fixture
    def dataset(self) -> Any:
        return self.made()


class TestNoise(LoadingSuite):
    pass


class TestCounting(LoadingSuite):
    made = Counting
    breaks = "test_an_epoch_can_be_gone_through_again", "after other epochs, the samples of your dataset depend on"


class TestFromTheSystem(LoadingSuite):
    made = FromTheSystem
    breaks = "test_any_number_of_workers_makes_the_same_batches[1-2]", "with 1 workers, the samples of your dataset"


class TestOwnSeed(LoadingSuite):
    made = OwnSeed
    breaks = "test_samples_are_random_exactly_if_the_suite_says_so", "row 0 is the same at 24 positions"


class TestForgetful(LoadingSuite):
    start_methods = ("spawn",)
    breaks = "test_workers_started_in_any_way_make_the_same_batches", "a pickled copy of your dataset"

    @staticmethod
    def made() -> Forgetful:
        return Forgetful(2.0)


# Transforms


def inverted(image: Image.Image) -> Image.Image:
    return ImageOps.invert(image) if random.random() < 0.5 else image


def by_the_file(image: Image.Image) -> Image.Image:
    return ImageOps.invert(image) if "jfif" in image.info else inverted(image)


def with_own_seed(image: Image.Image) -> Image.Image:
    return image.rotate(random.Random(3).random() * 90)


class Whitening:
    """Takes the mean of the first image that it sees for that of all."""

    mean: float | None = None

    def __call__(self, image: Image.Image) -> npt.NDArray[Any]:
        array = np.asarray(image, np.float32)
        self.mean = float(array.mean()) if self.mean is None else self.mean
        return array - self.mean


class TransformSuite(TransformContract):
    start_methods = ("fork",)
    made: Any = staticmethod(lambda: inverted)

    @pytest.fixture
    def transform(self) -> Any:
        return [RandomResizedCrop(24), self.made()]


class TestInverted(TransformSuite):
    pass


class TestByTheFile(TransformSuite):
    made = staticmethod(lambda: by_the_file)
    breaks = "test_a_record_gives_what_the_file_gives[raw]", "from a raw record, the transform makes something else"


class TestWithOwnSeed(TransformSuite):
    breaks = "test_samples_are_random_exactly_if_the_suite_says_so", "if nothing is random, say `random = False`"

    @pytest.fixture
    def transform(self) -> Any:
        return [lambda image: image.resize((24, 24)), with_own_seed]


class TestWhitening(TransformSuite):
    made = Whitening
    breaks = "test_a_resumed_epoch_goes_on_where_it_was", "after a resume behind batch 1, the samples of your"


# Orders


class Odd(Order):
    """The even rows, then the odd ones, from a place that the key says."""

    def __init__(self, rows: int) -> None:
        self.dataset_rows = self.count = rows

    def __len__(self) -> int:
        return self.count

    def check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"positions {start} to {stop} of {len(self)}")

    def rows(self, key: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        self.check(start, stop)
        rows = np.roll(np.arange(self.count), key % max(1, self.count))
        return np.concatenate([rows[::2], rows[1::2]])[start:stop]


class Twice(Odd):
    def rows(self, key: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        return super().rows(key, start, stop) // 2


class InSequence(Odd):
    """Goes on where it was asked last."""

    place = 0

    def rows(self, key: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        found = super().rows(key + self.place, start, stop)
        self.place = stop
        return found


class Keyless(Odd):
    def rows(self, key: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        return super().rows(1, start, stop)


class Lenient(Odd):
    def check(self, start: int, stop: int) -> None:
        pass


class Sorted(Odd):
    def batch_rows(self, key: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.sort(super().batch_rows(key, positions))


class OrderSuite(OrderContract):
    made: type[Odd] = Odd
    random = True

    def order(self, rows: int) -> Order:
        return self.made(rows)


class TestOdd(OrderSuite):
    pass


class TestTwice(OrderSuite):
    made = Twice
    breaks = "test_an_epoch_has_rows_of_the_dataset_each_as_often_as_promised", "an epoch does not have each row once"


class TestInSequence(OrderSuite):
    made = InSequence
    breaks = "test_a_range_may_be_split_anywhere", "a row depends on more than key and position"


class TestKeyless(OrderSuite):
    made = Keyless
    breaks = "test_another_key_gives_another_order", "different keys"


class TestLenient(OrderSuite):
    made = Lenient
    breaks = "test_positions_outside_an_epoch_are_an_index_error", "DID NOT RAISE"


class TestSorted(OrderSuite):
    made = Sorted
    breaks = "test_the_rows_of_a_batch_are_those_at_its_positions", "`batch_rows` != `rows`"


# Datasets on disk


class DatasetSuite(DatasetContract):
    again = False
    shift = 0
    missing = 0

    @pytest.fixture
    def samples(self) -> list[Sample]:
        made = []
        for number in range(12):
            pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(file := io.BytesIO(), "JPEG")
            made.append(Sample(f"{number}.jpg", number % 5, file.getvalue(), np.asarray(Image.open(file))))
        return made

    @pytest.fixture
    def folder(self, samples: list[Sample], tmp_path: Path) -> Path:
        return self.written(samples, tmp_path)

    def written(self, samples: list[Sample], folder: Path) -> Path:
        for sample in samples:
            path = folder / sample.name
            path.write_bytes(sample.record)
            if self.again:
                Image.fromarray(sample.pixels).save(path, quality=50)
        lines = [f"{sample.name} {sample.label + self.shift}\n" for sample in samples[self.missing :]]
        (folder / "train.txt").write_text("".join(lines))
        options = PackOptions(format="tar", store=StoreOptions("verbatim"), shard_size=6000)
        pack(folder / "train.txt", folder / "out", options, num_workers=1)
        return folder / "out"


class TestPacked(DatasetSuite):
    pass


class TestEncodedAgain(DatasetSuite):
    again = True
    breaks = "test_a_record_is_the_stored_bytes_and_cannot_be_written_to[mmap]", "row 0 has another record"


class TestOtherLabels(DatasetSuite):
    shift = 1
    breaks = "test_an_item_is_the_picture_and_its_label[mmap]", "row 0 has another label"


class TestMissing(DatasetSuite):
    missing = 1
    breaks = "test_an_item_is_the_picture_and_its_label[pread]", "the dataset has another number of rows"


class TestHeaderOfAnotherFile(DatasetSuite):
    """Our own reader goes by the index, and does not see it."""

    breaks = "test_every_file_is_what_the_manifest_and_the_index_say", "assert not"

    def written(self, samples: list[Sample], folder: Path) -> Path:
        out = super().written(samples, folder)
        shard = next(out.glob("*.tar"))
        shard.chmod(0o644)
        shard.write_bytes(b"9" + shard.read_bytes()[1:])
        return out
