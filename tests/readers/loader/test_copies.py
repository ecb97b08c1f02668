"""Laws of batches copied at once from raw records: they equal what `item` makes one by one, or `item` makes them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.batching import half
from helpers.chunking import CutChunks
from helpers.hazards import quiet
from helpers.support import FORMATS, encoded, flip, packed, param_id, picture, soon

from packtrain import ImageDataset, Loader, append, concat, open_dataset
from packtrain._codec import resizing
from packtrain._codec.native import extension
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._readers.dataset import copying
from packtrain._readers.dataset.image_dataset import PackedDataset
from packtrain._readers.dataset.samples import PackedSamples, Samples
from packtrain._readers.loader.batches import BatchMaker, Probe
from packtrain._readers.loader.samples import SampleMaker
from packtrain._readers.transforms.batched import Destination
from packtrain._storage.streams import cutting
from packtrain.errors import CorruptFile, CorruptRecord, LoaderError
from packtrain.transforms import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop

pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

LABELS: dict[str, Callable[[int], str]] = {
    "int": lambda number: f"{number % 7}",
    "float*2": lambda number: f"{number / 3} -{number}",
    "none": lambda number: "",
}
CROP = [RandomCrop((20, 24)), RandomHorizontalFlip()]
RESIZED = [RandomResizedCrop((20, 24)), RandomHorizontalFlip()]
COUNT = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and a list of them for each kind of label."""
    folder = tmp_path_factory.mktemp("lists")
    for number in range(COUNT):
        (folder / f"{number}.png").write_bytes(encoded(picture(number, 30 + number, 44 - number % 9), "PNG"))
    for labels, texts in LABELS.items():
        lines = (f"{number}.png {texts(number)}\n" for number in range(COUNT))
        (folder / f"{labels}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def raw(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A dataset that is packed only once."""
    outputs, made = tmp_path_factory.mktemp("datasets"), dict[str, Path]()

    def make(format: str = "tar", labels: str = "int", store: str = "raw", **options: Any) -> Path:
        name = f"{format} {labels} {store} {options}"
        if name not in made:
            made[name] = packed(
                folder / f"{labels}.txt",
                outputs / str(len(made)),
                format,
                store=StoreOptions(store, **options),
                labels=LabelSpec.parse(labels),
                shard_size=30_000,
            )
        return made[name]

    return make


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each batch that a dataset was asked for, whether it was copied."""
    said: list[bool] = []
    original = Samples.copy_rows

    def spy(self: Samples, *arguments: Any) -> bool:
        said.append(original(self, *arguments))
        return said[-1]

    monkeypatch.setattr(Samples, "copy_rows", spy)
    return said


def batches(dataset: ImageDataset, **options: Any) -> Iterator[Any]:
    """The second epoch; the first one finds out that the data is in memory."""
    options = {"shuffle": True, "seed": 3, "num_workers": 0, "fields": ("row", "position", "path"), **options}
    with Loader(dataset, 8, **options) as loader:
        for _ in loader:
            pass
        yield from loader


def one_by_one(dataset: ImageDataset, **options: Any) -> Iterator[Any]:
    """The same epoch, made by `sample`."""
    options = {"shuffle": True, "seed": 3, "num_workers": 0, "fields": ("row", "position", "path"), **options}
    with Loader(dataset, 8, **options) as loader:
        loader.set_epoch(1)
        for first in range(0, len(dataset), 8):
            samples = [loader.sample(position) for position in range(first, min(first + 8, len(dataset)))]
            images, labels, rows, positions, paths = zip(*samples, strict=True)
            yield torch.stack(images), torch.tensor(np.array(labels)), rows, positions, paths


def require_same(found: Iterator[Any], expected: Iterator[Any]) -> None:
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine[0], other[0])
        assert mine[0].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(mine[1], other[1])
        assert [tuple(map(_plain, column)) for column in mine[2:]] == [tuple(column) for column in other[2:]]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"labels": "float*2"},
        *(
            pytest.param(options, marks=pytest.mark.complete)
            for options in ({"mode": "L"}, {"resize": "26x24"}, {"labels": "none"})
        ),
    ],
    ids=param_id,
)
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("transform", [CROP, RESIZED], ids=["crop", "resized"])
def test_they_are_those_of_single_samples(
    raw: Callable[..., Path], copies: list[bool], format: str, options: dict[str, Any], check: bool, transform: Any
) -> None:
    dataset = open_dataset(raw(format, **options), transform, check=check)
    require_same(batches(dataset), one_by_one(dataset))
    can = transform is CROP or (options.get("mode") != "L" and resizing.style() is not None)
    assert copies[-3:] == [can] * 3


@pytest.mark.parametrize("transform", [[CenterCrop((20, 24))], CROP, [RandomCrop((20, 24))], RESIZED], ids=param_id)
def test_datasets_of_datasets(raw: Callable[..., Path], copies: list[bool], transform: Any) -> None:
    first, second = (open_dataset(raw(format), transform) for format in ("tar", "lmdb"))
    for dataset in (
        first.subset(range(COUNT - 1, 3, -2)),
        concat([first, first]),
        concat([first.subset([4, -1, 7]), second, first]),
        concat([second, first]).subset(np.arange(2 * COUNT) % 3 == 1),
    ):
        require_same(batches(dataset), one_by_one(dataset))
        assert copies[-1] is (transform is not RESIZED or resizing.style() is not None)


def test_all_parts_are_copied_at_once(raw: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with another transform follow: all of its images are planned together."""
    calls: list[int] = []
    real = extension
    assert real is not None

    def copy_records(views: Any, places: Any, *others: Any) -> bool:
        calls.append(len(places))
        return real.copy_records(views, places, *others)

    spy = SimpleNamespace(copy_records=copy_records, take_rows=real.take_rows)
    monkeypatch.setattr(copying, "extension", spy)
    many = concat([open_dataset(raw()), *[open_dataset(raw("lmdb"))] * 5]).with_transform(CROP)
    assert many._samples.copy_rows(np.arange(6 * COUNT), room_for(6 * COUNT))
    more = raw().parent / "more"
    shutil.copytree(raw(), more)
    append(more, raw("lmdb"))
    segments = open_dataset(more, CROP)
    assert segments._samples.copy_rows(np.arange(2 * COUNT), room_for(2 * COUNT))
    first = open_dataset(raw(), CROP)
    mixed = concat([first, open_dataset(raw("lmdb"), [CenterCrop((20, 24))]), first])
    assert mixed._samples.copy_rows(np.arange(3 * COUNT), room_for(3 * COUNT))
    assert calls == [6 * COUNT, 2 * COUNT, 2 * COUNT, COUNT]


def test_parts_are_not_searched_for_one_another(raw: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """That would take time that grows with their square."""
    compared: list[object] = []
    monkeypatch.setattr(Samples, "__eq__", lambda *both: compared.append(both), raising=False)
    many = concat([open_dataset(raw(), CROP).subset([number]) for number in range(COUNT)])
    assert many._samples.copy_rows(np.arange(COUNT), room_for(COUNT))
    assert len(compared) < COUNT


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world", [1, 3])
def test_workers_and_ranks_get_the_same(raw: Callable[..., Path], shuffle: bool, world: int) -> None:
    """At the end of an epoch, positions from its beginning fill the batch, so they are not consecutive."""
    dataset = open_dataset(raw(), CROP)
    for rank in range(world):
        options = {"shuffle": shuffle, "rank": rank, "world_size": world}
        with_item = list(batches(dataset.with_transform([*CROP, _same]), **options))
        for workers in (0, 2):
            require_same(batches(dataset, num_workers=workers, **options), iter(_uint8(with_item)))


def _same(image: Any) -> Any:
    """A transform that is not packtrain's, for which samples are made one by one."""
    return image


def _uint8(found: list[Any]) -> list[Any]:
    return [(images, *rest[:-1], tuple(rest[-1])) for images, *rest in found]


@pytest.mark.parametrize("other", ["target", "pread", "encoded", "resized", "foreign"])
def test_what_is_made_one_by_one_as_ever(raw: Callable[..., Path], copies: list[bool], other: str) -> None:
    path = raw(store="raw" if other != "encoded" else "verbatim")
    transforms: dict[str, Any] = {
        "resized": [RandomResizedCrop((20, 24), interpolation="lanczos")],
        "foreign": [*CROP, _same],
    }
    transform = transforms.get(other, CROP)
    target = half if other == "target" else None
    io = "pread" if other == "pread" else "auto"
    found = list(batches(open_dataset(path, transform, target, io=io)))
    assert sum(len(batch[1]) for batch in found) == COUNT
    assert True not in copies


def test_damage_is_told_as_ever(raw: Callable[..., Path], tmp_path: Path, copies: list[bool]) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(raw("hdf5"), folder)
    sound = open_dataset(folder, CROP)
    store, row = sound.store, 11
    shard = folder / store.manifest.shards[int(store.index["shard"][row])].name
    flip(shard, int(store.index["offset"][row]) + int(store.index["length"][row]) - 1)
    dataset = open_dataset(folder, CROP)
    with pytest.raises(CorruptRecord, match=r"row 11 \(line 11, '11.png'.* is damaged"):
        list(batches(dataset))
    with pytest.warns(RuntimeWarning, match="row 11 "):
        found = list(batches(dataset, on_error="skip"))
    assert [row for batch in found for row in batch[2].tolist() if row == 11] == []
    assert sum(len(batch[1]) for batch in found) == COUNT - 1
    assert copies.count(False) == 3 and copies.count(True) > 3
    unchecked = open_dataset(folder, CROP, check=False)
    assert sum(len(batch[1]) for batch in batches(unchecked)) == COUNT


def test_a_missing_shard_is_told_as_ever(raw: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "incomplete"
    shutil.copytree(raw(), folder)
    dataset = open_dataset(folder, CROP)
    with Loader(dataset, 8, num_workers=0) as loader:
        for _ in loader:
            pass
        dataset.store.close()
        (folder / dataset.store.manifest.shards[-1].name).unlink()
        with pytest.raises(CorruptFile, match="its shard cannot be opened"):
            list(loader)


def test_images_that_are_too_small_are_told_as_ever(raw: Callable[..., Path]) -> None:
    dataset = open_dataset(raw(), RandomCrop(33))
    with pytest.raises(LoaderError, match=r"row \d+ .*a crop of 33 x 33 pixels .* pad_if_needed"):
        list(batches(dataset))
    padded = dataset.with_transform(RandomCrop(33, pad_if_needed=True))
    require_same(batches(padded), one_by_one(padded))


def test_the_row_at_which_a_worker_died_is_known(raw: Callable[..., Path], tmp_path: Path) -> None:
    """The row has its number in the dataset that the loader was given, although a whole batch is read in one call."""
    folder = tmp_path / "cut"
    shutil.copytree(raw(), folder)
    dataset = open_dataset(folder, CROP)
    shards, last = dataset.store.index["shard"], len(dataset.store.manifest.shards) - 1
    both = concat([open_dataset(raw("lmdb"), CROP), dataset])
    options: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 1, "multiprocessing_context": "fork"}
    with Loader(both, 8, shuffle=False, worker_init_fn=quiet, **options) as loader:
        for _ in loader:
            pass
        os.truncate(folder / dataset.store.manifest.shards[last].name, 0)
        with soon(), pytest.raises(LoaderError, match="SIGBUS") as raised:
            list(loader)
    found = re.search(r"row (\d+) \(line", str(raised.value))
    assert found and int(found[1]) == int(np.flatnonzero(shards == last)[0])
    assert str(folder) in str(raised.value)


def room_for(rows: int) -> Destination:
    """Arrays for this many samples."""
    images, labels = np.empty((rows, 20, 24, 3), np.uint8), np.empty(rows, np.int64)
    return Destination(images, labels, np.arange(rows), np.zeros((rows, 3)), np.arange(rows), memoryview(bytearray(8)))


def test_a_damaged_index_is_not_trusted(raw: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "index"
    shutil.copytree(raw(), folder)
    assert open_dataset(folder, CROP, check=False)._samples.copy_rows(np.arange(COUNT), room_for(COUNT))
    flip(folder / "index" / "crc32c.npy", 128 + 4 * (COUNT // 2))
    dataset = open_dataset(folder, CROP, check=False)
    assert not dataset._samples.copy_rows(np.arange(COUNT), room_for(COUNT))
    with pytest.raises(CorruptFile, match="is damaged in rows"):
        dataset[0]


@pytest.mark.parametrize("rows", [[-1, 0], [0, COUNT]])
def test_rows_that_are_not_there_are_not_copied(raw: Callable[..., Path], rows: list[int]) -> None:
    dataset = open_dataset(raw(), CROP)
    for each in (dataset, dataset.subset(range(COUNT)), concat([dataset])):
        assert each._samples.copy_rows(np.array([0, 1]), room_for(2))
        assert not each._samples.copy_rows(np.array(rows), room_for(2))


def test_records_that_have_to_be_read_are_asked_for_ahead(
    raw: Callable[..., Path], copies: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying a batch at once would wait for each record."""
    counts = iter(range(1000))
    monkeypatch.setattr("packtrain._readers.dataset.readahead._blocks_read", lambda: next(counts))
    assert sum(len(batch[1]) for batch in batches(open_dataset(raw(), CROP))) == COUNT
    assert copies == []


def test_a_batch_asks_ahead_for_the_chunks_that_are_missing(
    raw: Callable[..., Path], copies: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them before it waits for the first; once they are there, it is copied and asks for nothing."""
    monkeypatch.setattr(cutting, "ENOUGH", 10_000)
    monkeypatch.setattr(cutting, "MOST", 15_000)
    cache = CutChunks(raw(), tmp_path / "cache")
    maker = BatchMaker(SampleMaker(PackedDataset(PackedSamples(cache.store(), CROP)), ()))
    layout = maker.layout(Probe(COUNT, 0, [0], [0]))
    arrays = layout.new()
    arrays["position"][:] = arrays["row"][:] = range(COUNT)
    missing = set(range(len(cache.table))) - set(cache.fetched)
    cache.asked.clear()
    assert len(missing) > 2
    for asked, copied in ((sorted(missing), False), ([], True)):
        assert maker.make(0, COUNT, layout, arrays).size == COUNT
        assert (sorted(cache.asked), copies.pop()) == (asked, copied)
        cache.asked.clear()
