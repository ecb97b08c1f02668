"""Laws of the cut: a small JPEG with the pixels of the full decode, or None if the table is not valid."""

from __future__ import annotations

import io
import itertools
import mmap
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from helpers.jpegparts import Parsed, parsed, with_table
from helpers.jpegs import JFIF, NO_TRANSFORM, SAMPLINGS, any_jpeg, picture, rectangles, segment, written
from helpers.pixels import noise
from helpers.support import encoded
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from packtrain._codec.cut import Cut, cut, has_table, has_true_table, python_cut, without_table
from packtrain._codec.geometry import Box
from packtrain._codec.native import extension

SEEDS = st.integers(0, 2**32 - 1)
IMPLEMENTATIONS: list[Callable[[bytes | memoryview, Box], Cut | None]] = [cut, python_cut]


def pixels(data: bytes | bytearray) -> npt.NDArray[np.uint8]:
    """Decodes by Pillow."""
    return np.asarray(Image.open(io.BytesIO(data)))


def both(record: bytes, box: Box) -> Cut | None:
    """The answer of both implementations, which must be the same."""
    ours, theirs = cut(record, box), python_cut(record, box)
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert (bytes(ours.data), *ours[1:]) == (bytes(theirs.data), *theirs[1:])
    return ours


def check(record: bytes, box: Box, whole: npt.NDArray[np.uint8]) -> None:
    """The cut is valid, its pixels are right, and it is no larger than it needs to be."""
    left, top, width, height = box
    found = both(record, box)
    assert found is not None
    part = pixels(found.data)
    inner = part[top - found.top :, left - found.left :][:height, :width]
    np.testing.assert_array_equal(inner, whole[top : top + height, left : left + width])
    assert found.left >= 0 and found.top >= 0
    parts, source = parsed(bytes(found.data)), parsed(record)
    assert {each.marker for each in parts.segments} <= {0xC0, 0xC1, 0xC4, 0xDA, 0xDB, 0xDD, 0xEE}
    assert parts.markers == [0xD0 | number % 8 for number in range(len(parts.markers) - 1)] + [0xD9]
    mcu_width, mcu_height, interval = grid(source)
    step = mcu_width * interval
    assert left - found.left < step + mcu_width and top - found.top < 2 * mcu_height
    assert found.left + part.shape[1] - left - width < 2 * step + mcu_width
    assert found.top + part.shape[0] - top - height < 2 * mcu_height


def grid(parts: Parsed) -> tuple[int, int, int]:
    """The size of an MCU in pixels, across and down, and the number of MCUs in an interval."""
    (frame,) = parts.bodies(0xC0, 0xC1)
    (interval,) = parts.bodies(0xDD)
    factors = [frame[7 + 3 * number] for number in range(frame[5])] if frame[5] > 1 else [0x11]
    across, down = max(factor >> 4 for factor in factors), max(factor & 15 for factor in factors)
    return 8 * across, 8 * down, int.from_bytes(interval)


def handmade(random: np.random.Generator, most: int) -> bytes:
    """A record with an interval that the transcoder might not choose."""
    width, height = (int(random.integers(1, random.choice([16, most]) + 1)) for _ in range(2))
    source = picture(random, width, height, list(SAMPLINGS)[random.integers(len(SAMPLINGS))])
    columns = source.mcus[0]
    interval = int(random.choice([number for number in range(1, columns + 1) if columns % number == 0]))
    segments = [[JFIF], [NO_TRANSFORM], []][random.integers(3)]
    data = written(source, random, restart=interval, segments=segments)
    return with_table(data, interval, int(random.choice([2, 4])))


