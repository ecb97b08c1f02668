"""Containers that are made to do harm, with sums that are right: `verify` names the file and goes on."""

from __future__ import annotations

import io
import os
import shutil
import signal
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from crc32c import crc32c
from helpers.support import flip, image_set, packed, shard_bytes, soon

from packtrain import verify
from packtrain._codec.decode import EncodedImage, RecordDecoder
from packtrain._core.manifest import Manifest
from packtrain._packer import shard_check, shard_contents
from packtrain.reports import Problem

Craft = Callable[[Path], None]


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_set(tmp_path_factory.mktemp("images"), 6)


def crafted(listing: Path, out: Path, format: str, craft: Craft) -> tuple[Path, list[Problem]]:
    """Changes the first of two shards, and its sums with it. Returns the shard and what `verify` says."""
    packed(listing, out, format, shard_size=shard_bytes(listing, 3))
    manifest = Manifest.load(out)
    first, *others = manifest.shards
    shard = out / first.name
    craft(shard)
    data = shard.read_bytes()
    changed = replace(first, bytes=len(data), crc32c=crc32c(data))
    (out / "manifest.json").write_bytes(replace(manifest, shards=(changed, *others)).dump())
    flip(out / others[0].name, -1 if format == "tar" else 5000)
    with soon(20):
        problems = verify(out).problems
    assert others[0].name in {problem.file for problem in problems}, "the next shard is checked too"
    return shard, [problem for problem in problems if problem.file == shard.name]


def with_datasets(**datasets: Callable[[h5py.File, str], Any]) -> Craft:
    """Replaces datasets of an HDF5 file; the records stay where they are."""

    def craft(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            for name, make in datasets.items():
                del file[name]
                make(file, name)

    return craft


def external(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (64,), "<i8", external=[("/etc/passwd", 0, 512)])


def external_link(file: h5py.File, name: str) -> None:
    file[name] = h5py.ExternalLink("/etc/passwd", "x")


def soft_link(file: h5py.File, name: str) -> None:
    file[name] = h5py.SoftLink("/crc32c")


def virtual(file: h5py.File, name: str) -> None:
    layout = h5py.VirtualLayout((3,), "<i8")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (3,))
    file.create_virtual_dataset(name, layout)


def huge(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (3 << 29,), "<i8")


def compressed(file: h5py.File, name: str) -> None:
    file.create_dataset(name, data=np.zeros(1 << 20, "<i8"), compression="gzip")


def texts(file: h5py.File, name: str) -> None:
    file.create_dataset(name, data=["a", "b", "c"])


def group(file: h5py.File, name: str) -> None:
    file.create_group(name)


def short(file: h5py.File, name: str) -> None:
    file[name] = np.zeros(2, "<i8")


@pytest.mark.parametrize("name", ["images", "lines", "offsets", "labels"])
@pytest.mark.parametrize(
    "make",
    [external, external_link, soft_link, virtual, huge, compressed, texts, group, short],
    ids=lambda f: f.__name__,
)
def test_hdf5_that_lies_elsewhere_or_grows_is_refused(listing: Path, tmp_path: Path, make: Any, name: str) -> None:
    shard, problems = crafted(listing, tmp_path / "out", "hdf5", with_datasets(**{name: make}))
    about = [problem.message for problem in problems if problem.row is None]
    if make is short and name == "images":
        assert {problem.row for problem in problems} - {None}, "its records lie elsewhere"
        return
    (message,) = about
    assert message.startswith(f"{shard} is not a sound HDF5 shard: ")
    assert name in message or (make is short and "different lengths" in message)


def no_root(path: Path) -> None:
    """The main database of the LMDB file has its root behind the end of the file."""
    data = bytearray(path.read_bytes())
    for page in (0, 4096):
        struct.pack_into("<QQ", data, page + 16 + 24 + 48 + 40, 1 << 16, 1 << 17)  # the root, and the last page
    path.write_bytes(data)


def scrambled(path: Path) -> None:
    """Everything behind the meta pages of the LMDB file is noise."""
    data = path.read_bytes()
    path.write_bytes(data[:8192] + np.random.default_rng(0).bytes(len(data) - 8192))


