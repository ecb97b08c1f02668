"""Makes codes of a JPEG's coefficients (ITU-T T.81, annexes C, F and G)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np


class Scan(NamedTuple):
    """The components that a scan codes, the coefficients of each block, and the bits of these."""

    components: tuple[int, ...]
    first: int = 0
    last: int = 63
    high: int = 0
    low: int = 0


class Token(NamedTuple):
    """A Huffman code and what follows it.

    Attributes:
        table: (0 for DC and 1 for AC, number), or None if only `bits` are meant.
        symbol: What is coded.
        bits: Further bits, as a text of zeros and ones.
    """

    table: tuple[int, int] | None
    symbol: int
    bits: str = ""


RESTART: Final = Token(None, -1)


def _magnitude(value: int) -> tuple[int, str]:
    size = abs(value).bit_length()
    return size, f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else ""


class Coder:
    """Turns one scan's blocks into tokens."""

    def __init__(self, scan: Scan, progressive: bool) -> None:
        self.scan = scan
        self.progressive = progressive
        self.previous: dict[int, int] = {}
        self.run = 0
        self.corrections = ""
        self.table = (1, min(scan.components[0], 1))

    def restart(self) -> Iterator[Token]:
        yield from self.flush()
        yield RESTART
        self.previous = {}

    def block(self, component: int, block: Sequence[int]) -> Iterator[Token]:
        scan = self.scan
        if scan.first == 0 and scan.high:
            yield Token(None, 0, str(block[0] >> scan.low & 1))
        elif scan.first == 0:
            value = block[0] >> scan.low
            size, bits = _magnitude(value - self.previous.get(component, 0))
            self.previous[component] = value
            yield Token((0, min(component, 1)), size, bits)
            if not self.progressive:
                yield from self._sequential((1, min(component, 1)), block)
        elif scan.high:
            yield from self._refine(block)
        else:
            yield from self._first(block)

    def _sequential(self, table: tuple[int, int], block: Sequence[int]) -> Iterator[Token]:
        run = 0
        for value in block[1 : self.scan.last + 1]:
            if value == 0:
                run += 1
                continue
            yield from itertools.repeat(Token(table, 0xF0), run // 16)
            size, bits = _magnitude(value)
            yield Token(table, run % 16 << 4 | size, bits)
            run = 0
        if run:
            yield Token(table, 0)

    def _first(self, block: Sequence[int]) -> Iterator[Token]:
        run = 0
        for value in block[self.scan.first : self.scan.last + 1]:
            shifted = abs(value) >> self.scan.low
            if shifted == 0:
                run += 1
                continue
            yield from self.flush()
            yield from itertools.repeat(Token(self.table, 0xF0), run // 16)
            size, bits = _magnitude(shifted if value > 0 else -shifted)
            yield Token(self.table, run % 16 << 4 | size, bits)
            run = 0
        if run:
            self.run += 1
            if self.run == 0x7FFF:
                yield from self.flush()

    def _refine(self, block: Sequence[int]) -> Iterator[Token]:
        values = block[self.scan.first : self.scan.last + 1]
        sizes = [abs(value) >> self.scan.low for value in values]
        last = max((place for place, size in enumerate(sizes) if size == 1), default=-1)
        run, corrections = 0, ""
        for place, (value, size) in enumerate(zip(values, sizes, strict=True)):
            if size == 0:
                run += 1
                continue
            while run > 15 and place <= last:
                yield from self.flush()
                yield Token(self.table, 0xF0, corrections)
                run, corrections = run - 16, ""
            if size > 1:
                corrections += str(size & 1)
                continue
            yield from self.flush()
            yield Token(self.table, run << 4 | 1, ("1" if value > 0 else "0") + corrections)
            run, corrections = 0, ""
        if run or corrections:
            self.run += 1
            self.corrections += corrections
            if self.run == 0x7FFF:
                yield from self.flush()

    def flush(self) -> Iterator[Token]:
        if self.run:
            size = self.run.bit_length() - 1
            bits = f"{self.run - (1 << size):0{size}b}" if size else ""
            yield Token(self.table, size << 4, bits + self.corrections)
        self.run, self.corrections = 0, ""


def random_code(symbols: Sequence[int], random: np.random.Generator) -> list[tuple[int, int]]:
    """(length, symbol) of a random prefix code without a word of all ones, shortest first."""
    lengths, depth = [0], float(random.choice([0.05, 0.5, 0.95]))
    while len(lengths) <= len(symbols):
        lengths.sort()
        splittable = [place for place, length in enumerate(lengths) if length < 16]
        place = splittable[-1] if random.random() < depth else int(random.choice(splittable))
        length = lengths.pop(place) + 1
        lengths += [length, length]
    lengths = sorted(lengths)[:-1]
    return list(zip(lengths, random.permutation(symbols).tolist(), strict=True))


def codes(code: Sequence[tuple[int, int]]) -> dict[int, str]:
    """The words, as texts of zeros and ones."""
    words, word, before = {}, 0, 0
    for length, symbol in code:
        word <<= length - before
        words[symbol] = f"{word:0{length}b}"
        word, before = word + 1, length
    return words


def coded(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    return int(bits or "0", 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\0")