class TestPixels:
    @given(SEEDS, st.booleans())
    @settings(max_examples=2 * settings().max_examples)
    def test_any_record(self, seed: int, by_hand: bool) -> None:
        random = np.random.default_rng(seed)
        record = handmade(random, 90) if by_hand or extension is None else extension.transcode(any_jpeg(random, 150)[1])
        whole = pixels(record)
        for box in rectangles(random, whole.shape[1], whole.shape[0], 6):
            check(record, Box(*box), whole)

    @pytest.mark.complete
    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_every_pixel_of_a_small_image(self, sampling: str) -> None:
        """With intervals of one MCU. The last column is one pixel wide, and the last row one pixel high."""
        random = np.random.default_rng(len(sampling))
        across, down = picture(random, 1, 1, sampling).mcu
        source = picture(random, 2 * across + 1, 2 * down + 1, sampling, density=0.1)
        record = with_table(written(source, random, restart=1), 1)
        whole = pixels(record)
        for top in range(source.height):
            for left in range(source.width):
                check(record, Box(left, top, 1, 1), whole)

    @pytest.mark.parametrize("sampling", ["4:2:0", "4:2:2", "4:1:1", "mixed", "only chroma is wide"])
    def test_a_last_column_of_every_width(self, sampling: str) -> None:
        """libjpeg does not interpolate two chroma samples, so a cut must have more, unless the image itself has not."""
        random = np.random.default_rng(0)
        across = picture(random, 1, 1, sampling).mcu[0]
        for last in range(1, across + 1):
            source = picture(random, 2 * across + last, 20, sampling, density=0.1)
            record = with_table(written(source, random, restart=1), 1)
            whole = pixels(record)
            for left in range(source.width - last - 2, source.width):
                check(record, Box(left, 3, source.width - left, 9), whole)


RANDOM = np.random.default_rng(9)
RECORD = with_table(written(picture(RANDOM, 50, 40, density=0.3), RANDOM, restart=2), 2)
TABLE = RECORD.index(b"packtrain\0")
ENTRIES = TABLE + 28


def put(place: int, *values: int, form: str = "<H") -> bytes:
    """The record with other bytes at one place."""
    data = bytearray(RECORD)
    for number, value in enumerate(values):
        struct.pack_into(form, data, place + number * struct.calcsize(form), value)
    return bytes(data)


def entries() -> tuple[int, ...]:
    return struct.unpack_from("<6H", RECORD, ENTRIES)


def longer_table() -> bytes:
    """One more entry, of no bytes."""
    end = ENTRIES + 12
    data = bytearray(RECORD[:end] + bytes(2) + RECORD[end:])
    struct.pack_into(">H", data, TABLE - 2, 2 + 28 + 14)
    for place in (12, 16, 20):
        struct.pack_into("<I", data, TABLE + place, struct.unpack_from("<I", data, TABLE + place)[0] + 2)
    return bytes(data)


def frame_at_the_end() -> bytes:
    """A frame header of which only half is left."""
    data = put(TABLE + 16, len(RECORD) - 10, 2**32 - 1, form="<I")
    return data[:-10] + b"\xff\xc0\0\x11\x08\0\x28\0\x32\3"


def with_segments(place: int, *segments: tuple[int, bytes]) -> bytes:
    """The record with more segments at one place; offsets behind it are corrected."""
    added = b"".join(segment(*each) for each in segments)
    data = bytearray(RECORD[:place] + added + RECORD[place:])
    table = data.index(b"packtrain\0")
    for field in (12, 16, 20):
        (offset,) = struct.unpack_from("<I", data, table + field)
        struct.pack_into("<I", data, table + field, offset + len(added) * (offset >= place))
    return bytes(data)


def start_of(*markers: int) -> int:
    return next(each.start for each in parsed(RECORD).segments if each.marker in markers)


def two_pictures(other: bytes = RECORD) -> bytes:
    """A JPEG of one picture, with a table that points behind its end, where another picture lies."""
    mine = encoded(noise(3, 50, 40))
    rest, parts = other[ENTRIES + 12 :], parsed(other)
    lengths = [len(coded) + 2 for coded in parts.intervals]
    size = 4 + 28 + 2 * len(lengths)
    moved = len(mine) + size - (len(other) - len(rest))
    offsets = [struct.unpack_from("<I", other, TABLE + field)[0] + moved for field in (12, 16, 20)]
    body = struct.pack(f"<10sHIIII{len(lengths)}H", b"packtrain\0", 2, *offsets, 2, *lengths)
    jfif = 4 + int.from_bytes(mine[4:6])
    return mine[:jfif] + segment(0xE9, body) + mine[jfif:] + rest


