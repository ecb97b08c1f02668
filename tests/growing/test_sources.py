"""Laws of sources of samples: sources by name, records of a dataset, windows of large arrays."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from helpers.datasets import LEFT_OUT, ROWS, make_dataset
from helpers.filling import fill
from helpers.support import require_module

import packtrain
from packtrain import RandomRecords, RandomSlices
from packtrain._core.errors import CorruptRecord, MissingDependency, UsageError
from packtrain._core.installing import extra_command
from packtrain._core.options import FORMATS
from packtrain._core.schema import Schema
from packtrain._growing.options import FillOptions
from packtrain._growing.source_loading import load_source
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import GenerationStore
from packtrain._readers.dataset.store import RecordStore


def written(tmp_path: Path, name: str, text: str) -> str:
    """A module of the working folder that no other test imports."""
    module = f"{name}_{os.getpid()}_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(text)
    return module


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return tmp_path


def test_a_source_is_found_in_the_working_folder(here: Path) -> None:
    text = "def samples():\n    yield {'x': 1}\nclass Group:\n    inner = samples\n"
    module = written(here, "good", text)
    assert list(load_source(f"{module}:samples")()) == [{"x": 1}]
    assert list(load_source(f"{module}:Group.inner")()) == [{"x": 1}]


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("def samples(): ...", "sample", "did you mean 'samples'"),
        ("samples = 7", "samples", "type int"),
        ("import no_such_package", "samples", "No module named 'no_such_package'"),
        ("1 / 0", "samples", "ZeroDivisionError: division by zero"),
        ("def samples(:", "samples", "SyntaxError"),
    ],
)
def test_a_source_that_cannot_be_loaded_is_told(here: Path, text: str, path: str, message: str) -> None:
    module = written(here, "bad", text)
    with pytest.raises(UsageError, match=message):
        load_source(f"{module}:{path}")


@pytest.mark.parametrize("name", ["", "module", "module:", ":f", "a/b.py:f", "module:f()", "mo dule:f"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="MODULE:FUNCTION"):
        load_source(name)


def test_a_module_that_is_missing_is_named_with_the_folder(here: Path) -> None:
    with pytest.raises(UsageError, match=f"No module named 'no_such_module'.*{here.name}.*PYTHONPATH"):
        load_source("no_such_module:f")
    with pytest.raises(UsageError, match=r"No module named 'json\.nothing'"):
        load_source("json.nothing:f")


def cached(folder: Path, source: Any, samples: int, format: str = "tar") -> GenerationStore:
    """The newest generation of a cache of this many samples of a source."""

    class Some:
        def sample_schema(self) -> Schema:
            schema: Schema = source.sample_schema()
            return schema

        def __call__(self) -> Iterator[Any]:
            return islice(source(), samples)

    fill(folder, Some(), FillOptions(budget="32MiB", shard_size="256KiB", format=format))
    return GenerationStore.open(CacheFiles(folder), 0)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("cache_format", FORMATS)
def test_records_of_every_kind_are_copied_as_they_are_stored(format: str, cache_format: str, tmp_path: Path) -> None:
    source = RandomRecords(make_dataset(tmp_path / "dataset", format))
    store = cached(tmp_path / "cache", source, ROWS, cache_format)
    with RecordStore(tmp_path / "dataset") as original:
        assert store.schema.fields == original.schema.fields
        rows = {int(np.asarray(store.label(row))) // 10: row for row in range(len(store))}
        assert sorted(rows) == list(range(ROWS))
        for row, found in rows.items():
            for field in original.schema.fields:
                ours, theirs = store.field(field.name), original.field(field.name)
                if field.kind in ("array", "mask") and theirs.value(row) is not None:
                    np.testing.assert_array_equal(ours.value(found), theirs.value(row), strict=True)
                if field.has_pixels:
                    assert ours.size(found) == theirs.size(row)
                if field.kind != "array" and field.encoding != "raw":
                    record = theirs.read(row)
                    assert ours.read(found) == record
                    assert (record is None) == (row == LEFT_OUT and field.optional)
    store.release()


def test_some_fields_alone_are_copied_in_the_order_of_the_dataset(tmp_path: Path) -> None:
    path = make_dataset(tmp_path / "dataset")
    schema = RandomRecords(path, ["pose", "caption"]).sample_schema()
    assert [field.name for field in schema.fields] == ["caption", "pose"]
    assert schema.labels.kind == "none"
    schema = RandomRecords(path, ["pose", "label"]).sample_schema()
    assert ([field.name for field in schema.fields], schema.labels.kind) == (["pose"], "int")
    sample = next(RandomRecords(path, ["pose", "label"])())
    assert set(sample) == {"pose", "label"}
    with pytest.raises(UsageError, match="poses"):
        RandomRecords(path, ["poses"]).sample_schema()


def labels(source: RandomRecords, count: int) -> list[int]:
    return [sample["label"] // 10 for sample in islice(source(), count)]


def test_each_round_holds_every_row_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    path = make_dataset(tmp_path / "dataset")
    found = labels(RandomRecords(path, ["blob", "label"]), 20 * ROWS)
    rounds = [tuple(found[first : first + ROWS]) for first in range(0, len(found), ROWS)]
    assert all(sorted(each) == list(range(ROWS)) for each in rounds)
    assert len(set(rounds)) > 15
    assert found == labels(RandomRecords(path, ["blob", "label"]), 20 * ROWS)
    assert found != labels(RandomRecords(path, ["blob", "label"], seed=1), 20 * ROWS)
    unseeded = RandomRecords(path, ["blob", "label"], seed=None)
    assert labels(unseeded, 20 * ROWS) != labels(unseeded, 20 * ROWS)


def test_a_damaged_record_is_an_error_and_not_a_sample(tmp_path: Path) -> None:
    path = make_dataset(tmp_path / "dataset", rows=1)
    with RecordStore(path) as store:
        place = int(store.field("blob").columns["offset"][0]), int(store.field("pose").columns["offset"][0])
    shard = next(path.glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[place[1]] ^= 1
    stamp = shard.stat()
    shard.write_bytes(data)
    os.utime(shard, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(CorruptRecord):
        next(RandomRecords(path)())


ARRAY = np.arange(7 * 11 * 5, dtype=np.float32).reshape(7, 11, 5)
SHAPE = (3, 4, 5)


def stored(folder: Path, kind: str, array: npt.NDArray[Any] = ARRAY) -> tuple[Path, str | None]:
    """Writes an array by its own library. Returns its path and its name."""
    path = folder / f"array.{kind}"
    match kind:
        case "npy":
            np.save(path, array)
            return path, None
        case "fortran.npy":
            np.save(path, np.asfortranarray(array))
            return path, None
        case "h5":
            with h5py.File(path, "w") as file:
                file.create_dataset("volume", data=array, chunks=(2, 4, 5), compression="gzip")
            return path, None
        case "deep.h5":
            with h5py.File(path, "w") as file:
                file["group/volume"] = array
                file["other"] = [1]
            return path, "group/volume"
    require_module("zarr")
    zarr: Any = importlib.import_module("zarr")

    version = 2 if "v2" in kind else 3
    if "group" in kind:
        group = zarr.open_group(path, mode="w", zarr_format=version)
        group.create_array("volume", data=array, chunks=(2, 4, 5))
        return path, "volume"
    zarr.create_array(store=path, data=array, chunks=(2, 4, 5), zarr_format=version)
    return path, None


KINDS = ("npy", "fortran.npy", "h5", "deep.h5", "v2.zarr", "v3.zarr", "v2.group.zarr", "v3.group.zarr")


@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_what_plain_slices_give(kind: str, tmp_path: Path) -> None:
    path, name = stored(tmp_path, kind)
    source = RandomSlices(path, SHAPE, name, "window")
    for sample in islice(source(), 100):
        first, second, third = sample["start"].tolist()
        expected = ARRAY[first : first + 3, second : second + 4, third : third + 5]
        np.testing.assert_array_equal(sample["window"], expected, strict=True)
        assert (sample["start"].dtype.str, sample["start"].shape) == ("<i8", (3,))


def test_every_place_within_the_array_comes(tmp_path: Path) -> None:
    path, _ = stored(tmp_path, "npy")
    starts = [tuple(sample["start"].tolist()) for sample in islice(RandomSlices(path, SHAPE)(), 2000)]
    places = [(first, second, 0) for first in range(5) for second in range(8)]
    assert set(starts) == set(places)
    same = [tuple(sample["start"].tolist()) for sample in islice(RandomSlices(path, SHAPE)(), 100)]
    other = [tuple(sample["start"].tolist()) for sample in islice(RandomSlices(path, SHAPE, seed=1)(), 100)]
    assert starts[:100] == same != other


def test_what_was_read_of_a_mapped_file_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packtrain._growing import random_slices as slices

    monkeypatch.setattr(slices, "_KEPT_BYTES", 100)
    path, _ = stored(tmp_path, "npy")
    for sample in islice(RandomSlices(path, SHAPE)(), 50):
        first, second, _ = sample["start"].tolist()
        np.testing.assert_array_equal(sample["x"], ARRAY[first : first + 3, second : second + 4])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("npy", {"shape": (8, 1, 1)}, r"\[7, 11, 5\] has no window \[8, 1, 1\]"),
        ("npy", {"shape": (1, 1)}, "no window"),
        ("npy", {"shape": (1, 1, 1), "name": "volume"}, "leave out name"),
        ("deep.h5", {"shape": (1, 1, 1), "name": "volume"}, "no array 'volume'.*group, other"),
        ("deep.h5", {"shape": (1, 1, 1), "name": "group"}, "no array 'group'"),
        ("v3.group.zarr", {"shape": (1, 1, 1), "name": "x"}, "no array 'x'.*volume"),
        ("v3.zarr", {"shape": (1, 1, 1), "name": "x"}, "leave out name"),
    ],
)
def test_an_array_without_such_a_window_is_told(kind: str, options: Any, message: str, tmp_path: Path) -> None:
    path, _ = stored(tmp_path, kind)
    with pytest.raises(UsageError, match=message):
        next(RandomSlices(path, **options)())


def test_files_of_other_kinds_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        next(RandomSlices(tmp_path / "missing", (1,))())
    (tmp_path / "text").write_text("text")
    with pytest.raises(UsageError, match="neither"):
        next(RandomSlices(tmp_path / "text", (1,))())
    (tmp_path / "short.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(UsageError, match=r"no \.npy file"):
        next(RandomSlices(tmp_path / "short.npy", (1,))())
    np.save(tmp_path / "two.npy", np.zeros(2))
    whole = (tmp_path / "two.npy").read_bytes()
    (tmp_path / "two.npy").write_bytes(whole[:-1])
    with pytest.raises(UsageError, match=r"no \.npy file"):
        next(RandomSlices(tmp_path / "two.npy", (1,))())
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="FIFO"):
        next(RandomSlices(tmp_path / "fifo", (1,))())


def test_a_folder_needs_zarr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(MissingDependency, match=re.escape(f"`{extra_command('zarr')}`")):
        next(RandomSlices(tmp_path, (1,))())


@pytest.mark.parametrize(
    "options",
    [
        {"seed": -1},
        {"shape": (0,)},
        {"shape": (1.5,)},
        {"shape": 3},
        {"field": "start"},
        {"field": "X"},
        {"seed": "a"},
    ],
)
def test_values_out_of_range_are_refused_when_it_is_made(options: Any) -> None:
    with pytest.raises(UsageError):
        RandomSlices("array.npy", **{"shape": (1,), **options})


def test_samplers_are_public_and_travel_to_another_process() -> None:
    for source in (RandomRecords("dataset", ("x", "label"), seed=3), RandomSlices("array.npy", [2, 3], "a", "w", 1)):
        assert pickle.loads(pickle.dumps(source)) == source
        assert hash(source) == hash(pickle.loads(pickle.dumps(source)))
    assert {"RandomRecords", "RandomSlices"} <= set(packtrain.__all__)
