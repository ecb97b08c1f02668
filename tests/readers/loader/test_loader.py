"""Laws of `Loader`: what is in a batch, whichever process makes it, and what is refused."""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.batching import Fixed, Numbers, assert_same, chw_float, half, hwc_array, jitter, mixing, padded, pair
from helpers.support import (
    FORMATS,
    encoded,
    packed,
    param_id,
    picture,
    shard_bytes,
    sources,
)
from PIL import Image
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from packtrain import ImageDataset, Loader, concat, open_dataset
from packtrain._core import cores as cores_module
from packtrain._core.keys import mixed
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._readers.loader.randomness import preserved, seed_all, uniforms
from packtrain.errors import LoaderError, UsageError
from packtrain.orders import Shuffled, Weighted
from packtrain.testing import LoadingContract
from packtrain.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

ALL_FIELDS = ("row", "line", "position", "path")
CROP = [Resize((30, 33)), CenterCrop((28, 26))]
RANDOM = [RandomResizedCrop((7, 9)), RandomHorizontalFlip()]
STORES = {
    "crop-ready": StoreOptions(),
    "coefficients": StoreOptions("coefficients"),
    "verbatim": StoreOptions("verbatim"),
    "raw": StoreOptions("raw"),
}


@pytest.fixture(scope="module")
def folders(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """The session's images in every format, and stored in every way, several shards each."""
    folder, size = tmp_path_factory.mktemp("loader"), shard_bytes(images, 5)
    return {
        (name, store): packed(images, folder / f"{name} {store}", name, store=STORES[store], shard_size=size)
        for name, store in dict.fromkeys([*product(FORMATS, ["crop-ready"]), *product(["tar"], STORES)])
    }


@pytest.fixture(scope="module")
def folder(folders: dict[tuple[str, str], Path]) -> Path:
    return folders["tar", "crop-ready"]


@pytest.fixture(scope="module")
def everything(folders: dict[tuple[str, str], Path]) -> ImageDataset:
    """All of these in one, read with mmap and pread, with packtrain's transforms and with foreign ones."""
    fused = [open_dataset(folder, RANDOM, pair) for folder in folders.values()]
    foreign = [open_dataset(folder, jitter, pair, io="pread") for folder in folders.values()]
    return concat([*fused, *foreign])


@pytest.fixture(scope="module")
def expected(everything: ImageDataset) -> list[Any]:
    """Its first pass, made without workers."""
    return epoch(everything, 16, seed=4, fields=ALL_FIELDS)


def loader_of(dataset: Any, batch: int = 5, **options: Any) -> Loader:
    fixed = {"shuffle": "sampler" not in options, "seed": 0, "num_workers": 0, "multiprocessing_context": "fork"}
    return Loader(dataset, batch, **{**fixed, **options})


def epoch(dataset: Any, batch: int = 5, **options: Any) -> list[Any]:
    """The batches of one pass. The workers end with it."""
    with loader_of(dataset, batch, **options) as loader:
        return list(loader)


def tensor(image: Any) -> Any:
    """A PIL image as a tensor [channels, height, width]; anything else unchanged."""
    if not isinstance(image, Image.Image):
        return image
    return torch.from_numpy(np.array(image).reshape(image.height, image.width, -1)).permute(2, 0, 1)


class TestBatches:
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("store", STORES)
    def test_pixels_are_pillows_and_labels_the_lists(
        self, folders: dict[tuple[str, str], Path], images: Path, store: str, workers: int
    ) -> None:
        dataset, listed = open_dataset(folders["tar", store], CROP), sources(images)
        found = epoch(dataset, num_workers=workers, fields=ALL_FIELDS)
        assert [len(batch[0]) for batch in found] == [5, 5, 2]
        rows, lines, positions, paths = ([each for batch in found for each in batch[2 + n]] for n in range(4))
        assert sorted(map(int, rows)) == sorted(map(int, lines)) == list(map(int, positions)) == list(range(12))
        assert rows != sorted(rows) and [dataset.line(int(row)) for row in rows] == [int(line) for line in lines]
        assert paths == [listed[int(line)].name for line in lines]
        assert all(column.dtype == torch.int64 for batch in found for column in batch[1:5])
        for batch in found:
            assert (batch[0].dtype, batch[0].shape[1:]) == (torch.uint8, (3, 28, 26))
            assert batch[0].is_contiguous(memory_format=torch.channels_last)
            for image, label, line in zip(batch[0], batch[1], batch[3], strict=True):
                source = listed[int(line)]
                with Image.open(io.BytesIO(source.data)) as opened:
                    whole = opened.convert("RGB").resize((33, 30), Image.Resampling.BILINEAR)
                # Half of 2 rows, and half of 7 columns as torchvision rounds it.
                assert torch.equal(image, tensor(whole.crop((4, 1, 30, 29))))
                assert int(label) == source.label

    def test_rows_and_random_numbers_are_those_of_seed_epoch_and_position(self, folder: Path) -> None:
        """Written out, because every saved state relies on it."""
        dataset = open_dataset(folder, RANDOM)
        loader = loader_of(dataset, seed=9, fields=("row",))
        for number in range(2):
            rows = Shuffled(12).rows(mixed(9, number, 0), 0, 12)
            drawn = uniforms(mixed(9, number, 1), 0, 12, dataset._samples.draws)
            found = [sample for batch in loader for sample in zip(*batch, strict=True)]
            for (image, label, row), numbers, expected in zip(found, drawn, rows, strict=True):
                assert int(row) == expected
                assert_same((image, int(label)), dataset._samples.make(int(expected), numbers.tolist()))

    def test_foreign_transforms_draw_from_generators_seeded_for_the_position(self, folder: Path) -> None:
        dataset = open_dataset(folder, jitter, pair)
        loader = loader_of(dataset, seed=9, shuffle=False)
        found = [sample for batch in loader for sample in zip(*batch, strict=True)]
        for position, (image, label) in enumerate(found):
            with preserved():
                seed_all(mixed(9, 0, 1), position)
                expected = dataset[position]
            assert torch.equal(image, tensor(expected[0])) and label.tolist() == expected[1].tolist()

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize(
        ("transform", "target"),
        [
            (CROP, None),
            (CROP, half),
            (CROP, pair),
            (jitter, None),
            (jitter, pair),
            (chw_float, None),
            (hwc_array, half),
        ],
        ids=["fused", "float", "array", "PIL", "PIL array", "ToTensor", "numpy"],
    )
    def test_a_batch_is_what_default_collate_makes_of_its_samples(
        self, tmp_path: Path, transform: Any, target: Any, workers: int
    ) -> None:
        """Compared with `sample`. Sizes are fixed, because some of these transforms keep the size."""
        for number in range(7):
            (tmp_path / f"{number}.jpg").write_bytes(encoded(picture(number, 34, 31)))
        (tmp_path / "train.txt").write_text("".join(f"{number}.jpg {number}\n" for number in range(7)))
        dataset = open_dataset(packed(tmp_path / "train.txt", tmp_path / "out", "tar"), transform, target)
        with loader_of(dataset, 4, seed=3, num_workers=workers, fields=ALL_FIELDS) as loader:
            loader.set_epoch(2)
            samples = [loader.sample(position) for position in range(7)]
            found = list(loader)
        for number, batch in enumerate(found):
            images, *columns = zip(*samples[4 * number : 4 * number + 4], strict=True)
            expected = default_collate([tensor(image) for image in images])
            assert_same(batch[0], expected)
            for column, values in zip(batch[1:], columns, strict=True):
                collated = default_collate(list(values))
                assert_same(column, list(collated) if isinstance(collated, tuple) else collated)
            if not isinstance(images[0], np.ndarray) and expected.dtype == torch.uint8:
                assert batch[0].is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.parametrize(
        ("options", "transform"),
        [
            ({"store": StoreOptions("raw", resize="20x16")}, None),
            ({"store": StoreOptions("raw", resize="20x16", mode="L")}, None),
            ({"store": StoreOptions(mode="L")}, CROP),
            ({"store": StoreOptions(mode="L")}, [*CROP, np.array]),
            ({"store": StoreOptions(mode="L")}, lambda image: image.resize((5, 4))),
            ({"labels": LabelSpec("float")}, CROP),
            ({"labels": LabelSpec("float", 2)}, CROP),
            ({"labels": LabelSpec("int", 2)}, CROP),
        ],
        ids=param_id,
    )
    def test_whatever_is_stored(self, images: Path, tmp_path: Path, options: dict[str, Any], transform: Any) -> None:
        """Raw images of one size, which need no transform, grey ones, and labels of all kinds."""
        values = "7 " * ((options["labels"].count or 1) - 1 if "labels" in options else 0)
        (tmp_path / "train.txt").write_text(images.read_text().replace(".jpg ", f".jpg {values}"))
        out = packed(tmp_path / "train.txt", tmp_path / "out", "tar", root=images.parent, **options)
        dataset = open_dataset(out, transform)
        for pixels, labels, rows in epoch(dataset, num_workers=1, fields=("row",)):
            expected, known = zip(*(dataset[int(row)] for row in rows), strict=True)
            assert_same(pixels, default_collate([tensor(image) for image in expected]))
            assert_same(labels, default_collate(list(known)))

    def test_subsets_and_concatenations(self, folder: Path, images: Path) -> None:
        small, other = open_dataset(folder, CenterCrop(4)), open_dataset(folder, lambda image: image.resize((4, 4)))
        dataset = concat([small.subset([7, 1, 1, -1]), other, small])
        for workers in (0, 2):
            for batch, labels, *fields in epoch(dataset, 6, num_workers=workers, fields=ALL_FIELDS):
                expected = [dataset[int(row)] for row in fields[0]]
                assert_same(batch, torch.stack([tensor(image) for image, _ in expected]))
                assert labels.tolist() == [label for _, label in expected]
                assert fields[1].tolist() == [dataset.line(int(row)) for row in fields[0]]
                assert fields[3] == [dataset.filename(int(row)) for row in fields[0]]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_plain_torch_datasets(self, folder: Path, workers: int) -> None:
        tensors = TensorDataset(torch.rand(9, 3, 4, 5), torch.arange(9) % 3)
        packs = Subset(open_dataset(folder, CROP), [5, 0, 7])
        floats = Fixed(*((np.full((2, 2), row, np.float32), np.float32(row)) for row in range(4)))
        for dataset in (tensors, packs, floats):
            ours = epoch(dataset, 4, shuffle=False, num_workers=workers)
            assert_same(ours, [tuple(batch) for batch in DataLoader(dataset, 4)])
            shuffled = epoch(dataset, 4, num_workers=workers, fields=("row", "position"))
            for batch in shuffled:
                samples = [dataset[int(row)] for row in batch[2]]
                assert_same(list(batch[:2]), default_collate(samples))
        with pytest.raises(UsageError, match="'line': only packtrain datasets have it"):
            loader_of(packs, fields=("line",))


class TestWhoMakesIt(LoadingContract):
    batch_size = 16
    start_methods = ("fork",)

    @pytest.fixture
    def dataset(self, everything: ImageDataset) -> ImageDataset:
        return everything


class TestSamples:
    def test_one_sample_again(self, everything: ImageDataset, expected: list[Any]) -> None:
        loader = loader_of(everything, 16, seed=4, fields=ALL_FIELDS)
        for position in (0, 100, 15, len(everything) - 1):
            image, label, *fields = loader.sample(position)
            batch, number = expected[position // 16], position % 16
            assert torch.equal(tensor(image), batch[0][number]) and torch.equal(
                torch.from_numpy(label), batch[1][number]
            )
            assert fields == [column[number] for column in batch[2:]]
        for position in (-1, len(everything)):
            with pytest.raises(IndexError, match=f"position {position} of an epoch of {len(everything)}"):
                loader.sample(position)

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.complete
    def test_the_generators_of_this_process_are_left_alone(self, everything: ImageDataset, workers: int) -> None:
        def states() -> tuple[Any, ...]:
            numpys: Any = np.random.get_state()
            return random.getstate(), numpys[1].tobytes(), *numpys[2:], torch.get_rng_state().tolist()

        before = states()
        ways: list[tuple[ImageDataset, Any]] = [
            (everything, None),
            (everything.with_transform(RANDOM), None),
            (everything.with_transform(RANDOM), mixing),
            (everything.with_transform([*RANDOM, chw_float]), mixing),
        ]
        for dataset, collate_fn in ways:
            with loader_of(dataset, 16, num_workers=workers, collate_fn=collate_fn) as loader:
                for _ in loader:
                    assert states() == before
                loader.sample(3)
                loader.state_dict()
            assert states() == before


class TestCollate:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_it_gets_the_samples_that_torchs_gets(self, folder: Path, workers: int) -> None:
        """Images of several sizes, which is what collate_fn is for."""
        dataset = open_dataset(folder)
        theirs = list(DataLoader(dataset, 5, collate_fn=padded))
        assert_same(epoch(dataset, shuffle=False, num_workers=workers, collate_fn=padded), theirs)
        theirs = list(DataLoader(dataset, 5, collate_fn=padded, drop_last=True))
        assert_same(epoch(dataset, shuffle=False, drop_last=True, num_workers=workers, collate_fn=padded), theirs)

    def test_default_collate_gives_what_no_collate_fn_gives(self, everything: ImageDataset) -> None:
        dataset = everything.with_transform(RANDOM)
        found = epoch(dataset, 16, collate_fn=default_collate, num_workers=2, fields=("row", "position"))
        expected = epoch(dataset, 16, fields=("row", "position"))
        assert_same([tuple(batch) for batch in found], expected)

    @pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.complete)])
    def test_fields_and_dictionaries(self, folder: Path, method: str) -> None:
        dataset = open_dataset(folder)
        options: dict[str, Any] = {"collate_fn": padded, "fields": ALL_FIELDS}
        found = epoch(dataset, num_workers=2, multiprocessing_context=method, **options)
        assert_same(found, epoch(dataset, **options))
        labels, rows, lines, positions, paths = zip(*(batch["columns"] for batch in found), strict=True)
        assert sorted(torch.cat(rows).tolist()) == torch.cat(positions).tolist() == list(range(12))
        flat = [
            (int(row), int(line))
            for pair_of in zip(rows, lines, strict=True)
            for row, line in zip(*pair_of, strict=True)
        ]
        assert all(dataset.line(row) == line for row, line in flat)
        assert [name for column in paths for name in column] == [dataset.filename(row) for row, _ in flat]
        assert torch.cat(labels).tolist() == [dataset.label(row) for row, _ in flat]

    @pytest.mark.parametrize("transform", [RANDOM, [*RANDOM, chw_float]], ids=["fused", "foreign"])
    def test_its_random_numbers_belong_to_the_batch(self, folder: Path, transform: Any) -> None:
        dataset = open_dataset(folder, transform)
        expected = epoch(dataset, 2, collate_fn=mixing)
        drawn = [batch[-1] for batch in expected]
        assert len(set(drawn)) == len(drawn) == 6, "the numbers of another batch"
        for workers in (1, 2):
            assert_same(epoch(dataset, 2, collate_fn=mixing, num_workers=workers), expected)
        # Like those of samples, they differ from epoch to epoch, and they are not those of the last sample.
        loader = loader_of(dataset, 2, collate_fn=mixing)
        list(loader)
        assert not {batch[-1] for batch in loader} & set(drawn)


