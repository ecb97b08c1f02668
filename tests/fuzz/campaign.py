"""Sends damaged JPEGs and records through everything that reads them: the result is an error or an image.

`examine` states what must hold for any bytes. test_fuzz.py runs it with the ordinary extension, test_sanitised.py in
another process with one that was built with AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import numpy.typing as npt
from helpers.coefficient_records import with_segments
from helpers.corpus import mutated
from helpers.jpegparts import parsed, with_table
from helpers.jpegs import ARITHMETIC, JFIF, SAMPLINGS, SEGMENTS, Picture, picture, progressive, separate, written
from PIL import Image

from packtrain._codec.cut import cut, python_cut
from packtrain._codec.decoders.base import frame_size
from packtrain._codec.geometry import Box
from packtrain._codec.native import require_extension

# Larger images are not compared with Pillow: they are huge only because of damage, and mostly empty.
MOST_PIXELS = 300_000


def victims() -> dict[str, bytes]:
    """Small JPEGs of all kinds, and records."""
    random = np.random.default_rng(0)
    found = {}
    for name in SAMPLINGS:
        found[name] = written(_small(random, name), random, segments=SEGMENTS[:2])
        source = _small(random, name)
        divisors = [number for number in range(1, source.mcus[0] + 1) if source.mcus[0] % number == 0]
        interval = int(random.choice(divisors))
        data = written(source, random, restart=interval, segments=[JFIF])
        found[f"record {name}"] = with_table(data, interval, [2, 4][random.integers(2)])
    for name in ("grey", "4:2:0", "4:4:4"):
        source = _small(random, name)
        found[f"progressive {name}"] = written(source, random, scans=progressive(source), process=0xC2)
        found[f"progressive restarting {name}"] = written(
            source, random, scans=progressive(source), process=0xC2, restart=2
        )
        found[f"separate {name}"] = written(source, random, scans=separate(source), process=0xC1)
        found[f"restarting {name}"] = written(source, random, restart=3, segments=SEGMENTS)
    for name, data in ARITHMETIC.items():
        found[f"arithmetic {name}"] = data
    for name in ("4:2:0", "grey", "restarting 4:4:4", "progressive 4:2:0", "arithmetic progressive grey"):
        found[f"transcoded {name}"] = require_extension("Fuzzing").transcode(found[name])
    return found


def coefficient_records() -> Iterator[bytes]:
    """The coefficient records of JPEGs of all samplings; and with the header of another JPEG for metadata."""
    other = victims()["grey"]
    header = other[2 : other.index(b"\xff\xda") + 12]
    for data in victims().values():
        with suppress(ValueError):
            record = require_extension("Fuzzing").coefficient_record(data)
            yield record
            yield with_segments(record, header)


def _small(random: np.random.Generator, sampling: str) -> Picture:
    width, height = (int(side) for side in random.integers(17, 41, 2))
    return picture(random, width, height, sampling, density=0.04)


def truncations(data: bytes) -> Iterator[bytes]:
    """Every prefix, without and with an end marker."""
    for size in range(len(data)):
        yield data[:size]
        yield data[:size] + b"\xff\xd9"


def flips(data: bytes, random: np.random.Generator) -> Iterator[bytes]:
    """Changes each byte to another value; in the headers, flips every single bit."""
    header = data.index(b"\xff\xda") + 14
    for place, byte in enumerate(data):
        for mask in [1 << bit for bit in range(8)] if place < header else [int(random.integers(1, 256))]:
            changed = bytearray(data)
            changed[place] = byte ^ mask
            yield bytes(changed)


def splices(data: bytes, other: bytes, random: np.random.Generator) -> Iterator[bytes]:
    """Tables of another JPEG, and segments added or removed after the table was made."""
    ours, theirs = parsed(data), parsed(other)
    head, place = ours.segments, int(random.integers(len(ours.segments)))
    start = head[place].start
    yield data[:start] + b"\xff\xfe\0\5abc" + data[start:]
    yield data[:start] + data[start + 4 + len(head[place].body) :]
    size = int(random.choice([0, 1, 2, len(head[place].body), 255, 65535]))
    yield data[: start + 2] + struct.pack(">H", size) + data[start + 4 :]
    scan, their_scan = (parts.segments[-1].start for parts in (ours, theirs))
    yield data[:scan] + other[their_scan:]
    yield other[:their_scan] + data[scan:]
    table = data.find(b"packtrain\0")
    if table >= 0:
        changed = bytearray(data)
        field = table + int(random.choice([12, 16, 20, 24]))
        struct.pack_into("<I", changed, field, int(random.integers(len(data) + 9)))
        yield bytes(changed)
        for _ in range(4):
            changed = bytearray(data)
            # The sum of the entries stays the same.
            entries = [table + 28 + 2 * int(random.integers(len(ours.intervals))) for _ in range(2)]
            step = int(random.integers(1, 300))
            for entry, change in zip(entries, (step, -step), strict=True):
                (length,) = struct.unpack_from("<H", changed, entry)
                struct.pack_into("<H", changed, entry, length + change & 0xFFFF)
            yield bytes(changed)


def cases(data: bytes, others: list[bytes], random: np.random.Generator, count: int) -> Iterator[bytes]:
    """All truncations and flips, and `count` random mutations and splices."""
    yield from truncations(data)
    yield from flips(data, random)
    for _ in range(count):
        yield mutated(data, random)
        try:
            yield from splices(data, others[random.integers(len(others))], random)
        except (AssertionError, IndexError):
            # `parsed` does not read JPEGs with several scans.
            continue


def examine(data: bytes, random: np.random.Generator, *, pixels: bool = True) -> bool:
    """Checks what must hold for any `data`. With `pixels`, compares the pixels with Pillow's.

    Returns:
        True if the decoder accepts `data` as an image.
    """
    whole = _oracle(data) if pixels else None
    try:
        record = require_extension("Fuzzing").transcode(_alone(data))
    except ValueError:
        pass
    else:
        assert python_cut(record, Box(0, 0, 1, 1)) is not None
        again = None if whole is None else _oracle(record)
        assert again is None or whole is None or np.array_equal(whole, again), "the record has other pixels"
    try:
        width, height = frame_size(data)
    except ValueError:
        width, height, whole = 20, 20, None
    for box in _boxes(random, max(width, 1), max(height, 1)):
        _examine_cut(data, box, random)
    return _examine_decoder(data, max(width, 1), max(height, 1), whole, random)


def _examine_cut(data: bytes, box: Box, random: np.random.Generator) -> None:
    results = []
    for implementation in (cut, python_cut):
        try:
            found = implementation(_alone(data), box)
            results.append(found and (bytes(found.data), found.left, found.top))
        except ValueError as error:
            results.append((str(error).encode(), -1, -1))
    assert results[0] == results[1], box
    if results[0] is not None and results[0][1] >= 0:
        part, left, top = results[0]
        _decode(part, Box(box.left - left, box.top - top, *box[2:]), 4, 1)


def _examine_decoder(
    data: bytes, width: int, height: int, whole: npt.NDArray[np.uint8] | None, random: np.random.Generator
) -> bool:
    found = None
    if width * height < MOST_PIXELS:
        found = _decode(data, Box(0, 0, width, height), 4, 1)
        if found is not None and whole is not None:
            assert np.array_equal(found[..., :3], whole), "other pixels"
        _decode(data, Box(0, 0, width, height), 1, 1)
    for scale in (1, 2, 4, 8):
        for box in _boxes(random, -(-width // scale), -(-height // scale)):
            _decode(data, box, int(random.choice([1, 4])), scale)
    return found is not None


def _decode(data: bytes, box: Box, channels: int, scale: int) -> npt.NDArray[np.uint8] | None:
    try:
        pixels, start, stride = require_extension("Fuzzing").decode(_alone(data), box, channels, scale)
    except ValueError:
        return None
    rows = np.frombuffer(pixels, np.uint8)[start : start + box.height * stride].reshape(box.height, stride)
    return rows[:, : box.width * channels].reshape(box.height, box.width, channels)


def _alone(data: bytes) -> memoryview:
    """In memory that ends with the data: a bytes object has one more byte after its end."""
    return np.frombuffer(data, np.uint8).copy().data if data else memoryview(b"")


def _boxes(random: np.random.Generator, width: int, height: int) -> Iterator[Box]:
    """Small rectangles, most of them inside."""
    for _ in range(2):
        left, top = int(random.integers(width)), int(random.integers(min(height, 1000)))
        across, down = (int(random.integers(1, min(side, 50) + 1)) for side in (width - left, height - top))
        yield Box(left, top, across + int(random.random() < 0.05), down)


def _oracle(data: bytes) -> npt.NDArray[np.uint8] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data))
            if image.format not in ("JPEG", "MPO") or image.width * image.height > MOST_PIXELS:
                return None
            return np.asarray(image.convert("RGB"))
    except Exception:
        return None


def run(seed: int, count: int, *, step: int = 1, pixels: bool = True) -> tuple[int, int]:
    """Examines every `step`-th case of every victim, with `count` random mutations and splices each.

    Returns:
        The number of cases, and how many of them were images.
    """
    random = np.random.default_rng(seed)
    found, images = victims(), 0
    others = [data for name, data in found.items() if "record" in name]
    number = 0
    for data in found.values():
        assert examine(data, random, pixels=pixels)
        offset = int(random.integers(step))
        for place, case in enumerate(cases(data, others, random, count)):
            if place % step == offset:
                images += examine(case, random, pixels=pixels)
                number += 1
    return number, images
