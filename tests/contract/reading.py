"""Laws of what the reader gives, for every format."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fusing import decoded, expected, numbers
from helpers.support import Source, flip, items, sources
from PIL import Image

from packtrain import PackedDataset, concat, open_dataset
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import CorruptRecord, UsageError
from packtrain.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

from .laws import Laws, column, manifest


def digest(opened: PackedDataset) -> bytes:
    """A hash of every record, every picture and every label."""
    everything = hashlib.sha256()
    for row in range(len(opened)):
        image, label = opened[row]
        everything.update(opened.record(row))
        everything.update(image.tobytes())
        everything.update(str(label).encode())
    return everything.digest()


def digest_after_close(opened: PackedDataset) -> bytes:
    opened.store.close()
    return digest(opened)


def in_a_child(work: Callable[[], bytes]) -> bytes:
    """The result of `work` in a forked process."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(theirs, work())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


class ReadingLaws(Laws):
    @pytest.fixture(params=["mmap", "pread"])
    def opened(self, dataset: Path, request: pytest.FixtureRequest) -> PackedDataset:
        return open_dataset(dataset, io=request.param)

    @pytest.fixture
    def list_rows(self, images: Path) -> list[Source]:
        return sources(images)

    def test_a_record_is_the_files_bytes_and_cannot_be_written_to(
        self, opened: PackedDataset, list_rows: list[Source]
    ) -> None:
        for row, source in enumerate(list_rows):
            record = opened.record(row)
            assert record.readonly
            assert record.tobytes() == source.data

    def test_an_item_is_the_picture_as_training_code_would_open_it_and_its_label(
        self, opened: PackedDataset, list_rows: list[Source]
    ) -> None:
        for (image, label), source in zip(items(opened), list_rows, strict=True):
            expected = Image.open(io.BytesIO(source.data)).convert("RGB")
            assert (image.mode, image.size, image.tobytes()) == ("RGB", expected.size, expected.tobytes())
            assert label == source.label
            assert type(label) is int

    def test_rows_may_be_read_in_any_order_and_any_number_of_times(
        self, opened: PackedDataset, list_rows: list[Source]
    ) -> None:
        rows = np.random.default_rng(0).integers(0, len(list_rows), 100)
        for row in rows:
            assert opened.record(row) == list_rows[row].data
            assert opened.label(row) == list_rows[row].label

    def test_negative_rows_count_from_the_end(self, opened: PackedDataset, list_rows: list[Source]) -> None:
        for row in range(-len(list_rows), 0):
            assert opened.record(row) == list_rows[row].data
            assert opened.filename(row) == list_rows[row].name
            assert opened[row][1] == opened.label(row) == list_rows[row].label

    def test_a_row_outside_is_an_index_error(self, opened: PackedDataset) -> None:
        some = opened.subset([3, 1])
        for rows in (opened, some, concat([some, opened])):
            for row in (len(rows), -len(rows) - 1, 2**40):
                for read in (rows.__getitem__, rows.record, rows.image, rows.label, rows.filename):
                    with pytest.raises(IndexError):
                        read(row)

    def test_iteration_ends(self, opened: PackedDataset, list_rows: list[Source]) -> None:
        assert [label for _, label in items(opened)] == [source.label for source in list_rows]
        assert [label for _, label in items(opened.subset([]))] == []

    def test_a_mask_takes_the_rows_that_it_marks(self, opened: PackedDataset) -> None:
        mask = np.arange(len(opened)) % 3 == 1
        marked = opened.subset(mask)
        assert [marked.record(i) for i in range(len(marked))] == [
            opened.record(row) for row in np.flatnonzero(mask).tolist()
        ]
        with pytest.raises(IndexError, match="mask"):
            opened.subset(mask[1:])

    def test_subset_and_concat_nest(self, opened: PackedDataset, list_rows: list[Source]) -> None:
        n = len(list_rows)
        middle = opened.subset(range(2, n - 2))
        nested = concat(
            [middle.subset([3, -1, 3]), opened, opened.subset([]), concat([middle, opened]).subset([-n, 0])]
        )
        expected = [5, n - 3, 5, *range(n), 0, 2]
        assert len(nested) == len(expected)
        for row, source in chain(enumerate(expected), enumerate(expected, -len(expected))):
            assert nested.record(row) == list_rows[source].data
            assert nested[row][1] == nested.label(row) == list_rows[source].label
            assert nested.filename(row) == list_rows[source].name

    @pytest.mark.parametrize("rows", [[0, 99], [-13], [2**40]])
    def test_a_subset_of_rows_that_are_not_there_is_refused_at_once(
        self, opened: PackedDataset, rows: list[int]
    ) -> None:
        with pytest.raises(IndexError, match="12 rows"):
            opened.subset(rows)

    def test_a_pickle_holds_no_data_and_reads_the_same(self, opened: PackedDataset) -> None:
        before = digest(opened)
        pickled = pickle.dumps(concat([opened.subset(range(len(opened)))]))
        assert len(pickled) < 2000
        for check in (True, False):
            original = open_dataset(opened.store.path, io=opened.store.io, check=check)
            again = pickle.loads(pickle.dumps(original))
            assert (digest(again), again.store.io, again.store.check) == (before, opened.store.io, check)
        assert pickle.loads(pickled).record(0) == opened.record(0)

    def test_a_forked_child_reads_what_its_parent_has_opened_and_disturbs_nothing(self, opened: PackedDataset) -> None:
        first = opened.record(0)
        before = digest(opened)
        assert in_a_child(lambda: digest(opened)) == before
        assert in_a_child(lambda: digest_after_close(opened)) == before
        assert digest(opened) == before
        assert first == opened.record(0)

    def test_views_outlive_the_store(self, dataset: Path, list_rows: list[Source]) -> None:
        for io_mode in ("mmap", "pread"):
            with RecordStore(dataset, io=io_mode) as store:
                views = [store.record(row) for row in range(len(store))]
            del store
            assert [view.tobytes() for view in views] == [source.data for source in list_rows]

    def test_a_changed_byte_of_a_record_is_never_taken_for_data(
        self, images: Path, tmp_path: Path, list_rows: list[Source]
    ) -> None:
        out = self.pack(images, tmp_path / "out")
        row = 4
        shard = manifest(out)["shards"][0]["name"]
        flip(out / shard, int(column(out, "offset")[row]) + 100)
        for io_mode in ("mmap", "pread"):
            opened = open_dataset(out, io=io_mode)
            for read in (opened.record, opened.image, opened.__getitem__):
                with pytest.raises(CorruptRecord, match=r"row 4 \(line 4, 'image 4.jpg', in train-000000") as caught:
                    read(row)
                assert (caught.value.row, caught.value.line, caught.value.file) == (row, row, shard)
            assert opened.record(row - 1) == list_rows[row - 1].data
            assert open_dataset(out, io=io_mode, check=False).record(row) != list_rows[row].data

    def test_fused_transforms_give_torchvisions_pixels(
        self, torchvision: Any, images: Path, tmp_path: Path, list_rows: list[Source]
    ) -> None:
        for store in (StoreOptions(), StoreOptions("verbatim"), StoreOptions("raw"), StoreOptions(mode="L")):
            out = self.pack(images, tmp_path / f"{store.store} {store.mode}", store=store)
            for io_mode in ("mmap", "pread"):
                opened = open_dataset(out, [RandomResizedCrop(20), RandomHorizontalFlip()], io=io_mode)
                assert isinstance(opened._samples.compose, Compose)
                for row, source in enumerate(list_rows):
                    image, random = decoded(source.data, store.mode), numbers(row, 23)
                    steps = opened._samples.compose.operations(*image.size, random)
                    assert torch.equal(opened._samples.make(row, random)[0], expected(torchvision, image, steps))

    def test_an_unknown_way_of_reading_is_refused(self, dataset: Path) -> None:
        with pytest.raises(UsageError, match="expected one of auto, mmap, pread"):
            open_dataset(dataset, io="magic")