class TestEnds:
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("rows", [0, 1, 4, 5, 11])
    @pytest.mark.parametrize("drop_last", [True, False])
    def test_lengths_are_torchs(self, rows: int, drop_last: bool, workers: int) -> None:
        for batch in (1, 4, 5, 1000):
            theirs = DataLoader(Numbers(rows), batch, drop_last=drop_last)
            with loader_of(Numbers(rows), batch, drop_last=drop_last, num_workers=workers) as loader:
                for _ in range(2):
                    assert [len(labels) for _, labels in loader] == [len(labels) for _, labels in theirs]
                    assert len(loader) == len(theirs)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_nothing_to_do(self, folder: Path, workers: int) -> None:
        empty = open_dataset(folder, CROP).subset([])
        ranks = {"world_size": 3, "rank": 1}
        ways: list[dict[str, Any]] = [{}, {"collate_fn": padded}, {"sampler": []}, {"sampler": Weighted([])}, ranks]
        for options in ways:
            with loader_of(empty, num_workers=workers, fields=ALL_FIELDS, **options) as loader:
                assert (len(loader), list(loader), list(loader)) == (0, [], [])
                assert loader.state_dict()["epoch"] == 2

    def test_an_order_may_be_longer_or_shorter_than_the_dataset(self) -> None:
        for order, expected in ((Weighted([1] * 10, 3), 3), (Weighted([1] * 10, 25), 25)):
            assert sum(len(labels) for _, labels in epoch(Numbers(10), 4, sampler=order)) == expected

    def test_a_sampler_that_is_longer_in_a_later_epoch(self) -> None:
        class Growing:
            epoch = 0

            def set_epoch(self, epoch: int) -> None:
                self.epoch = epoch

            def __iter__(self) -> Any:
                return iter(range(3 + 4 * self.epoch))

        for workers in (0, 1):
            with loader_of(Numbers(20), 5, sampler=Growing(), num_workers=workers) as loader:
                sizes = [[len(labels) for _, labels in loader] for _ in range(3)]
            assert sizes == [[3], [5, 2], [5, 5, 1]]


