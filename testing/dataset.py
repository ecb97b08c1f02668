"""Laws of a dataset on disk, whoever wrote it: all that was put in comes out, and nothing else is taken for data."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from packtrain import ImageDataset, PackedDataset, concat, open_dataset, verify
from packtrain.errors import CorruptRecord


@dataclass(frozen=True, eq=False)
class Sample:
    """A row as it must be, known without packtrain.

    Attributes:
        name: Its path in the list.
        label: Its label.
        record: Its stored bytes.
        pixels: Its image, uint8 [height, width, 3], or [height, width] where images are grey.
    """

    name: str
    label: Any
    record: bytes
    pixels: npt.NDArray[np.uint8]


class DatasetContract:
    """Laws of a dataset of images with labels.

    A subclass defines two fixtures: `folder`, the dataset, which stays as it is; and `samples`, what its rows must be,
    in order. Ten samples or some more are best, in more than one shard.

    Attributes:
        verifies: True to have `packtrain.verify` decode all images of the dataset.
    """

    verifies: ClassVar[bool] = True

    @pytest.fixture
    def folder(self) -> Path:
        """The dataset."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture `folder`, which returns a dataset's path")

    @pytest.fixture
    def samples(self) -> list[Sample]:
        """The samples, in the order of their rows."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture `samples`, which returns a list of Sample")

    @pytest.fixture(params=["mmap", "pread"])
    def opened(self, folder: Path, request: pytest.FixtureRequest) -> PackedDataset:
        """The dataset, opened in each way of reading."""
        return open_dataset(folder, io=request.param)

    def test_every_file_is_what_the_manifest_and_the_index_say(self, folder: Path) -> None:
        assert not verify(folder, decode_images=self.verifies, num_workers=1).problems

    def test_a_record_is_the_stored_bytes_and_cannot_be_written_to(
        self, opened: PackedDataset, samples: list[Sample]
    ) -> None:
        for row, sample in enumerate(samples):
            assert opened.record(row).readonly
            assert opened.record(row).tobytes() == sample.record, f"row {row} has another record"

    def test_an_item_is_the_picture_and_its_label(self, opened: PackedDataset, samples: list[Sample]) -> None:
        assert len(opened) == len(samples), "the dataset has another number of rows"
        for row, sample in enumerate(samples):
            image, label = opened[row]
            np.testing.assert_array_equal(np.asarray(image), sample.pixels, f"row {row} has other pixels", strict=True)
            assert type(label) is type(sample.label), f"the label of row {row} has another type"
            assert np.array_equal(label, sample.label), f"row {row} has another label"

    def test_rows_may_be_read_in_any_order_and_any_number_of_times(
        self, opened: PackedDataset, samples: list[Sample]
    ) -> None:
        rows = np.random.default_rng(0).integers(-len(samples), len(samples), 100).tolist()
        _require_rows(opened, rows, [samples[row] for row in rows])

    def test_a_row_outside_is_an_index_error(self, opened: PackedDataset) -> None:
        some = opened.subset([3, 1])
        for rows in (opened, some, concat([some, opened])):
            for row in (len(rows), -len(rows) - 1, 2**40):
                for read in (rows.__getitem__, rows.record, rows.image, rows.label, rows.filename):
                    with pytest.raises(IndexError):
                        read(row)

    def test_iteration_ends(self, opened: PackedDataset, samples: list[Sample]) -> None:
        everything: Any = opened
        assert [_plain(label) for _, label in everything] == [_plain(sample.label) for sample in samples]
        nothing: Any = opened.subset([])
        assert list(nothing) == []

    def test_a_mask_takes_the_rows_that_it_marks(self, opened: PackedDataset, samples: list[Sample]) -> None:
        mask = np.arange(len(samples)) % 3 == 1
        marked = [samples[row] for row in np.flatnonzero(mask)]
        assert len(opened.subset(mask)) == len(marked)
        _require_rows(opened.subset(mask), range(len(marked)), marked)
        with pytest.raises(IndexError, match="mask"):
            opened.subset(mask[1:])

    def test_subset_and_concat_nest(self, opened: PackedDataset, samples: list[Sample]) -> None:
        n = len(samples)
        middle = opened.subset(range(2, n - 2))
        nested = concat(
            [middle.subset([3, -1, 3]), opened, opened.subset([]), concat([middle, opened]).subset([-n, 0])]
        )
        expected = [samples[row] for row in (5, n - 3, 5, *range(n), 0, 2)]
        assert len(nested) == len(expected)
        _require_rows(nested, chain(range(len(expected)), range(-len(expected), 0)), [*expected, *expected])

    def test_a_subset_of_rows_that_are_not_there_is_refused_at_once(self, opened: PackedDataset) -> None:
        n = len(opened)
        for rows in ([0, n], [-n - 1], [2**40]):
            with pytest.raises(IndexError, match=f"{n} rows"):
                opened.subset(rows)

    def test_a_pickle_holds_no_data_and_reads_the_same(self, opened: PackedDataset, samples: list[Sample]) -> None:
        pickled = pickle.dumps(concat([opened.subset(range(len(opened)))]))
        assert len(pickled) < 2000
        _require_rows(pickle.loads(pickled), range(len(samples)), samples)
        for check in (True, False):
            original = open_dataset(opened.store.path, io=opened.store.io, check=check)
            again = pickle.loads(pickle.dumps(original))
            assert (again.store.io, again.store.check) == (opened.store.io, check)
            _require_rows(again, range(len(samples)), samples)

    def test_a_forked_child_reads_what_its_parent_has_opened_and_disturbs_nothing(
        self, opened: PackedDataset, samples: list[Sample]
    ) -> None:
        def read() -> None:
            _require_rows(opened, range(len(samples)), samples)

        def read_after_close() -> None:
            opened.store.close()
            read()

        first = opened.record(0)
        for work in (read, read_after_close):
            assert _in_a_child(work), "a forked child reads something else than its parent"
        read()
        assert first == samples[0].record

    def test_a_changed_byte_of_a_record_is_never_taken_for_data(
        self, folder: Path, samples: list[Sample], tmp_path: Path
    ) -> None:
        copy, row = shutil.copytree(folder, tmp_path / "copy"), len(samples) // 3
        shard = _spoil(copy, samples[row].record)
        for io in ("mmap", "pread"):
            opened = open_dataset(copy, io=io)
            for read in (opened.record, opened.image, opened.__getitem__):
                with pytest.raises(CorruptRecord) as caught:
                    read(row)
                assert (caught.value.row, caught.value.line, caught.value.file) == (row, opened.line(row), shard)
                for words in (f"row {row} (line {opened.line(row)}, ", repr(samples[row].name), f"in {shard}"):
                    assert words in str(caught.value)
            assert opened.record(row - 1) == samples[row - 1].record
            assert open_dataset(copy, io=io, check=False).record(row) != samples[row].record


def _require_rows(dataset: ImageDataset, rows: Iterable[int], samples: Iterable[Sample]) -> None:
    """Fails unless these rows are these samples, by all that a dataset says of a row."""
    for row, sample in zip(rows, samples, strict=True):
        assert dataset.record(row) == sample.record, f"row {row} has another record"
        assert dataset.filename(row) == sample.name, f"row {row} has another path"
        image, label = dataset[row]
        assert np.array_equal(np.asarray(image), sample.pixels), f"row {row} has other pixels"
        assert _plain(label) == _plain(dataset.label(row)) == _plain(sample.label), f"row {row} has another label"


def _plain(label: Any) -> Any:
    return label.tolist() if isinstance(label, np.ndarray) else label


def _in_a_child(work: Callable[[], None]) -> bool:
    """Tells whether `work` succeeds in a forked process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _spoil(folder: Path, record: bytes) -> str:
    """Changes a byte of a record where it is found in a shard, whose name it returns."""
    for shard in json.loads((folder / "manifest.json").read_bytes())["shards"]:
        content = bytearray((folder / shard["name"]).read_bytes())
        if (place := content.find(record)) >= 0:
            content[place + len(record) // 2] ^= 0x55
            (folder / shard["name"]).chmod(0o644)
            (folder / shard["name"]).write_bytes(content)
            return str(shard["name"])
    raise AssertionError("no shard has the record of a sample as it is")
