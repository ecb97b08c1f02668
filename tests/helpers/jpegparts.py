"""The parts of a JPEG, read by the letter of the standard."""

from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

import numpy as np
from helpers.jpegcoder import codes
from helpers.jpegs import Coefficients, Picture, mcus_of, segment


class Segment(NamedTuple):
    """A marker segment: its marker's last byte, where it begins in the file, and what it holds."""

    marker: int
    start: int
    body: bytes


class Parsed(NamedTuple):
    """A baseline JPEG of one scan.

    Attributes:
        segments: What lies between SOI and the coded data.
        intervals: Coded data between restart markers, without them.
        markers: The restart markers' last bytes, and that of EOI.
    """

    segments: list[Segment]
    intervals: list[bytes]
    markers: list[int]

    def bodies(self, *markers: int) -> list[bytes]:
        """The content of segments with these markers."""
        return [each.body for each in self.segments if each.marker in markers]


def parsed(data: bytes) -> Parsed:
    """The parts of a JPEG of one scan that has no byte too many."""
    assert data[:2] == b"\xff\xd8"
    segments: list[Segment] = []
    place = 2
    while not segments or segments[-1].marker != 0xDA:
        lead, marker, size = struct.unpack_from(">BBH", data, place)
        assert lead == 0xFF and size >= 2
        segments.append(Segment(marker, place, data[place + 4 : place + 2 + size]))
        place += 2 + size
    intervals: list[bytes] = []
    markers: list[int] = []
    while not markers or markers[-1] != 0xD9:
        end = place
        while data[end] != 0xFF or data[end + 1] == 0:
            end += 1
        intervals.append(data[place:end])
        markers.append(data[end + 1])
        place = end + 2
    assert place == len(data)
    return Parsed(segments, intervals, markers)


class _Bits:
    def __init__(self, coded: bytes) -> None:
        plain = coded.replace(b"\xff\0", b"\xff")
        self.text = f"{int.from_bytes(plain):0{8 * len(plain)}b}" if plain else ""
        self.place = 0

    def take(self, count: int) -> str:
        self.place += count
        assert self.place <= len(self.text)
        return self.text[self.place - count : self.place]

    def symbol(self, words: dict[str, int]) -> int:
        word = ""
        while word not in words:
            word += self.take(1)
        return words[word]

    def value(self, size: int) -> int:
        if size == 0:
            return 0
        bits = self.take(size)
        return int(bits, 2) - (0 if bits[0] == "1" else (1 << size) - 1)


def _tables(parts: Parsed) -> dict[int, dict[str, int]]:
    tables = {}
    for body in parts.bodies(0xC4):
        while body:
            count = sum(body[1:17])
            lengths = [length for length, number in enumerate(body[1:17], 1) for _ in range(number)]
            code = list(zip(lengths, body[17 : 17 + count], strict=True))
            tables[body[0]] = {word: symbol for symbol, word in codes(code).items()}
            body = body[17 + count :]
    return tables


def coefficients(data: bytes) -> list[Coefficients]:
    """The coefficients of each component of an interleaved baseline JPEG; those that count."""
    parts = parsed(data)
    (frame,), (scan,) = parts.bodies(0xC0, 0xC1), parts.bodies(0xDA)
    height, width, count = struct.unpack_from(">HHB", frame, 1)
    factors = tuple((frame[7 + 3 * number] >> 4, frame[7 + 3 * number] & 15) for number in range(count))
    empty = Picture(width, height, factors if count > 1 else ((1, 1),), (), ())
    columns, rows = empty.mcus
    values = [np.zeros((rows * down, columns * across, 64), np.int64) for across, down in empty.samplings]
    tables = _tables(parts)
    chosen = {scan[1 + 2 * place] - 1: scan[2 + 2 * place] for place in range(scan[0])}
    every = int.from_bytes((parts.bodies(0xDD) or [b""])[0]) or columns * rows
    mcus = mcus_of(empty, range(count)) if count > 1 else ([(0, *at)] for at in np.ndindex(rows, columns))
    for interval in parts.intervals:
        bits, previous = _Bits(interval), [0] * count
        for members in itertools.islice(mcus, every):
            for component, row, column in members:
                dc, ac = tables[chosen[component] >> 4], tables[0x10 | chosen[component] & 15]
                block = values[component][row, column]
                previous[component] += bits.value(bits.symbol(dc))
                block[0] = previous[component]
                place = 1
                while place < 64 and (symbol := bits.symbol(ac)):
                    place += symbol >> 4
                    block[place] = bits.value(symbol & 15)
                    place += 1
        assert len(bits.text) - bits.place < 8 and "0" not in bits.text[bits.place :], "bytes too many"
    assert next(mcus, None) is None, "MCUs are missing"
    return Picture(width, height, empty.samplings, tuple(values), ()).seen()


def with_table(data: bytes, interval: int, wide: int = 2) -> bytes:
    """A baseline JPEG that has a restart marker after every `interval` MCUs, as a crop-ready record."""
    parts = parsed(data)
    lengths = [len(coded) + 2 for coded in parts.intervals]
    place = parts.segments[1].start if parts.segments[0].marker == 0xE0 else 2
    first, last = next(each for each in parts.segments if each.marker in (0xDB, 0xEE)), parts.segments[-1]
    (frame,) = (each for each in parts.segments if each.marker in (0xC0, 0xC1))
    offsets = first.start, frame.start, last.start + 4 + len(last.body)
    grown = 4 + 28 + wide * len(lengths)
    table = struct.pack("<10sHIIII", b"packtrain\0", wide, *(offset + grown for offset in offsets), interval)
    table += np.array(lengths, f"<u{wide}").tobytes()
    return data[:place] + segment(0xE9, table) + data[place:]