class Unlike(Fixed):
    """Rows 0 to 2 are alike, row 3 is not."""

    def __init__(self, image: Any, label: Any, *, other: tuple[Any, Any]) -> None:
        super().__init__(*[(image, label)] * 3, other)


IMAGE = torch.zeros(3, 4, 5, dtype=torch.uint8)
UNLIKE = {
    "height": (Unlike(IMAGE, 1, other=(IMAGE[:, :3], 1)), r"its image is uint8 \[3, 3, 5\]"),
    "channels": (Unlike(IMAGE, 1, other=(IMAGE[:1], 1)), r"its image is uint8 \[1, 4, 5\]"),
    "dtype": (
        Unlike(IMAGE, 1, other=(IMAGE.float(), 1)),
        r"its image is float32 \[3, 4, 5\], .* first sample was uint8",
    ),
    "PIL": (Unlike(Image.new("RGB", (5, 4)), 1, other=(Image.new("RGB", (4, 5)), 1)), r"\(height, width, channels\)"),
    "no image": (
        Unlike(IMAGE, 1, other=("image", 1)),
        "its image is an object of type str: expected a tensor, an array or a PIL image",
    ),
    "float": (Unlike(IMAGE, 1, other=(IMAGE, 1.5)), r"its label is float64 \[\], that of the first sample was int64"),
    "vector": (Unlike(IMAGE, np.zeros(2), other=(IMAGE, np.zeros(3))), r"its label is float64 \[3\], .* float64 \[2\]"),
    "scalar": (Unlike(IMAGE, np.zeros(2), other=(IMAGE, 0)), r"its label is int64 \[\]"),
    "bool": (Unlike(IMAGE, True, other=(IMAGE, 5)), r"its label is int64 \[\], that of the first sample was bool"),
    "wider": (Unlike(IMAGE, np.int8(1), other=(IMAGE, np.int64(300))), r"its label is int64 \[\]"),
    "large": (Unlike(IMAGE, 1, other=(IMAGE, 2**63)), "too large|too big"),
    "text": (Unlike(IMAGE, 1, other=(IMAGE, "cat")), r"its label is <U3 \[\]"),
    "none": (Unlike(IMAGE, 1, other=(IMAGE, None)), r"its label is object \[\]"),
}