def more_intervals() -> bytes:
    """Coded data with eight intervals more than the image has; the table takes the first nine for one."""
    head, parts = RECORD[: ENTRIES + 12], parsed(RECORD)
    scan = len(RECORD) - sum(len(coded) + 2 for coded in parts.intervals)
    pieces = [*parts.intervals[:5], *parts.intervals[:3], *parts.intervals]
    coded = b"".join(piece + bytes([0xFF, 0xD0 | number % 8]) for number, piece in enumerate(pieces))[:-1] + b"\xd9"
    lengths = [sum(len(piece) + 2 for piece in pieces[:9]), *(len(piece) + 2 for piece in pieces[9:])]
    return head[:ENTRIES] + struct.pack("<6H", *lengths) + RECORD[ENTRIES + 12 : scan] + coded


UNSOUND = {
    "two pictures": two_pictures(),
    "another restart interval": with_segments(start_of(0xC4), (0xDD, b"\0\1")),
    "a second restart interval": with_segments(start_of(0xC4), (0xDD, b"\0\2")),
    "another frame in front": with_segments(start_of(0xC0), (0xC0, parsed(RECORD).bodies(0xC0)[0])),
    "a frame of arithmetic coding in front": with_segments(start_of(0xC0), (0xC9, parsed(RECORD).bodies(0xC0)[0])),
    "a comment among the tables": with_segments(start_of(0xC4), (0xFE, b"hello")),
    "somebody's data among the tables": with_segments(start_of(0xC4), (0xEF, b"hello")),
    "tables before the head": with_segments(start_of(0xDB), (0xE1, b""), (0xDB, parsed(RECORD).bodies(0xDB)[0])),
    "a scan before the scan": with_segments(start_of(0xDA), (0xDA, parsed(RECORD).bodies(0xDA)[0])),
    "JFIF says YCbCr, Adobe RGB": with_segments(start_of(0xDB), NO_TRANSFORM).replace(
        struct.pack("<I", start_of(0xDB) + 16), struct.pack("<I", start_of(0xDB)), 1
    ),
    "components with other numbers": RECORD.replace(b"\x01\x22\x00\x02", b"\x07\x22\x00\x02"),
    "samples of 12 bits": RECORD.replace(b"\x08\0\x28\0\x32\3", b"\x0c\0\x28\0\x32\3"),
    "a scan of some components": RECORD.replace(b"\xff\xda\0\x0c\3\1", b"\xff\xda\0\x0c\2\1"),
    "a scan of some coefficients": RECORD.replace(b"\0\x3f\0", b"\0\x05\0"),
    "not the beginning of an image": b"\xff\xd9" + RECORD[2:],
    "nothing": b"",
    "no JPEG": b"\xff\xd8\xff\xe9\0\x40packtrain\0" + bytes(60),
    "no table": encoded(noise(0, 30, 30), restart_marker_rows=1),
    "one byte less": RECORD[:-1],
    "one byte more": RECORD + b"\0",
    "only the header": RECORD[: ENTRIES + 12],
    "the name": put(TABLE, ord("P"), form="B"),
    "the size of entries": put(TABLE + 10, 3),
    "no size of entries": put(TABLE + 10, 0),
    "another size of entries": put(TABLE + 10, 4),
    "the head lies in the table": put(TABLE + 12, TABLE, form="<I"),
    "the head lies behind the frame": put(TABLE + 12, struct.unpack_from("<I", RECORD, TABLE + 16)[0] + 1, form="<I"),
    "the frame is far away": put(TABLE + 16, 2**32 - 1, form="<I"),
    "the frame is elsewhere": put(TABLE + 16, struct.unpack_from("<I", RECORD, TABLE + 12)[0], form="<I"),
    "the scan is far away": put(TABLE + 20, 2**32 - 1, form="<I"),
    "the scan is elsewhere": put(TABLE + 20, struct.unpack_from("<I", RECORD, TABLE + 20)[0] + 1, form="<I"),
    "the frame lies at the end": frame_at_the_end(),
    "the scan lies before the frame": put(TABLE + 20, 10, form="<I"),
    "no interval": put(TABLE + 24, 0, form="<I"),
    "a longer interval": put(TABLE + 24, 4, form="<I"),
    "a huge interval": put(TABLE + 24, 2**32 - 2, form="<I"),
    "another interval": put(TABLE + 24, 1, form="<I"),
    "an interval of no bytes": put(ENTRIES, 0, entries()[0] + entries()[1]),
    "shifted intervals": put(ENTRIES, entries()[0] - 1, entries()[1] + 1),
    "a wrong sum": put(ENTRIES, entries()[0] + 1),
    "one entry more": longer_table(),
    "the table ends early": put(TABLE - 2, 2 + 28 + 10, form=">H"),
    "the table does not end": put(TABLE - 2, 65535, form=">H"),
    "progressive": RECORD.replace(b"\xff\xc0\0\x11", b"\xff\xc2\0\x11"),
    "two components": RECORD.replace(b"\xff\xc0\0\x11\x08\0\x28\0\x32\3", b"\xff\xc0\0\x11\x08\0\x28\0\x32\2"),
    "another height": RECORD.replace(b"\x08\0\x28\0\x32\3", b"\x08\0\x18\0\x32\3"),
    "another width": RECORD.replace(b"\x08\0\x28\0\x32\3", b"\x08\0\x28\0\x72\3"),
    "no width": RECORD.replace(b"\x08\0\x28\0\x32\3", b"\x08\0\x28\0\0\3"),
    "no height": RECORD.replace(b"\x08\0\x28\0\x32\3", b"\x08\0\0\0\x32\3"),
    "another sampling": RECORD.replace(b"\x01\x22\x00\x02", b"\x01\x11\x00\x02"),
    "no sampling": RECORD.replace(b"\x01\x22\x00\x02", b"\x01\x00\x00\x02"),
}


