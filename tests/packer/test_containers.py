"""Containers of samples with many fields: a failing disk, bounded memory, many fields, and forged files."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import h5py
import lmdb
import numpy as np
import pytest
from crc32c import crc32c
from helpers.samples import SUFFIXES, Sample, value_of, write_shard
from helpers.support import tree

from packtrain._core.files import write_all
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import Field, Schema, image_field
from packtrain._formats import container
from packtrain._formats.writing import NewRecord, NewSample, shard_writer
from packtrain.errors import CorruptFile

SCHEMA = Schema(
    (
        image_field(StoreOptions()),
        Field("seg", "mask", encoding="png", dtype="|u1"),
        Field("caption", "text", optional=True),
        Field("boxes", "array", dtype="<f4", shape=(None, 4)),
    ),
    LabelSpec(),
)


def samples(schema: Schema, number: int) -> list[Sample]:
    """Samples that lack nothing."""
    return [Sample(i, i, tuple(value_of(field, i) for field in schema.fields)) for i in range(number)]


def shard_of(folder: Path, format: str, schema: Schema = SCHEMA, number: int = 4) -> Path:
    """A shard of some samples."""
    path = folder / f"shard{SUFFIXES[format]}"
    write_shard(path, format, schema, samples(schema, number))
    return path


def lines(path: Path, format: str, schema: Schema = SCHEMA) -> list[int]:
    """The lines that a walk finds."""
    return [found.line for found in container(format).walk(path, schema)]


class TestDisk:
    """Of the files beside an HDF5 shard, nobody ever sees a name; a full disk is told by its number."""

    def test_a_full_disk_ends_every_write_and_leaves_only_the_shard(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, failed = write_all, 0
        for at in count():
            calls = iter(range(at))

            def failing(descriptor: int, buffers: Any, calls: Iterator[int] = calls) -> int:
                if next(calls, None) is None:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return real(descriptor, buffers)

            monkeypatch.setattr("packtrain._formats.hdf5.writer.write_all", failing)
            descriptors = len(os.listdir("/proc/self/fd"))
            path = tmp_path / "shard.h5"
            try:
                write_shard(path, "hdf5", SCHEMA, samples(SCHEMA, 3))
                break
            except OSError as error:
                failed += error.errno == errno.ENOSPC
            assert len(os.listdir("/proc/self/fd")) == descriptors
            assert set(tree(tmp_path)) == {path.name}
            path.unlink()
        assert failed == at > 10

    def test_no_other_file_has_a_name_while_it_is_written(self, tmp_path: Path, format_name: str) -> None:
        path = tmp_path / "shard"
        writer = shard_writer(format_name)(path, SCHEMA)
        data = bytes(3 << 20)
        record = NewRecord(data, "bin", crc32c(data), (len(data) // 16, 4))
        writer.add(NewSample(0, 1, (record, record, None, record)))
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
        writer.close()
        assert [file.name for file in tmp_path.iterdir()] == [path.name]

    def test_a_file_that_cannot_be_made_beside_the_shard_costs_no_descriptor(self, tmp_path: Path) -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        (tmp_path / "shard.field").mkdir()
        with pytest.raises(FileExistsError):
            shard_writer("hdf5")(tmp_path / "shard", SCHEMA)
        assert len(os.listdir("/proc/self/fd")) == descriptors

    def test_memory_does_not_grow_with_the_shard(self, tmp_path: Path, format_name: str) -> None:
        schema = Schema((Field("data", "bytes"),), LabelSpec("none"))
        data = bytes(1 << 20)
        record = NewRecord(data, "bin", crc32c(data), ())
        writer = shard_writer(format_name)(tmp_path / "shard", schema)
        tracemalloc.start()
        try:
            for line in range(64):
                writer.add(NewSample(line, None, (record,)))
            writer.finish()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            writer.close()
        assert peak < 8 << 20


def test_an_array_that_does_not_fill_its_shape_is_not_written(tmp_path: Path) -> None:
    writer = shard_writer("hdf5")(tmp_path / "shard", Schema((SCHEMA["boxes"],), LabelSpec("none")))
    with pytest.raises(ValueError, match="field boxes: 20 bytes do not hold an array"):
        writer.add(NewSample(0, None, (NewRecord(bytes(20), "npy", 0, (1, 4)),)))
    writer.close()


def test_there_may_be_many_fields(tmp_path: Path, format_name: str) -> None:
    """More than one page of LMDB's main database holds, and more than one system call writes to a tar."""
    fields = tuple(Field(f"field_{'x' * 40}_{i}", "bytes", optional=True) for i in range(600))
    schema = Schema(fields, LabelSpec("none"))
    number = 1 if format_name == "hdf5" else 3
    if format_name == "hdf5":  # a file for each field is open meanwhile
        schema = Schema(fields[:200], LabelSpec("none"))
    path = tmp_path / "shard"
    made = samples(schema, number)
    written = write_shard(path, format_name, schema, made)
    content = path.read_bytes()
    for sample, offsets, found in zip(made, written.offsets, container(format_name).walk(path, schema), strict=True):
        assert found.line == sample.line
        for offset, (name, value) in zip(offsets, sample.present(schema).items(), strict=True):
            assert found.places[name] == (offset, len(value))
            assert content[offset : offset + len(value)] == value


