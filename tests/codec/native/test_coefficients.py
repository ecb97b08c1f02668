"""Laws of coefficient records: the coefficients and pixels of the JPEG that they are made of, or an error.

The oracles are a JPEG reader and a record reader written for these tests, both in Python, and Pillow.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from helpers import coefficient_records
from helpers.jpegs import (
    JFIF,
    NO_TRANSFORM,
    SAMPLINGS,
    SEGMENTS,
    Picture,
    any_jpeg,
    picture,
    rectangles,
    segment,
    separate,
    written,
)
from helpers.support import encoded, real_list
from helpers.support import picture as photo
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from packtrain._codec.jpeg_markers import frame_header
from packtrain._codec.record_forms import header_file, to_jpeg

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

SEEDS = st.integers(0, 2**32 - 1)
READERS = ("plain", "bmi2", "avx512")
ZIGZAG = np.array(
    [
        *(0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14),
        *(21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53),
        *(60, 61, 54, 47, 55, 62, 63),
    ]
)


def available() -> list[str]:
    """The readers of groups that this processor can run."""
    record = _extension.coefficient_record(encoded(photo(0)))
    found = []
    for name in READERS:
        try:
            _extension.coefficients(record, name)
        except ValueError:
            continue
        found.append(name)
    return found


def decoded(data: bytes, box: tuple[int, int, int, int], channels: int = 3, scale: int = 1) -> npt.NDArray[np.uint8]:
    """The pixels of a rectangle."""
    pixels, start, stride = _extension.decode(data, box, channels, scale)
    rows = [pixels[start + stride * row :][: channels * box[2]] for row in range(box[3])]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(box[3], box[2], channels)


def arrays(data: bytes, reader: str = "") -> list[npt.NDArray[np.int16]]:
    """The coefficients of each component, int16 [blocks, 64]."""
    return [np.frombuffer(each, np.int16).reshape(-1, 64) for each in _extension.coefficients(data, reader)]


def natural(zigzag: npt.ArrayLike) -> npt.NDArray[np.int16]:
    """Blocks in zigzag order as int16 [blocks, 64] in natural order."""
    values = np.asarray(zigzag, np.int16).reshape(-1, 64)
    found = np.empty_like(values)
    found[:, ZIGZAG] = values
    return found


def as_python_reads(record: bytes) -> list[npt.NDArray[np.int16]]:
    """The same by the reader in Python."""
    *_, components = coefficient_records.read(record)
    return [natural(component.blocks) for component in components]


def assert_same(ours: list[npt.NDArray[np.int16]], theirs: list[npt.NDArray[np.int16]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def same_pixels(record: bytes, jpeg: bytes, seed: int, count: int = 12) -> None:
    """Rectangles of the record, at every scale, are those of the JPEG; and so are those that are cut out of it."""
    random = np.random.default_rng(seed)
    image = Image.open(io.BytesIO(jpeg))
    channels = 1 if image.mode == "L" else 3
    for box in rectangles(random, image.width, image.height, count):
        expected = decoded(jpeg, box, channels)
        np.testing.assert_array_equal(decoded(record, box, channels), expected)
        part, left, top = _extension.cut(record, box)
        inside = (box[0] - left, box[1] - top, box[2], box[3])
        np.testing.assert_array_equal(decoded(part, inside, channels), expected)
    for scale in (2, 4, 8):
        width, height = -(-image.width // scale), -(-image.height // scale)
        for box in rectangles(random, width, height, 3):
            np.testing.assert_array_equal(decoded(record, box, channels, scale), decoded(jpeg, box, channels, scale))


class TestExact:
    @given(SEEDS)
    def test_all_kinds_of_jpegs_keep_coefficients_and_pixels(self, seed: int) -> None:
        source, data = any_jpeg(np.random.default_rng(seed), 90)
        record: bytes = _extension.coefficient_record(data)
        seen = list(map(natural, source.seen()))
        assert_same(as_python_reads(record), seen)
        for reader in available():
            assert_same(arrays(record, reader), seen)
        assert_same(arrays(data), seen)
        jpeg = to_jpeg(record)
        assert_same(arrays(jpeg), seen)
        assert _extension.coefficient_record(record) == record
        assert _extension.coefficient_record(jpeg) == record
        np.testing.assert_array_equal(
            np.asarray(Image.open(io.BytesIO(jpeg))), np.asarray(Image.open(io.BytesIO(data)))
        )
        assert Image.open(io.BytesIO(header_file(record))).info == Image.open(io.BytesIO(jpeg)).info
        frame = frame_header(header_file(record))
        assert frame is not None and (frame.width, frame.height) == (source.width, source.height)
        same_pixels(record, data, seed)

    @pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
    @given(SEEDS, st.integers(1, 300), st.integers(1, 40))
    @settings(max_examples=max(3, settings().max_examples // 5))
    def test_every_sampling_and_rows_of_many_groups(self, sampling: str, seed: int, width: int, height: int) -> None:
        random = np.random.default_rng(seed)
        data = written(picture(random, width, height, sampling), random)
        same_pixels(_extension.coefficient_record(data), data, seed, 4)

    @pytest.mark.parametrize("values", ["ones", "twos", "extremes", "sparse", "all"])
    def test_every_class_of_values(self, values: str) -> None:
        random = np.random.default_rng(0)
        for width in (8, 8 * 15, 8 * 16, 8 * 17, 8 * 33):
            made = picture(random, width, 24, next(iter(SAMPLINGS)))
            for component in made.coefficients:
                component[...] = drawn(random, values, component.shape)
            data = written(made, random)
            seen = list(map(natural, made.seen()))
            record = _extension.coefficient_record(data)
            assert_same(as_python_reads(record), seen)
            for reader in available():
                assert_same(arrays(record, reader), seen)

    @pytest.mark.parametrize(
        "places", [(0,), (0, 1), (0, 1, 5, 6, 14, 15, 27, 28), range(8), range(64), (0, 2)], ids=str
    )
    @pytest.mark.parametrize("quantiser", [8, 16, 255, 40_000, 65_535])
    def test_values_beyond_16_bits_are_those_of_libjpeg(self, places: Sequence[int], quantiser: int) -> None:
        random = np.random.default_rng(quantiser)
        made = picture(random, 128, 64, "grey", density=0)
        for place in places:
            made.coefficients[0][..., place] = random.integers(-1023, 1024, (8, 16))
        made = replace(made, quantisers=((quantiser,) * 64,))
        data = written(made, random)
        record = _extension.coefficient_record(data)
        np.testing.assert_array_equal(decoded(record, (0, 0, 128, 64), 1), decoded(data, (0, 0, 128, 64), 1))

    @pytest.mark.complete
    def test_real_photographs(self) -> None:
        listing = real_list()
        for line in listing.read_text().splitlines()[:40]:
            data = (listing.parent / line.rpartition(" ")[0]).read_bytes()
            record = _extension.coefficient_record(data)
            assert _extension.coefficients(record) == _extension.coefficients(data)
            same_pixels(record, data, 0, 3)


def drawn(random: np.random.Generator, values: str, shape: tuple[int, ...]) -> npt.NDArray[np.int16]:
    """Coefficients in the range of baseline JPEGs."""
    most = {"ones": 1, "twos": 2, "extremes": 1023, "sparse": 1023, "all": 1023}[values]
    found = random.integers(-most, most + 1, shape)
    if values == "extremes":
        found = np.sign(found) * (1 << random.integers(0, 10, shape)) + random.integers(-1, 2, shape)
        found = found.clip(-1023, 1023)
    if values in ("ones", "sparse"):
        found *= random.random(shape) < random.choice([0.02, 0.3, 1])
    return found.astype(np.int16)


def of_dc(values: npt.ArrayLike, sampling: str = "grey") -> Picture:
    """A picture whose first component has these DC coefficients, [rows of blocks, blocks in a row], and no others."""
    wanted = np.asarray(values)
    made = picture(np.random.default_rng(0), 8 * wanted.shape[1], 8 * wanted.shape[0], sampling, density=0)
    for component in made.coefficients:
        component[...] = 0
    made.coefficients[0][..., 0] = wanted
    return made


def with_tables(data: bytes) -> bytes:
    """A JPEG of several scans, with all components by table 0, which is another one for each scan."""
    frame = data.index(b"\xff\xc1")
    named = bytearray(data)
    named[frame + 12 : frame + 19 : 3] = bytes(3)
    first, *scans = bytes(named).split(b"\xff\xda")
    tables = [segment(0xDB, bytes([0]) + bytes([1 + 5 * number]) * 64) for number in range(len(scans))]
    return first + b"".join(table + b"\xff\xda" + scan for table, scan in zip(tables, scans, strict=True))


def header_of(width: int, height: int) -> bytes:
    """The segments of a grey JPEG up to its first scan."""
    code = bytes([1]) + bytes(15) + bytes([0])
    return b"".join(
        segment(*each)
        for each in (
            (0xDB, bytes([0]) + bytes([1]) * 64),
            (0xC0, struct.pack(">BHHBBBB", 8, height, width, 1, 1, 0x11, 0)),
            (0xC4, b"\x00" + code + b"\x10" + code),
            (0xDA, bytes([1, 1, 0, 0, 63, 0])),
        )
    )


class TestRefused:
    @pytest.fixture(scope="class")
    @classmethod
    def record(cls) -> bytes:
        found: bytes = _extension.coefficient_record(encoded(photo(3, 150, 70)))
        return found

    @given(st.data())
    def test_damage_is_an_error_or_other_coefficients_whoever_reads_it(
        self, record: bytes, data: st.DataObject
    ) -> None:
        damaged = bytearray(record)
        head = int.from_bytes(record[24:28], "little")
        for _ in range(data.draw(st.integers(1, 6))):
            damaged[data.draw(st.integers(0, data.draw(st.sampled_from([40, head + 60, len(record)])) - 1))] = (
                data.draw(st.integers(0, 255))
            )
        end = data.draw(st.sampled_from([len(record), data.draw(st.integers(0, len(record)))]))
        found = [outcome(bytes(damaged[:end]), reader) for reader in available()]
        assert all(each == found[0] for each in found)
        with suppress(ValueError):
            _extension.decode(bytes(damaged[:end]), (0, 0, 20, 20), 3, 1)
        with suppress(ValueError):
            _extension.cut(bytes(damaged[:end]), (30, 30, 20, 20))

    def test_one_that_is_cut_off_is_refused(self, record: bytes) -> None:
        for end in (0, 8, 27, 28, 300, len(record) // 2, len(record) - 1):
            with pytest.raises(ValueError, match=r"damaged|Not a JPEG|Empty"):
                _extension.coefficients(record[:end])

    def test_another_version_is_refused(self, record: bytes) -> None:
        later = record[:8] + (2).to_bytes(4, "little") + record[12:]
        with pytest.raises(ValueError, match="coefficient record is damaged"):
            _extension.coefficients(later)

    @pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 0, 0, 5), (0, 0, 151, 5), (149, 0, 2, 5), (2**40, 0, 1, 1)])
    def test_a_rectangle_outside_is_refused(self, record: bytes, box: tuple[int, int, int, int]) -> None:
        with pytest.raises(ValueError, match="not inside"):
            _extension.cut(record, box)
        with pytest.raises((ValueError, OverflowError)):
            _extension.decode(record, box, 3, 1)

    @pytest.mark.parametrize(
        "metadata",
        [
            header_of(512, 512),
            header_of(150, 70),
            segment(*SEGMENTS[1]) + header_of(150, 70),
            segment(0xDD, b"\0\1"),
            segment(0xFE, b"a comment"),
            segment(0xE9, b"somebody else's"),
            segment(*SEGMENTS[1]) + segment(*JFIF),
            segment(*SEGMENTS[1])[:-1],
            b"\xff",
            b"\xff\xe1\0\0",
        ],
    )
    def test_metadata_is_nothing_but_metadata(self, record: bytes, metadata: bytes) -> None:
        hostile = coefficient_records.with_segments(record, metadata)
        assert_refused(hostile)

    @pytest.mark.parametrize(
        "metadata", [b"", segment(*JFIF), segment(*SEGMENTS[1]), *(segment(*each) for each in SEGMENTS[3:5])]
    )
    def test_other_metadata_changes_no_pixel(self, record: bytes, metadata: bytes) -> None:
        other = coefficient_records.with_segments(record, metadata)
        np.testing.assert_array_equal(decoded(other, (0, 0, 150, 70)), decoded(record, (0, 0, 150, 70)))
        assert _extension.coefficients(to_jpeg(other)) == _extension.coefficients(record)

    @pytest.mark.parametrize("sampling", ["grey", "4:4:4"])
    @pytest.mark.parametrize("change", ["a transform", "somebody else's", "jfif"])
    def test_a_head_that_contradicts_itself(self, sampling: str, change: str) -> None:
        random = np.random.default_rng(0)
        record = _extension.coefficient_record(written(picture(random, 20, 20, sampling), random, segments=()))
        marker, body = NO_TRANSFORM
        start, end = struct.unpack_from("<2I", record, 12)
        body = {"a transform": body[:-1] + b"\1", "somebody else's": b"Bodea" + body[5:], "jfif": body}[change]
        metadata = segment(*JFIF) if change == "jfif" else None
        assert_refused(coefficient_records.with_segments(record, metadata, segment(marker, body) + record[start:end]))

    def test_a_table_that_changes_between_scans_is_refused_as_by_the_transcoder(self) -> None:
        random = np.random.default_rng(0)
        made = picture(random, 30, 30)
        data = with_tables(written(made, random, scans=separate(made), process=0xC1))
        Image.open(io.BytesIO(data)).load()
        with pytest.raises(ValueError, match="quantization table"):
            _extension.transcode(data)
        with pytest.raises(ValueError, match="quantisation table"):
            _extension.coefficient_record(data)

    @pytest.mark.parametrize(
        ("values", "sampling", "kept"),
        [
            ([[2047] * 2, [-2047] * 2], "grey", True),
            ([[1023, -1024] * 2] * 2, "grey", True),
            ([[1500, 3500]], "grey", False),
            ([[2047, 0, -2047], [0, 0, 0]], "grey", True),
            ([[2000, 2000], [-2000, -2000]], "4:2:0", False),
            ([[2000, 1000, 2000, 1000], [0, 500, 0, 500]], "4:2:0", True),
        ],
    )
    def test_every_part_of_a_record_can_become_a_jpeg(self, values: list[list[int]], sampling: str, kept: bool) -> None:
        made = of_dc(values, sampling)
        data = written(made, np.random.default_rng(0))
        if not kept:
            with pytest.raises(ValueError, match="out of range"):
                _extension.coefficient_record(data)
            return
        record = _extension.coefficient_record(data)
        assert _extension.coefficients(to_jpeg(record)) == _extension.coefficients(data)
        for left in range(0, made.width, 8):
            for top in range(0, made.height, 8):
                assert _extension.cut(record, (left, top, 8, 8)) is not None

    @pytest.mark.parametrize(("place", "bits"), [(2, 0xF0), (3, 0xF0), (5, 0xF0)], ids=["bands", "classes", "values"])
    def test_what_fills_up_a_byte_is_0(self, place: int, bits: int) -> None:
        random = np.random.default_rng(0)
        made = picture(random, 8, 8, "grey", density=0)
        made.coefficients[0][..., 1] = 5
        record = _extension.coefficient_record(written(made, random))
        coded = int.from_bytes(record[24:28], "little")
        # DC, bands, class, mask and value of the only block.
        assert len(record) == coded + 6
        for bit in (bit for bit in range(8) if bits >> bit & 1):
            other = bytearray(record)
            other[coded + place] ^= 1 << bit
            assert_refused_by_all(bytes(other))

    @pytest.mark.parametrize("sign", [1, -1])
    def test_dc_coefficients_have_16_bits(self, sign: int) -> None:
        record = _extension.coefficient_record(written(of_dc([[0, sign * 100]]), np.random.default_rng(0)))
        coded = int.from_bytes(record[24:28], "little")
        last = 32767 if sign > 0 else -32768
        widest, beyond = (
            record[:coded] + struct.pack("<h", last - sign * (100 - more)) + record[coded + 2 :] for more in (0, 1)
        )
        for reader in available():
            assert arrays(widest, reader)[0][1, 0] == last
        assert_same(as_python_reads(widest), arrays(widest))
        assert_refused_by_all(beyond)

    def test_what_baseline_cannot_keep_is_refused_as_by_the_transcoder(self) -> None:
        file = io.BytesIO()
        Image.new("CMYK", (20, 20)).save(file, "JPEG")
        with pytest.raises(ValueError, match="colour space"):
            _extension.coefficient_record(file.getvalue())


def assert_refused(record: bytes) -> None:
    """Whatever reads a record refuses this one."""
    for read in (_extension.coefficients, _extension.transcode, _extension.coefficient_record):
        with pytest.raises(ValueError, match="record is damaged"):
            read(record)
    with pytest.raises(ValueError, match="record is damaged"):
        _extension.decode(record, (0, 0, 8, 8), 3, 1)
    with pytest.raises(ValueError, match="record is damaged"):
        _extension.cut(record, (0, 0, 8, 8))


def assert_refused_by_all(record: bytes) -> None:
    """Whatever reads groups refuses this record, and so does whatever reads records."""
    for reader in available():
        with pytest.raises(ValueError, match="record is damaged"):
            arrays(record, reader)
    assert_refused(record)
    with pytest.raises(ValueError, match=r"damaged|half a byte"):
        coefficient_records.read(record)


def outcome(data: bytes, reader: str) -> object:
    """The coefficients, or the message of the error."""
    try:
        return _extension.coefficients(data, reader)
    except ValueError as error:
        return str(error)
