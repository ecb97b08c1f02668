"""Tar archives that were made to do harm, and what Python's tarfile finds in them."""

from __future__ import annotations

import io
import os
import random
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from crc32c import crc32c

from packtrain._core.errors import PackError
from packtrain._packer.foreign.headers import BLOCK, BadArchive, members
from packtrain._packer.foreign.plan import Rules
from packtrain._packer.foreign.scan import Scan, ScanTask, read_shard, split_name
from packtrain._storage.remote.client import ObjectStore

MOST_BYTES = 16 << 20
"""More than a walk through a small archive may ever allocate."""
FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}
NAMES = [
    "a.jpg",
    "folder/000.cls",
    "e\u0301.txt",
    "x" * 120 + ".jpg",
    "d/" * 60 + "long.png",
    "y" * 300 + ".json",
    "no extension",
    ".hidden",
    "b.seg.png",
]
Place = tuple[bytes, int, int]
Record = tuple[bytes, str, int, int]


class Guarded:
    """Bytes from which only what is there can be read, in ascending order and in bounded pieces."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = memoryview(data)
        self._last = 0

    def view(self, offset: int, length: int) -> memoryview:
        assert 0 <= self._last <= offset
        assert 0 <= length <= MOST_BYTES
        assert offset <= self.size
        self._last = offset
        return self._data[offset : offset + length]


@dataclass
class Campaign:
    """Counts of archives that were refused and read, and what went wrong."""

    refused: int = 0
    read: int = 0
    failures: list[str] = field(default_factory=list)


def run(folder: Path, count: int, seed: int = 0) -> Campaign:
    """Walks through `count` hostile archives, and compares what is found with tarfile. `folder` is for files."""
    campaign, random_ = Campaign(), random.Random(seed)
    seeds = [archive(format, random_) for format in FORMATS for _ in range(4)]
    makers: list[Callable[[random.Random], bytes]] = [partial(_mutant, seeds), _forged]
    tracemalloc.start()
    try:
        for number in range(count):
            data = makers[number % len(makers)](random_)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                found = [(member.name, member.offset, member.size) for member in members(Guarded(data))]
            except BadArchive:
                campaign.refused += 1
            except Exception as error:
                campaign.failures.append(f"{number}: {type(error).__name__}: {error}")
            else:
                campaign.read += 1
                if found != (expected := by_tarfile(data)):
                    campaign.failures.append(f"{number}: found {found}, tarfile {expected}")
                elif (samples := _scanned(folder / "a.tar", data)) is not None and samples != _in_samples(found):
                    campaign.failures.append(f"{number}: the scan has {samples}, and there is {found}")
            if (peak := tracemalloc.get_traced_memory()[1] - before) > MOST_BYTES:
                campaign.failures.append(f"{number}: {peak} bytes were allocated")
    finally:
        tracemalloc.stop()
    return campaign


def _scanned(path: Path, data: bytes) -> list[Record] | None:
    """Key, extension and place of all members of samples; None if the shard is refused."""
    path.write_bytes(data)
    try:
        # What the note keeps.
        scan = Scan.parse(read_shard(ScanTask(0, path, Rules(), path.parent), lambda _: None, ObjectStore()).dump())
    except PackError:
        return None
    assert scan.crc32c == crc32c(data)
    records = []
    for extension, found in scan.found.items():
        columns = [found.columns[name].tolist() for name in ("sample", "offset", "length", "crc32c")]
        for sample, offset, length, checksum in zip(*columns, strict=True):
            assert found.extension.kind == "label" or checksum == crc32c(data[offset : offset + length])
            records.append((scan.keys[sample], extension, offset, length))
    return sorted(records)


def _in_samples(places: list[Place]) -> list[Record]:
    names = [(split_name(name), offset, size) for name, offset, size in places]
    return sorted((*name, offset, size) for name, offset, size in names if name is not None)


def by_tarfile(data: bytes) -> list[Place] | str:
    """Name, offset and size of the regular files that tarfile finds, or its error."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as file:
            return [(os.fsencode(member.name), member.offset_data, member.size) for member in file if member.isreg()]
    except (tarfile.TarError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def archive(format: str, random_: random.Random) -> bytes:
    """A sound archive of a few members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[format]) as file:
        for name in random_.sample(NAMES, 4):
            if format == "ustar" and len(name) > 100:
                continue
            info = tarfile.TarInfo(name)
            info.size = random_.choice([0, 1, 511, 512, 513, 3000])
            info.mtime = random_.choice([0, 1.5, 1_700_000_000])
            file.addfile(info, io.BytesIO(random_.randbytes(info.size)))
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        file.addfile(folder)
    return buffer.getvalue()


def _mutant(seeds: list[bytes], random_: random.Random) -> bytes:
    """A sound archive with some bytes changed, mostly in headers, and mostly with true checksums."""
    data = bytearray(random_.choice(seeds))
    headers = [place for place in range(0, len(data), BLOCK) if data[place + 257 : place + 262] == b"ustar"]
    for _ in range(random_.choice([1, 1, 1, 2, 5])):
        header = random_.choice(headers)
        change = random_.randrange(8)
        if change == 0:
            data[random_.randrange(len(data))] = random_.randrange(256)
        elif change == 1:
            del data[random_.randrange(BLOCK, len(data)) :]
            headers = [place for place in headers if place + BLOCK <= len(data)]
            continue
        elif change == 2:
            at = header + BLOCK + random_.randrange(64)
            data[at : at + 1] = random_.randbytes(1)[: max(0, len(data) - at)]
        elif change == 3:
            data[header + random_.randrange(BLOCK)] = random_.randrange(256)
        else:
            _put(data, header, random_.choice(list(FIELDS)), random_)
        if random_.random() < 0.9:
            data[header : header + BLOCK] = with_checksum(bytes(data[header : header + BLOCK]), random_)
    return bytes(data)


def _forged(random_: random.Random) -> bytes:
    """An archive of headers that were put together at random."""
    data = b""
    for _ in range(random_.randrange(1, 6)):
        header = bytearray(BLOCK)
        for name in FIELDS:
            _put(header, 0, name, random_)
        content = random_.randbytes(random_.choice([0, 0, 5, 512, 700]))
        if header[156] in b"LK":
            content = random_.choice([b"z" * 200 + b".jpg\0", b"name.jpg", b"", b"\0", b"n/\0", b"q" * 70_000])
        elif header[156] in b"xXg":
            content = _pax(random_)
        if random_.random() < 0.8:
            header[124:136] = b"%011o\0" % len(content)
        data += with_checksum(bytes(header), random_) + content + bytes(-len(content) % BLOCK)
    return data + random_.choice([bytes(2 * BLOCK)] * 6 + [bytes(BLOCK), b"", bytes(BLOCK) + b"x" * BLOCK])


NUMBERS = [*[b"0000644\0"] * 9, b"-1      ", b"\xff" * 8, bytes(8)]
FIELDS = {
    "name": (0, 100, [b"n.jpg", b"", b"folder/", b"a/b.c.d", b"w" * 100, b"\xff\xfe.jpg", b"../up.jpg"]),
    **{name: (at, 8, NUMBERS) for name, at in (("mode", 100), ("owner", 108), ("group", 116), ("device", 329))},
    "size": (
        *(124, 12),
        [
            *(b"%011o\0" % (number % (1 << 33)) for number in (0, 1, 512, 1 << 20)),
            *(b"\x80" + number.to_bytes(11, "big") for number in (0, 512, 1 << 33, 1 << 62, (1 << 88) - 1)),
            *(
                b"\xff" * 12,
                b"-0000000001\0",
                b"1_0        \0",
                b"0o17       \0",
                b"17\x0017      \0",
                b"        17 \0",
            ),
            *(b"\x0017       \0\0", bytes(12), b" " * 12, b"\x81junk and so"),
        ],
    ),
    "time": (136, 12, NUMBERS),
    "kind": (156, 1, [bytes([kind]) for kind in b"\000000000055LLKxxgXVS1234567MDNA"]),
    "magic": (257, 8, [*[b"ustar\x0000"] * 3, b"ustar  \0", bytes(8), b"ustar\0  ", b"garbage!"]),
    "prefix": (345, 155, [b"", b"", b"", b"prefix", b"p" * 155]),
}
"""Place and length of the fields of a header, and what may stand there."""


def _put(data: bytearray, header: int, name: str, random_: random.Random) -> None:
    place, length, values = FIELDS[name]
    data[header + place : header + place + length] = random_.choice(values).ljust(length, b"\0")


def _pax(random_: random.Random) -> bytes:
    pools = {
        "path": ["p.jpg", "", "a" * 3000 + ".png", "folder/", "n\0ul.jpg", "\u00e9.txt"],
        "size": ["0", "5", "-1", "99999999999999999999999", "1e3", "512"],
        **{"mtime": ["1.5", "x"], "GNU.sparse.major": ["1"], "comment": ["x", "a=b", "line\nfeed"]},
    }
    keys = random_.choices(list(pools), k=random_.randrange(4))
    content = b"".join(pax_record(key, random_.choice(pools[key])) for key in keys)
    odd = [b"0 a=b\n", b"99999999 path=x\n", b"7 a=b\n", b"junk", b"5 =b\n", b"6 a=bc", bytes(5)]
    return content + (random_.choice(odd) if random_.random() < 0.2 else b"")


def pax_record(key: str, value: str) -> bytes:
    """A record of a PAX header."""
    body = f" {key}={value}\n".encode()
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length += 1
    return str(length).encode() + body


def with_checksum(header: bytes, random_: random.Random | None = None) -> bytes:
    """The header with its true checksum, sometimes of signed bytes."""
    counted = header[:148] + b" " * 8 + header[156:]
    checksum = sum(counted)
    if random_ is not None and random_.random() < 0.1:
        checksum = sum(byte - 256 * (byte > 127) for byte in counted)
    return header[:148] + b"%06o\0 " % max(0, checksum) + header[156:]