class TestForged:
    """What no writer of ours makes is refused by name, and read from nowhere else."""

    @pytest.mark.parametrize("name", ["fields", "fields/boxes", "fields/boxes/data", "fields/caption/present"])
    @pytest.mark.parametrize("kind", ["link", "soft link", "missing", "other"])
    def test_hdf5_that_lies_elsewhere(self, tmp_path: Path, name: str, kind: str) -> None:
        path = shard_of(tmp_path, "hdf5")
        other = tmp_path / "other.h5"
        other.write_bytes(path.read_bytes())
        with h5py.File(path, "r+") as file:
            file.move(name, "moved")
            if kind == "link":
                file[name] = h5py.ExternalLink(other.name, name)
            elif kind == "soft link":
                file[name] = h5py.SoftLink("/moved")
            elif kind == "other":
                file[name] = np.zeros(3, "<f8") if "/" in name else 1.0
        with pytest.raises(CorruptFile, match="is not a sound HDF5 shard: .*" + name.rpartition("/")[2]):
            lines(path, "hdf5")

    @pytest.mark.parametrize("name", ["data", "offsets"])
    def test_hdf5_that_is_larger_than_its_file(self, tmp_path: Path, name: str) -> None:
        path = shard_of(tmp_path, "hdf5")
        with h5py.File(path, "r+") as file:
            group = file["fields/boxes"]
            dtype, shape = group[name].dtype, group[name].shape
            del group[name]
            group.create_dataset(name, (1 << 40, *shape[1:]), dtype)
        with pytest.raises(CorruptFile, match=f"dataset {name} does not lie in the file"):
            lines(path, "hdf5")

    TARS: ClassVar[dict[str, list[str]]] = {
        "no label": ["0.jpg", "0.seg.png", "0.boxes.npy"],
        "no image": ["0.cls", "0.seg.png", "0.boxes.npy"],
        "no mask": ["0.jpg", "0.cls", "0.boxes.npy"],
        "no last field": ["0.jpg", "0.cls", "0.seg.png"],
        "twice": ["0.jpg", "0.cls", "0.seg.png", "0.seg.png", "0.boxes.npy"],
        "another order": ["0.jpg", "0.cls", "0.boxes.npy", "0.seg.png"],
        "unknown": ["0.jpg", "0.cls", "0.seg.png", "0.other.txt", "0.boxes.npy"],
        "scattered": ["0.jpg", "0.cls", "1.jpg", "0.seg.png", "0.boxes.npy"],
    }

    @pytest.mark.parametrize("case", TARS)
    def test_tar_with_other_members(self, tmp_path: Path, case: str) -> None:
        def archive(names: list[str]) -> Path:
            path = tmp_path / "shard.tar"
            with tarfile.open(path, "w") as file:
                for name in names:
                    info = tarfile.TarInfo(name)
                    info.size = 1
                    file.addfile(info, io.BytesIO(b"1"))
            return path

        assert lines(archive(["7.jpg", "7.cls", "7.seg.png", "7.boxes.npy"]), "tar") == [7]
        with pytest.raises(CorruptFile, match=r"is not a sound tar shard: .*'0"):
            lines(archive(self.TARS[case]), "tar")

    def test_lmdb_without_a_value_or_with_another_key(self, tmp_path: Path) -> None:
        def change(work: Callable[[Any, Any], object], name: bytes) -> Path:
            path = shard_of(tmp_path, "lmdb")
            with lmdb.open(str(path), subdir=False, lock=False, max_dbs=9) as environment:
                database = environment.open_db(name)
                with environment.begin(write=True) as transaction:
                    work(transaction, database)
            return path

        key = (2).to_bytes(8, "big")
        cases: list[tuple[bytes, Callable[[Any, Any], object], str]] = [
            (b"labels", lambda transaction, database: transaction.delete(key, db=database), "line 2 has no label"),
            (b"images", lambda transaction, database: transaction.delete(key, db=database), "line 2 has no image"),
            (b"fields/seg", lambda transaction, database: transaction.drop(database), "MDB_NOTFOUND"),
            (b"fields/boxes", lambda transaction, database: transaction.put(b"x", b"", db=database), "a key of 1 byte"),
        ]
        for name, work, why in cases:
            path = change(work, name)
            with pytest.raises(CorruptFile, match=f"is not a sound LMDB shard: .*{why}"):
                lines(path, "lmdb")
            path.unlink()
