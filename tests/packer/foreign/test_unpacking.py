"""Laws of compressed shards: unpacked, they are indexed as if nobody had compressed them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.shards import write_shards, write_tar
from helpers.support import tree

from packtrain import index_shards, verify
from packtrain._core.manifest import Manifest
from packtrain._packer.foreign import unpacking
from packtrain.errors import MissingDependency, PackError


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Shards of JPEG, label and caption."""
    return write_shards(tmp_path / "shards", 3)


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".tar.gz": gzip.compress,
    ".tgz": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
}


def test_zstd_needs_a_package(shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards[0].with_suffix(".tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingDependency, match="pip install zstandard"):
        index_shards(shards[0].with_suffix(".tar.zst"), tmp_path / "out", unpack=tmp_path / "unpacked")


def compress(shard: Path, suffix: str = ".tar.gz") -> Path:
    """Puts a compressed shard of the same time in the place of a plain one."""
    status = shard.stat()
    packed = shard.with_name(shard.name.removesuffix(".tar") + suffix)
    packed.write_bytes(COMPRESSIONS[suffix](shard.read_bytes()))
    os.utime(packed, ns=(status.st_atime_ns, status.st_mtime_ns))
    shard.unlink()
    return packed


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_tars_give_what_plain_ones_give(shards: list[Path], tmp_path: Path, suffix: str) -> None:
    index_shards(shards[0].parent, tmp_path / "plain")
    for shard in shards[:2]:
        compress(shard, suffix)
    index_shards(shards[0].parent, tmp_path / "out", unpack=tmp_path / "unpacked")
    assert verify(tmp_path / "out").problems == ()
    plain, out = Manifest.load(tmp_path / "plain"), Manifest.load(tmp_path / "out")
    assert [shard.crc32c for shard in out.shards] == [shard.crc32c for shard in plain.shards]
    for name, data in tree(tmp_path / "plain" / "index").items():
        assert (tmp_path / "out" / "index" / name).read_bytes() == data, name


def test_what_is_unpacked_stays_and_is_not_unpacked_again(shards: list[Path], tmp_path: Path) -> None:
    packed = [compress(shard) for shard in shards]
    index_shards(packed[:2], tmp_path / "out", unpack=tmp_path / "unpacked")
    before = {path: path.stat().st_ino for path in (tmp_path / "unpacked").glob("*/*")}
    assert len(before) == 2
    # In another order, and with one more.
    report = index_shards(packed[::-1], tmp_path / "out", update=True, unpack=tmp_path / "unpacked")
    assert (report.indexed, report.shards) == (1, 3)
    assert before.items() <= {path: path.stat().st_ino for path in (tmp_path / "unpacked").glob("*/*")}.items()
    packed[0].write_bytes(gzip.compress(write_tar(tmp_path / "a.tar", [("a.bin", b"new")]).read_bytes()))
    (changed,) = (path for path in before if path.name == "train-000000.tar")
    assert index_shards(packed[:1], tmp_path / "new", unpack=tmp_path / "unpacked").records == 1
    assert changed.stat().st_ino != before[changed]


def test_shards_of_the_same_name_do_not_meet(shards: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    os.rename(shards[1], tmp_path / "other" / shards[0].name)
    packed = [compress(shards[0]), compress(tmp_path / "other" / shards[0].name)]
    for each in packed:
        os.utime(each, ns=(0, 0))
    for number, each in enumerate(packed):
        index_shards(each, tmp_path / str(number), unpack=tmp_path / "unpacked")
    assert [verify(tmp_path / str(number)).problems for number in range(2)] == [(), ()]


CHANGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda packed: packed[: len(packed) // 2], "is damaged: it cannot be decompressed"),
    "changed": (lambda packed: packed[: len(packed) // 2] + b"!" + packed[len(packed) // 2 + 1 :], "is damaged"),
}
CONTENTS: dict[str, tuple[bytes, str]] = {
    "zeros": (bytes(1 << 24), "holds no tar archive: decompressed, it begins with b'"),
    "a short text": (b"{}", "holds no tar archive"),
    "a text": (b"x" * 5000, "holds no tar archive"),
    "too large": (b"", r"more than 4194304 decompressed, which no archive .* Leave it out"),
}


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.bz2", ".tar.xz"])
@pytest.mark.parametrize("what", [*CHANGES, *CONTENTS])
def test_what_is_damaged_no_tar_or_larger_than_any_is_named_and_not_unpacked(
    shards: list[Path], tmp_path: Path, suffix: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "_MOST_OF_SMALL", 4 << 20)
    change, message = CHANGES.get(what, (bytes, ""))
    content, message = CONTENTS.get(what, (shards[1].read_bytes(), message))
    if what == "too large":
        content = write_tar(tmp_path / "a.tar", [("a.bin", bytes(8 << 20))]).read_bytes()
    bad = tmp_path / f"bad{suffix}"
    bad.write_bytes(change(COMPRESSIONS[suffix](content)))
    with pytest.raises(PackError, match=rf"bad{suffix} .*{message}"):
        index_shards(bad, tmp_path / "out", unpack=tmp_path / "unpacked")
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.rglob("unpacked/**/*") if path.is_file() and path.stat().st_size]
    monkeypatch.setattr(unpacking, "_MOST_OF_SMALL", 16 << 20)
    if what == "too large":
        assert index_shards(bad, tmp_path / "out", unpack=tmp_path / "unpacked").records == 1


def test_an_archive_without_members_is_one(shards: list[Path], tmp_path: Path) -> None:
    write_tar(shards[0], [])
    for shard in shards[:2]:
        compress(shard)
    assert index_shards(shards[0].parent, tmp_path / "out", unpack=tmp_path / "unpacked").records == 8