class TestSamplesThatDoNotFit:
    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("name", UNLIKE)
    def test_they_are_named_with_what_to_do(self, name: str, workers: int) -> None:
        dataset, message = UNLIKE[name]
        remedy = (
            r"(?s)^row 3, position 3: .*"
            + message
            + ".* Let the transforms give all samples the same shape and dtype, or give a collate_fn"
        )
        with loader_of(dataset, 2, shuffle=False, num_workers=workers) as loader:
            batches = iter(loader)
            assert len(next(batches)[0]) == 2
            with pytest.raises(LoaderError, match=remedy):
                next(batches)
            assert loader.state_dict()["consumed"] == 2

    @pytest.mark.parametrize(
        ("label", "message"),
        [("cat", "type str"), ({"a": 1}, "type dict"), ((1, 2), "type tuple"), (None, "NoneType"), (2**63, "")],
    )
    def test_labels_that_are_no_tensors(self, label: Any, message: str) -> None:
        for workers in (0, 1):
            with (
                loader_of(Fixed((IMAGE, label)), num_workers=workers) as loader,
                pytest.raises(LoaderError, match=f"(?s)row 0, position 0: .*{message}.*give a collate_fn"),
            ):
                list(loader)

    def test_numbers_of_one_kind_are_converted(self) -> None:
        dataset = Fixed((IMAGE, np.float32(1)), (IMAGE, 2.5), (IMAGE, 3), (IMAGE, np.float64(4)))
        ((_, labels),) = epoch(dataset, shuffle=False)
        assert_same(labels, torch.tensor([1, 2.5, 3, 4]))


