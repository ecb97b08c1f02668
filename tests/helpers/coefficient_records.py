"""A reader of coefficient records in plain Python, written from docs/format-records.md alone. Slow, but short."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"\x89PTC\r\n\x1a\n"
GROUP: Final = 16
# For each class the bits of a value. Class 0 has one value of 1 or -1, classes 1 to 8 have masks, the rest are dense.
COMMON_BANDS: Final = (0x00, 0x01, 0x03, 0x07, 0x0F, 0x1F, 0x3F, 0x7F, 0xFF, 0x0B, 0x17, 0x2F, 0x5F, 0xBF, 0x6F)
WIDTHS: Final = (4, 1, 2, 3, 4, 5, 6, 7, 16, 3, 4, 5, 6, 7, 8, 16)


@dataclass
class Component:
    """One component: how many blocks it has, its quantisation table and its blocks, row by row, in zigzag order."""

    across: int
    down: int
    table: int
    columns: int
    rows: int
    blocks: list[list[list[int]]]


class Bits:
    """Numbers of a few bits, the least significant first."""

    def __init__(self, data: bytes) -> None:
        self._all = int.from_bytes(data, "little")
        self.left = 8 * len(data)

    def unsigned(self, width: int) -> int:
        found = self._all & ((1 << width) - 1)
        self._all, self.left = self._all >> width, self.left - width
        return found

    def signed(self, width: int) -> int:
        found = self.unsigned(width)
        return found - (1 << width) if found >> (width - 1) else found


def read(record: bytes) -> tuple[int, int, dict[int, list[int]], list[Component]]:
    """Return width, height, the quantisation tables in zigzag order, and the components."""
    version, head, ends, lengths, coded = struct.unpack_from("<5I", record, 8)
    if record[:8] != MAGIC or version != 1:
        raise ValueError("not a coefficient record of version 1")
    width, height, tables, components = read_head(record[head:ends])
    down = max(component.down for component in components)
    rows = -(-height // (8 * down))
    row_ends = struct.unpack_from(f"<{rows}I", record, ends)
    sizes = iter(struct.unpack_from(f"<{(coded - lengths) // 2}H", record, lengths))
    at = 0
    for row in range(rows):
        for component in components:
            first = row * component.down
            for _ in range(first, min(first + component.down, component.rows)):
                line: list[list[int]] = []
                while len(line) < component.columns:
                    size = next(sizes)
                    group = record[coded + at : coded + at + size]
                    line += read_group(group, min(GROUP, component.columns - len(line)))
                    at += size
                component.blocks.append(line)
        if at != row_ends[row]:
            raise ValueError(f"row {row} of MCUs ends at {at}, not at {row_ends[row]}")
    return width, height, tables, components


def with_segments(record: bytes, metadata: bytes | None = None, head: bytes | None = None) -> bytes:
    """Return a record with other metadata or another head."""
    version, *offsets = struct.unpack_from("<5I", record, 8)
    parts = [record[start:end] for start, end in zip([28, *offsets], [*offsets, len(record)], strict=True)]
    parts[0] = parts[0] if metadata is None else metadata
    parts[1] = parts[1] if head is None else head
    ends = list(itertools.accumulate(map(len, parts[:4]), initial=28))[1:]
    return MAGIC + struct.pack("<5I", version, *ends) + b"".join(parts)


def read_head(head: bytes) -> tuple[int, int, dict[int, list[int]], list[Component]]:
    """Read the segments of a JPEG: APP14, DQT, SOF."""
    tables: dict[int, list[int]] = {}
    while True:
        marker, length = struct.unpack(">HH", head[:4])
        body, head = head[4 : 2 + length], head[2 + length :]
        if marker == 0xFFDB:
            tables[body[0] & 15] = list(struct.unpack(">64H" if body[0] >> 4 else "64B", body[1:]))
        elif marker in (0xFFC0, 0xFFC1):
            break
    height, width, count = struct.unpack(">HHB", body[1:6])
    factors = [(body[7 + 3 * i] >> 4, body[7 + 3 * i] & 15, body[8 + 3 * i]) for i in range(count)]
    most_across, most_down = (max(each[side] for each in factors) for side in (0, 1))
    components = [
        Component(
            across, down, table, -(-width * across // (8 * most_across)), -(-height * down // (8 * most_down)), []
        )
        for across, down, table in factors
    ]
    return width, height, tables, components


def read_group(group: bytes, count: int) -> list[list[int]]:
    """Return the blocks of a group, each 64 coefficients in zigzag order.

    Raises:
        ValueError: It does not end where it should, fills up a byte with anything but 0, or has a DC coefficient of
            more than 16 bits.
    """
    escaped = 2 + count - 1
    dc = [int.from_bytes(group[:2], "little", signed=True)]
    for difference in struct.unpack(f"{count - 1}b", group[2:escaped]):
        if difference == -128:
            dc.append(int.from_bytes(group[escaped : escaped + 2], "little", signed=True))
            escaped += 2
        else:
            dc.append(dc[-1] + difference)
    others = escaped + (count + 1) // 2
    bands = []
    for number in nibbles(group[escaped:], count):
        bands.append(group[others] if number == 15 else COMMON_BANDS[number])
        others += number == 15
    classes_at, classed = others, sum(band.bit_count() for band in bands)
    classes = nibbles(group[classes_at:], classed)
    masks_at = classes_at + (classed + 1) // 2
    masks = iter(group[masks_at:])
    bits = Bits(group[masks_at + sum(1 <= each <= 8 for each in classes) :])
    left = iter(classes)
    blocks = []
    for number in range(count):
        block = [0] * 64
        for band in range(8):
            if bands[number] >> band & 1:
                read_band(block, band, next(left), masks, bits)
        block[0] = dc[number]
        blocks.append(block)
    if bits.left not in range(8) or bits.unsigned(bits.left) or any(not -(1 << 15) <= value < 1 << 15 for value in dc):
        raise ValueError("the group is damaged")
    return blocks


def nibbles(data: bytes, count: int) -> list[int]:
    """Return numbers of four bits, of which each byte has two."""
    found = [each >> shift & 15 for each in data[: (count + 1) // 2] for shift in (0, 4)]
    if any(found[count:]):
        raise ValueError("half a byte is left over, and is not 0")
    return found[:count]


def read_band(block: list[int], band: int, kind: int, masks: Iterator[int], bits: Bits) -> None:
    """Read the values of eight positions in zigzag order, of which the very first is the DC coefficient."""
    start, width = 8 * band, WIDTHS[kind]
    if kind == 0:
        minus = bits.unsigned(1)
        block[start + bits.unsigned(3)] = -1 if minus else 1
    elif kind <= 8:
        mask = next(masks)
        for place in range(8):
            if mask >> place & 1:
                value = bits.signed(width)
                block[start + place] = value + (value >= 0)
    else:
        for place in range(band == 0, 8):
            block[start + place] = bits.signed(width)
