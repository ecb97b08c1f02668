"""The members of archives, as GNU tar and tarfile find them, and what is refused."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from fuzz.archives import Guarded, by_tarfile, pax_record, with_checksum
from helpers.support import output_of, tool

from packtrain._packer.foreign.headers import BLOCK, BadArchive, members
from packtrain._packer.foreign.scan import split_name

FORMATS = ["v7", "oldgnu", "gnu", "ustar", "pax"]
NAMES = {
    "short": "000001.jpg",
    "folder": "train/000001.cls",
    "dots": "train/000001.seg.left.png",
    "unicode": "größe-日本.txt",
    "blank": "with a blank.json",
    "long": "n" * 120 + ".npy",
    "deep": "/".join(["folder"] * 30) + "/000001.jpg",
}


def found_in(data: bytes) -> list[tuple[bytes, int, int]]:
    return [(member.name, member.offset, member.size) for member in members(Guarded(data))]


def header(name: bytes, size: int, kind: bytes = b"0", magic: bytes = b"ustar\x0000", prefix: bytes = b"") -> bytes:
    return with_checksum(
        name.ljust(100, b"\0")
        + b"0000644\0" * 3
        + b"%011o\0" % size
        + b"00000000000\0"
        + bytes(8)
        + kind
        + bytes(100)
        + magic
        + bytes(80)
        + prefix.ljust(155, b"\0")
        + bytes(12)
    )


def archive(*parts: bytes) -> bytes:
    return b"".join(part + bytes(-len(part) % BLOCK) for part in parts) + bytes(2 * BLOCK)


@pytest.mark.parametrize("format", FORMATS)
def test_gnu_tar_of_a_folder(tmp_path: Path, format: str) -> None:
    folder = tmp_path / "files"
    for number, (kind, name) in enumerate(NAMES.items()):
        if (kind == "long" and format in ("v7", "ustar")) or (kind == "deep" and format == "v7"):
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(300 * number))
    output_of(tool("tar", "tar"), f"--format={format}", "-cf", tmp_path / "a.tar", "-C", folder, ".")
    data = (tmp_path / "a.tar").read_bytes()
    assert found_in(data) == by_tarfile(data)
    assert {name.decode(): data[offset : offset + size] for name, offset, size in found_in(data)} == {
        f"./{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_size_of_more_than_8_gib_is_read_from_base_256_and_from_pax() -> None:
    class Sparse:
        """A file whose bytes, apart from those at the beginning and the end, are zeros."""

        def __init__(self, start: bytes, size: int) -> None:
            self.size, self._start = size, start

        def view(self, offset: int, length: int) -> memoryview:
            stop = min(offset + length, self.size)
            return memoryview(self._start[offset:stop].ljust(max(0, stop - offset), b"\0"))

    size = 9 << 30
    plain = bytearray(header(b"a.bin", 0, magic=b"ustar  \0"))
    plain[124:136] = b"\x80" + size.to_bytes(11, "big")
    record = pax_record("size", str(size))
    extended = archive(header(b"p", len(record), b"x"), record)[: 2 * BLOCK]
    for start in (with_checksum(bytes(plain)), extended + header(b"a.bin", 0)):
        (member,) = members(Sparse(start, len(start) + size + 2 * BLOCK))
        assert (member.name, member.offset, member.size) == (b"a.bin", len(start), size)


def test_signed_checksums() -> None:
    name = "é.jpg".encode()
    block = header(name, 0)
    counted = block[:148] + b" " * 8 + block[156:]
    signed = sum(byte - 256 * (byte > 127) for byte in counted)
    assert found_in(archive(block[:148] + b"%06o\0 " % signed + block[156:])) == [(name, BLOCK, 0)]


@pytest.mark.parametrize(
    ("data", "why", "offset"),
    [
        (b"", "not a tar archive", 0),
        (b"text" * 10, "not a tar archive", 0),
        (b"\xff" * 2048, "no tar header", 0),
        (header(b"a.jpg", 600) + bytes(100), "'a.jpg' is cut off: it has 600 bytes, and the shard ends 100", 0),
        (header(b"a.jpg", 10) + bytes(512), "end mark", 1024),
        (header(b"a.jpg", 0) + header(b"b.jpg", 0)[:100], "end mark", 512),
        (archive(header(b"a.jpg", 0)) + b"more", "something follows the end", 1536),
        (archive(header(b"a.jpg", 0)) + archive(header(b"b.jpg", 0)), "join them with `tar --concatenate`", 1536),
        (archive(header(b"a.jpg", 0)[:511] + b"x"), "a damaged header", 0),
        (archive(header(b"a.jpg", 0, b"1")), "'a.jpg' is no plain file", 0),
        (archive(header(b"a.jpg", 0, b"2")), "--dereference", 0),
        (archive(header(b"a.jpg", 0, b"S", b"ustar  \0")), "a sparse file", 0),
        (archive(header(b"a.jpg", 0, b"6")), "(type '6')", 0),
        (archive(header(b"a.jpg", 0, b"Z")), "(type 'Z')", 0),
        (archive(header(b"folder", 512, b"5"), bytes(512)), "has a size of 512", 0),
        (archive(header(b"p", 1 << 30, b"x")), "at most 1048576 are read", 0),
        (archive(header(b"p", 70_000, b"L")), "at most 65536 are read", 0),
        (archive(header(b"p", 5, b"L"), b"long\0"), "after a header that tells of another member", 1024),
        (archive(header(b"p", 4, b"L"), b"longer.jpg", header(b"a", 0)), "does not end where its header says", 0),
        (archive(header(b"p", 12, b"x"), b"99 path=abc\n", header(b"a", 0)), "a PAX header that cannot be read", 0),
        (archive(header(b"p", 22, b"x"), b"22 GNU.sparse.major=1\n", header(b"a", 0)), "sparse", 0),
        (archive(header(b"p", 16, b"g"), b"16 path=abcdefg\n", header(b"a", 0)), "a global header", 0),
        (archive(header(b"a.jpg", 0, magic=b"ustar  \0", prefix=b"x")), "an incremental archive", 0),
        (archive(header(b"a.jpg", 0, magic=b"unknown\0")), "an unknown format", 0),
        (archive(header(b"", 0)), "a file with the name ''", 0),
    ],
)
def test_what_is_not_certain_is_refused(data: bytes, why: str, offset: int) -> None:
    with pytest.raises(BadArchive) as caught:
        found_in(data)
    assert why in caught.value.why
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    "name",
    [
        *("a.jpg", "a/b.c.jpg", "./a.JPG", "a.b/c.d", "a", "a.", ".a", "a/.b", "é.ü"),
        *("__meta__", "__x__/a.jpg", "__a.jpg", "___", "__a.b__"),
    ],
)
def test_keys_are_those_of_webdataset(name: str) -> None:
    from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_iterator

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.addfile(tarfile.TarInfo(name))
    buffer.seek(0)
    files = [{**each, "__url__": ""} for each in tar_file_iterator(buffer)]
    theirs = [
        (str(sample["__key__"]), extension)
        for sample in group_by_keys(files, keys=base_plus_ext)
        for extension in sample
        if not extension.startswith("__")
    ]
    parts = split_name(name.encode())
    ours = [] if parts is None else [(parts.key.decode(), parts.extension)]
    hidden_or_bare = name in ("a.", "a/.b")  # webdataset takes these for samples
    assert ours == ([] if hidden_or_bare else theirs)