def half(path: Path) -> None:
    """The LMDB file ends in the middle."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def no_pages(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:8192])


@pytest.mark.parametrize("craft", [no_root, scrambled, half, no_pages])
def test_lmdb_that_crashes_its_library_is_named(listing: Path, tmp_path: Path, craft: Craft) -> None:
    _, problems = crafted(listing, tmp_path / "out", "lmdb", craft)
    assert problems
    if craft is no_root:
        (problem,) = problems
        assert problem.message.startswith("the process that read it as lmdb crashed with SIGBUS"), problem


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> Craft:
    """Replaces the tar archive by one with these members."""

    def craft(path: Path) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as file:
            for info, data in members:
                file.addfile(info, io.BytesIO(data))
        path.write_bytes(buffer.getvalue())

    return craft


def member(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


NESTED = b"[" * 100_000
ARCHIVES = {
    "link": (member("000000000.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd"), member("000000000.cls", b"0")),
    "label that is a link": (member("000000000.jpg"), member("000000000.cls", type=tarfile.LNKTYPE, linkname="x")),
    "label that is nested": (member("000000000.jpg"), member("000000000.cls", NESTED)),
    "label that is a text": (member("000000000.jpg"), member("000000000.cls", b'"../x"')),
    "label that is long": (member("000000000.jpg"), member("000000000.cls", b" " * (33 << 20) + b"1")),
    "device": (member("000000000.jpg", type=tarfile.CHRTYPE), member("000000000.cls", b"0")),
    "sparse": (
        member("000000000.jpg", b"1", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 60)}),
        member("000000000.cls", b"1"),
    ),
    "no number": (member("../../x.jpg"), member("../../x.cls", b"0")),
    "control characters": (member("\x1b[2J.jpg"), member("\x1b[2J.cls", b"0")),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_tar_with_other_members_is_named(listing: Path, tmp_path: Path, name: str) -> None:
    shard, problems = crafted(listing, tmp_path / "out", "tar", archive(*ARCHIVES[name]))
    (message,) = [problem.message for problem in problems if problem.row is None]
    assert message.startswith(f"{shard} is not a sound tar shard: ")
    assert "\x1b" not in message


def test_a_container_with_more_records_is_not_read_to_its_end(listing: Path, tmp_path: Path) -> None:
    many = [item for n in range(50) for item in (member(f"{n:09}.jpg", b"x"), member(f"{n:09}.cls", b"0"))]
    _, problems = crafted(listing, tmp_path / "out", "tar", archive(*many))
    assert "the container holds more than its 3 records" in {problem.message for problem in problems}


class TestDecoding:
    """A decoder that crashes costs one record."""

    @pytest.fixture
    def dataset(self, listing: Path, tmp_path: Path) -> Path:
        return packed(listing, tmp_path / "out", "tar", seed=None)

    def victims(
        self, monkeypatch: pytest.MonkeyPatch, dataset: Path, rows: set[int], harm: Callable[[], object]
    ) -> None:
        """Makes decoding these rows do harm."""
        sums = np.load(dataset / "index" / "crc32c.npy")[list(rows)].tolist()
        real = RecordDecoder.image

        def image(self: RecordDecoder, encoded: EncodedImage) -> Any:
            if crc32c(encoded.data) in sums:
                harm()
            return real(self, encoded)

        monkeypatch.setattr(RecordDecoder, "image", image)

    @pytest.mark.parametrize("workers", [1])
    def test_each_such_record_is_named(self, dataset: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
        self.victims(monkeypatch, dataset, {1, 4}, lambda: os.kill(os.getpid(), signal.SIGSEGV))
        found = verify(dataset, decode_images=True).problems
        assert [(problem.row, problem.line) for problem in found] == [(1, 1), (4, 4)]
        assert all("the process that decoded it crashed with SIGSEGV" in problem.message for problem in found)

    def test_so_is_one_that_needs_too_much_memory(self, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.victims(monkeypatch, dataset, {0, 5}, lambda: bytearray(1 << 40))
        found = verify(dataset, decode_images=True).problems
        assert [problem.row for problem in found] == [0, 5]
        assert all("the process that decoded it needed more than 4.0 GiB of memory" in each.message for each in found)

    def test_after_some_the_rest_is_only_compared(self, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shard_check, "_MOST_DEATHS", 2)
        self.victims(monkeypatch, dataset, set(range(6)), os.abort)
        found = verify(dataset, decode_images=True).problems
        assert [problem.row for problem in found] == [0, 1, None]
        assert found[2].message == "after 2 such records, the rest was not decoded"

    def test_what_cannot_be_parsed_is_a_problem_of_its_record(
        self, dataset: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(*_: object) -> None:
            raise struct.error("unpack requires a buffer of 28 bytes")

        monkeypatch.setattr(shard_contents, "misfit", failing)
        found = verify(dataset, decode_images=True).problems
        assert [problem.row for problem in found] == list(range(6))
        assert all("it cannot be decoded (error: unpack requires" in problem.message for problem in found)

    def test_the_records_are_read_where_a_bus_error_costs_no_more_than_a_process(
        self, dataset: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shard_contents, "crc32c", lambda data: os.kill(os.getpid(), signal.SIGBUS))
        (problem,) = verify(dataset).problems
        assert problem.message.startswith("the process that read its records crashed with SIGBUS: the disk failed")


def test_a_shard_that_is_not_a_file_is_named_at_once(listing: Path, tmp_path: Path) -> None:
    out = packed(listing, tmp_path / "out", "tar")
    (shard,) = out.glob("*.tar")
    for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        shard.unlink()
        make(shard)
        with soon():
            assert shard.name in {problem.file for problem in verify(out).problems}
    shutil.rmtree(out)