@pytest.mark.parametrize("kind", UNSOUND)
def test_without_a_sound_table_there_is_no_cut(kind: str) -> None:
    assert both(RECORD, Box(0, 0, 1, 1)) is not None
    assert UNSOUND[kind] != RECORD
    assert both(UNSOUND[kind], Box(0, 0, 1, 1)) is None


@pytest.mark.parametrize(
    "more", [[(0xE1, b"any")], [(0xE2, b"")], [(0xE2, b"x" * 65533), (0xE1, b"\xff" * 99)]], ids=["EXIF", "ICC", "both"]
)
def test_metadata_between_table_and_tables_is_passed_over(more: list[tuple[int, bytes]]) -> None:
    longer, box = with_segments(start_of(0xDB), *more), Box(3, 4, 20, 30)
    assert len(longer) > len(RECORD) and both(longer, box) == both(RECORD, box)


def test_a_true_table_names_all_intervals_and_nothing_else() -> None:
    assert has_true_table(RECORD)
    for kind, data in UNSOUND.items():
        assert not has_true_table(data), kind
    lying = more_intervals()
    assert both(lying, Box(49, 0, 1, 1)) is not None, "the cut does not look at the first interval"
    assert not has_true_table(lying)
    for number in range(6):
        place = RECORD.index(bytes([0xFF, 0xD0 | number]) if number < 5 else b"\xff\xd9", start_of(0xDA))
        other = RECORD[: place + 1] + bytes([0xD6]) + RECORD[place + 2 :]
        assert not has_true_table(other)
        assert both(other, Box(0, 0, 50, 40)) is None


@pytest.mark.parametrize("data", [RECORD, UNSOUND["two pictures"], UNSOUND["one byte more"]])
def test_without_its_table_it_is_an_ordinary_jpeg(data: bytes) -> None:
    bare = without_table(data)
    assert not has_table(bare) and len(bare) < len(data)
    np.testing.assert_array_equal(pixels(bare), pixels(data))
    assert without_table(bare) == bare
    end = ENTRIES + 12
    assert not has_table(without_table(RECORD[:end] + RECORD[TABLE - 4 : end] + RECORD[end:])), "one behind the other"
    for odd in (b"", RECORD[: TABLE + 12], RECORD[: TABLE - 2] + b"\0\1" + RECORD[TABLE:]):
        assert without_table(odd) in (odd, odd[: TABLE - 4])