class TestWorkers:
    @pytest.mark.parametrize(
        ("cores", "environment", "expected"), [(8, None, 8), (8, "2", 4), (7, "2", 3), (2, "4", 1), (1, None, 1)]
    )
    def test_auto_is_what_the_ranks_of_this_machine_leave(
        self, monkeypatch: pytest.MonkeyPatch, cores: int, environment: str | None, expected: int
    ) -> None:
        monkeypatch.setattr(cores_module, "available_cores", lambda: cores)
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        if environment is not None:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", environment)
        assert Loader(Numbers(3), 1).num_workers == expected

    def test_they_are_started_by_the_first_pass_and_stay(self, tmp_path: Path) -> None:
        def init(number: int) -> None:
            with (tmp_path / str(number)).open("a") as file:
                file.write(f"{os.getpid()} ")

        def pids(least: int = 0) -> dict[str, list[str]]:
            """Waits for that many: a worker may still be starting when the others have done all the work."""
            deadline = time.monotonic() + 30
            while True:
                found = {path.name: path.read_text().split() for path in sorted(tmp_path.iterdir())}
                if sum(map(len, found.values())) >= least or time.monotonic() > deadline:
                    return found
                time.sleep(0.01)

        with loader_of(Numbers(20), 2, num_workers=3, worker_init_fn=init) as loader:
            loader.state_dict()
            loader.sample(1)
            assert pids() == {}
            for _ in range(3):
                list(loader)
            next(iter(loader))
            list(loader)
            first = pids(3)
            assert list(first) == ["0", "1", "2"] and all(len(found) == 1 for found in first.values())
            loader.close()
            assert len(list(loader)) == 10
            assert [len(found) for found in pids(6).values()] == [2, 2, 2]
        list(loader_of(Numbers(20), 2, num_workers=0, worker_init_fn=init))
        assert [len(found) for found in pids().values()] == [2, 2, 2]

    def test_a_context_may_be_given_as_such(self) -> None:
        import multiprocessing

        context = multiprocessing.get_context("fork")
        assert len(epoch(Numbers(20), num_workers=1, multiprocessing_context=context)) == 4


class TestUsage:
    def test_wrong_epochs(self) -> None:
        loader = loader_of(Numbers(10))
        attempts: list[Callable[[], Any]] = [lambda: None, lambda: next(iter(loader)), lambda: list(loader)]
        for attempt in attempts:
            attempt()
            before = loader.state_dict()
            for epoch in (-1, 1.5, "1", None):
                with pytest.raises(UsageError, match=f"epoch={epoch!r}"):
                    loader.set_epoch(epoch)  # type: ignore[arg-type]
                assert loader.state_dict() == before