def test_any_number_of_tables_is_removed_at_once() -> None:
    """One after the other would take minutes: each time, the whole file is copied."""
    table = RECORD[TABLE - 4 : ENTRIES + 12]
    many = RECORD[: TABLE - 4] + table * 100_000 + RECORD[TABLE - 4 :]
    assert without_table(many) == without_table(RECORD)
    assert without_table(b"\xff\xd8" + table * 3 + RECORD[2:]) == without_table(RECORD), "before and after JFIF"


CHANGING = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    data = mmap.mmap(file.fileno(), 0)
    for number in range(1 << 62):
        place, first, second = map(int, sys.argv[2 + 3 * (number % 6) :][:3])
        before = data[place : place + 4]
        data[place : place + 4] = first.to_bytes(2, "little") + second.to_bytes(2, "little")
        data[place : place + 4] = before
"""


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_file_that_changes_while_it_is_read(
    implementation: Callable[[memoryview, Box], Cut | None], tmp_path: Path
) -> None:
    """A process exchanges entries, offsets and sizes all the time: a cut is right, or there is none."""
    file, box = tmp_path / "record.jpg", Box(10, 3, 30, 30)
    file.write_bytes(RECORD)
    entry, scan, frame = entries(), TABLE + 20, start_of(0xC0)
    changes = [
        (ENTRIES, entry[0] + 90, max(entry[1] - 90, 0)),
        (ENTRIES, entry[0] - 9, entry[1] + 9),
        (ENTRIES + 4, 65535, 65535),
        (TABLE + 12, 20, 0),
        (scan, 65535, 65535),
        (frame + 5, 0xFFFF, 0xFFFF),
    ]
    right = implementation(memoryview(RECORD), box)
    assert right is not None
    arguments = [str(number) for change in changes for number in change]
    writer = subprocess.Popen([sys.executable, "-c", CHANGING, str(file), *arguments])
    seen: set[str] = set()
    try:
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped, memoryview(mapped) as view:
            for number in itertools.count():
                if number % 2000 == 1999:
                    assert writer.poll() is None
                    if seen >= {"none", "some"} and number >= (2000 if implementation is python_cut else 50_000) - 1:
                        break
                try:
                    found = implementation(view, box)
                except ValueError:
                    seen.add("other size")
                    continue
                seen.add("none" if found is None else "some")
                assert found is None or len(found.data) < 2 * len(RECORD)
                if found is not None and found.left == right.left and found.top == right.top:
                    assert len(found.data) == len(right.data)
    finally:
        writer.kill()
        writer.wait()


def test_damage_outside_the_rectangle_is_not_seen() -> None:
    """No coded data outside the chosen intervals is read."""
    random = np.random.default_rng(1)
    record = bytearray(with_table(written(picture(random, 80, 80, "4:4:4"), random, restart=1), 1))
    box = Box(3, 5, 2, 2)
    before = both(bytes(record), box)
    assert before is not None
    record[-3] ^= 0xFF
    assert both(bytes(record), box) == before


@pytest.mark.parametrize(
    "box",
    [
        (-1, 0, 2, 2),
        (0, -1, 2, 2),
        (0, 0, 51, 1),
        (0, 0, 1, 41),
        (50, 0, 1, 1),
        (0, 40, 1, 1),
        (0, 0, 0, 1),
        (0, 0, 1, 0),
        (5, 5, -1, 1),
        (5, 5, 1, -1),
        (2**62, 0, 2**62, 1),
        (1, 1, 2**63 - 1, 1),
        (1, 2**63 - 1, 1, 2**63 - 1),
        (-(2**63), 0, 1, 1),
    ],
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_rectangle_that_is_not_inside_is_refused(
    implementation: Callable[[bytes, Box], Cut | None], box: tuple[int, int, int, int]
) -> None:
    with pytest.raises(ValueError, match="is not inside an image of 50 x 40 pixels"):
        implementation(RECORD, Box(*box))
