"""Laws of the lossless transcoder: the same coefficients as a crop-ready record, or an error.

The oracles are a JPEG reader written for these tests, and Pillow.
"""

from __future__ import annotations

import io
import itertools
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from helpers.jpegcoder import Scan
from helpers.jpegparts import Segment, coefficients, parsed
from helpers.jpegs import (
    ARITHMETIC,
    JFIF,
    NO_TRANSFORM,
    SAMPLINGS,
    SEGMENTS,
    any_jpeg,
    picture,
    progressive,
    separate,
    written,
)
from helpers.pixels import noise
from helpers.support import encoded, output_of, real_list, tool
from helpers.support import picture as photo
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

SEEDS = st.integers(0, 2**32 - 1)
CUT_MARKERS = {0xC0, 0xC1, 0xC4, 0xDA, 0xDB, 0xDD, 0xEE}


def pixels(data: bytes) -> npt.NDArray[np.uint8]:
    """Decodes by Pillow."""
    return np.asarray(Image.open(io.BytesIO(data)))


def kept(segments: list[Segment]) -> list[tuple[int, bytes]]:
    """The EXIF and ICC segments only."""
    names = {0xE1: b"Exif\0\0", 0xE2: b"ICC_PROFILE\0"}
    return [(each.marker, each.body) for each in segments if each.body.startswith(names.get(each.marker, b"no"))]


def assert_crop_ready(record: bytes) -> None:
    """The record has the form that docs/format-records.md specifies."""
    parts = parsed(record)
    markers = [each.marker for each in parts.segments]
    assert sum(marker in (0xC0, 0xC1) for marker in markers) == 1
    assert set(markers) <= CUT_MARKERS | {0xE0, 0xE1, 0xE2, 0xE9}
    assert {0xDB, 0xC4, 0xDD} <= set(markers)
    place = int(markers[0] == 0xE0)
    assert markers[place] == 0xE9 and markers.count(0xE9) == 1
    table = parts.segments[place].body
    name, wide, head, frame, scan, interval = struct.unpack_from("<10sHIIII", table)
    assert name == b"packtrain\0"
    lengths = np.frombuffer(table, {2: "<u2", 4: "<u4"}[wide], offset=28).tolist()
    assert lengths == [len(coded) + 2 for coded in parts.intervals]
    assert scan + sum(lengths) == len(record)
    assert scan == parts.segments[-1].start + 4 + len(parts.segments[-1].body)
    first = next(number for number, marker in enumerate(markers) if marker in CUT_MARKERS)
    assert head == parts.segments[first].start and set(markers[first:]) <= CUT_MARKERS
    (frame_header,) = (each for each in parts.segments if each.marker in (0xC0, 0xC1))
    assert frame == frame_header.start
    assert [interval] == [int.from_bytes(body) for body in parts.bodies(0xDD)]
    height, width, count = struct.unpack_from(">HHB", frame_header.body, 1)
    factors = [frame_header.body[7 + 3 * number] for number in range(count)]
    across, down = (1, 1) if count == 1 else (max(side) for side in zip(*((f >> 4, f & 15) for f in factors)))  # noqa: B905
    columns, rows = -(-width // (8 * across)), -(-height // (8 * down))
    assert columns % interval == 0 and len(lengths) == rows * columns // interval
    assert parts.markers == [*itertools.islice(itertools.cycle(range(0xD0, 0xD8)), len(lengths) - 1), 0xD9]


def assert_lossless(data: bytes) -> bytes:
    """Transcodes, and checks that the result is a record with the same coefficients and pixels."""
    record: bytes = _extension.transcode(data)
    assert_crop_ready(record)
    theirs, ours = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(record))
    assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    return record


def parsed_head(data: bytes) -> list[Segment]:
    """The segments of any JPEG, up to its first scan."""
    end = data.index(b"\xff\xda", data.index(b"\xff\xdb"))
    size = int.from_bytes(data[end + 2 : end + 4])
    return parsed(data[: end + 2 + size] + b"\xff\xd9").segments


class TestLossless:
    @given(SEEDS)
    @settings(max_examples=4 * settings().max_examples)
    def test_any_jpeg(self, seed: int) -> None:
        source, data = any_jpeg(np.random.default_rng(seed), 90)
        record = assert_lossless(data)
        for ours, theirs in zip(coefficients(record), source.seen(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        segments = parsed(record).segments
        assert kept(segments) == kept(parsed_head(data))
        assert (segments[0].marker == 0xE0) == (JFIF[1] in [each.body for each in parsed_head(data)])
        wide = any(max(table) > 255 for table in source.quantisers)
        assert [each.marker for each in segments if each.marker in (0xC0, 0xC1)] == [0xC1 if wide else 0xC0]
        again = assert_lossless(record)
        assert len(again) <= len(record) * 1.05 + 100

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    @pytest.mark.parametrize("process", ["baseline", "separate", "progressive"])
    def test_samplings(self, sampling: str, process: str) -> None:
        random = np.random.default_rng(len(sampling))
        for size in ((1, 1), (1, 70), (70, 1), (67, 43)):
            source = picture(random, *size, sampling, density=0.3)
            scans = {"separate": separate, "progressive": progressive}.get(process, lambda _: None)(source)
            data = written(source, random, scans=scans, process=0xC2 if process == "progressive" else 0xC0)
            record = assert_lossless(data)
            assert all(map(np.array_equal, coefficients(record), source.seen()))

    @pytest.mark.parametrize("kind", ARITHMETIC)
    def test_arithmetic_coding(self, kind: str) -> None:
        assert_lossless(ARITHMETIC[kind])

    @pytest.mark.parametrize("quality", [1, 2, 20, 50, 90, 99, 100])
    @pytest.mark.parametrize("mode", ["RGB", "L"])
    def test_qualities_of_noise(self, mode: str, quality: int) -> None:
        image = noise(quality, 61, 47, mode)
        assert_lossless(encoded(image, quality=quality))
        assert_lossless(encoded(image, quality=quality, progressive=True))

    @pytest.mark.parametrize("size", [(65500, 1), (1, 65500), (65499, 17), (17, 65500)])
    @pytest.mark.parametrize("mode", ["RGB", "L"])
    def test_the_longest_sides(self, size: tuple[int, int], mode: str) -> None:
        """One has intervals of more than 65,535 bytes, another the greatest number of rows."""
        assert_lossless(encoded(noise(3, *size, mode), quality=75))

    def test_intervals_of_more_than_65535_bytes(self) -> None:
        record = assert_lossless(encoded(noise(0, 8 * 8167, 9, "L"), quality=100))  # a prime number of MCUs
        assert parsed(record).bodies(0xE9)[0][10:12] == b"\4\0"

    def test_intervals_are_short_where_rows_are_long(self) -> None:
        record = assert_lossless(encoded(noise(0, 1024, 64), quality=90))
        sizes = [len(coded) for coded in parsed(record).intervals]
        assert len(sizes) > 4 and max(sizes[:-1]) < 2500

    def test_codes_of_all_lengths(self) -> None:
        """If each symbol occurs about twice as often as the next, codes have up to 16 bits, and no more."""
        random = np.random.default_rng(1)
        source = picture(random, 800, 800, "grey", density=0)
        symbols = np.minimum(random.geometric(0.5, source.coefficients[0].shape[:2]), 20)
        for place in range(1, 20):
            source.coefficients[0][..., place] = np.where(symbols == place, 1 << place % 10, 0)
        record = assert_lossless(written(source, random))
        tables = {body[0]: body[1:17] for body in parsed(record).bodies(0xC4)}
        assert tables[0x10][8:] != bytes(8)
        np.testing.assert_array_equal(coefficients(record)[0], source.seen()[0])

    def test_the_widest_range(self) -> None:
        random = np.random.default_rng(2)
        source = picture(random, 64, 64, "4:2:0", density=1)
        for values in source.coefficients:
            values[..., 0] = np.where(random.random(values.shape[:2]) < 0.5, -1024, 1023)
            values[..., 1:] = random.choice([-1023, 1023], values[..., 1:].shape)
        source = replace(source, quantisers=((1,) * 64,) * 3)
        assert all(map(np.array_equal, coefficients(assert_lossless(written(source, random))), source.seen()))

    def test_photographs(self) -> None:
        listing = real_list()
        for line in listing.read_text().splitlines()[::15]:
            assert_lossless((listing.parent / line.rsplit(" ", 1)[0]).read_bytes())


class TestSegments:
    def test_only_exif_and_icc_are_kept(self) -> None:
        random = np.random.default_rng(0)
        data = written(picture(random, 30, 20), random, segments=SEGMENTS)
        parts = parsed(assert_lossless(data))
        found = [(each.marker, each.body) for each in parts.segments if each.marker in (0xE1, 0xE2)]
        assert found == [SEGMENTS[1], SEGMENTS[3], SEGMENTS[4]]
        assert b"Photoshop" not in data[:2] + b"".join(each.body for each in parts.segments)

    def test_segments_of_full_size(self) -> None:
        random = np.random.default_rng(0)
        full = [(0xE1, b"Exif\0\0".ljust(65533, b"e")), (0xE2, b"ICC_PROFILE\0\1\1".ljust(65533, b"i"))]
        record = assert_lossless(written(picture(random, 3, 2), random, segments=full))
        assert [(each.marker, each.body) for each in parsed(record).segments if each.marker in (0xE1, 0xE2)] == full

    def test_density_stays(self) -> None:
        record = assert_lossless(encoded(photo(0), dpi=(300, 150)))
        assert Image.open(io.BytesIO(record)).info["dpi"] == (300, 150)

    def test_a_file_of_two_pictures_becomes_the_first(self) -> None:
        first = photo(0)
        record = _extension.transcode(encoded(first, "MPO", save_all=True, append_images=[photo(1)]))
        assert_crop_ready(record)
        np.testing.assert_array_equal(pixels(record), pixels(encoded(first)))

    def test_what_lies_behind_the_end_is_dropped(self) -> None:
        data = encoded(photo(0))
        assert _extension.transcode(data + b"\xff\xd8 more") == _extension.transcode(data)

    def test_any_buffer_will_do(self) -> None:
        data = encoded(photo(0))
        for buffer in (bytearray(data), memoryview(b"?" + data)[1:], np.frombuffer(data, np.uint8)):
            assert _extension.transcode(buffer) == _extension.transcode(data)


def refused(data: bytes, why: str = ".", optimise: bool = True) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        _extension.transcode(data, optimise)
    assert caught.type is ValueError and str(caught.value)


def small(sampling: str, process: int = 0xC0) -> bytes:
    random = np.random.default_rng(7)
    source = picture(random, 21, 18, sampling, density=0.05)
    scans = progressive(source) if process == 0xC2 else None
    return written(source, random, scans=scans, process=process, segments=SEGMENTS[:4], restart=2)


class TestRefusals:
    @pytest.mark.parametrize("kind", ["4:2:0", "grey", "progressive", "arithmetic", "arithmetic progressive"])
    def test_every_truncation(self, kind: str) -> None:
        data = {
            "4:2:0": small("4:2:0"),
            "grey": small("grey"),
            "progressive": small("4:2:0", 0xC2),
            "arithmetic": ARITHMETIC["4:2:0"],
            "arithmetic progressive": ARITHMETIC["progressive grey"],
        }[kind]
        assert_lossless(data)
        for size in range(len(data)):
            refused(data[:size])

    def test_truncation_that_hides_behind_an_end_marker(self) -> None:
        """libjpeg fills the rest with grey, and warns."""
        data = encoded(noise(0, 40, 40))
        for size in range(data.index(b"\xff\xda") + 14, len(data) - 3, 7):
            assert pixels(data[:size] + b"\xff\xd9").shape
            refused(data[:size] + b"\xff\xd9")

    @pytest.mark.parametrize("cut", range(1, 11))
    def test_a_progressive_image_without_its_last_scans(self, cut: int) -> None:
        """libjpeg smooths over what is missing, without a warning."""
        random = np.random.default_rng(cut)
        source = picture(random, 40, 40, density=0.3)
        data = written(source, random, scans=progressive(source)[:-cut], process=0xC2)
        assert pixels(data).shape == (40, 40, 3)
        refused(data, "not complete")

    def test_one_coefficient_that_no_scan_completes(self) -> None:
        random = np.random.default_rng(0)
        source = picture(random, 20, 20, "4:4:4", density=0.3)
        scans = [Scan((0, 1, 2), 0, 0)] + [Scan((component,), 1, 63) for component in range(3)]
        assert_lossless(written(source, random, scans=scans, process=0xC2))
        for component in range(3):
            lacking = list(scans)
            lacking[1 + component] = Scan((component,), 1, 62)
            refused(written(source, random, scans=lacking, process=0xC2), "not complete")
            lacking[1 + component] = Scan((component,), 1, 63, 0, 1)
            refused(written(source, random, scans=lacking, process=0xC2), "not complete")

    @pytest.mark.parametrize("where", ["scan", "end", "table", "marker", "JFIF", "Adobe"])
    def test_whatever_libjpeg_warns_of(self, where: str) -> None:
        random = np.random.default_rng(0)
        data = written(
            picture(random, 40, 40), random, restart=1, segments=[NO_TRANSFORM if where == "Adobe" else JFIF]
        )
        scan, restart = data.index(b"\xff\xda"), data.index(b"\xff\xd0")
        damaged = {
            "scan": data[: restart - 1] + data[restart:],
            "end": data[:-2] + b"\0" + data[-2:],
            "table": data[:scan] + b"??" + data[scan:],
            "marker": data[:restart] + b"\xff\xd1" + data[restart + 2 :],
            "JFIF": data.replace(b"JFIF\0\1", b"JFIF\0\2"),
            "Adobe": data.replace(NO_TRANSFORM[1], NO_TRANSFORM[1][:-1] + b"\7"),
        }[where]
        assert damaged != data
        assert pixels(damaged).shape == (40, 40, 3)
        refused(damaged)

    def test_four_components(self) -> None:
        data = encoded(photo(0).convert("CMYK"))
        transform = data.index(b"Adobe") + 11
        refused(data, "colour space")
        refused(data[:transform] + b"\2" + data[transform + 1 :], "colour space")
        refused(data.replace(b"Adobe", b"adobe"), "colour space")

    @pytest.mark.parametrize(("process", "precision"), [(0xC1, 12), (0xC3, 8), (0xC1, 16), (0xC9, 12), (0xC5, 8)])
    def test_other_processes(self, process: int, precision: int) -> None:
        data = bytearray(small("grey"))
        frame = data.index(b"\xff\xc0\0\x0b")
        data[frame + 1], data[frame + 4] = process, precision
        refused(bytes(data))

    def test_more_than_ten_blocks_in_an_mcu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Such an image has one scan per component. libjpeg reads it, but its components cannot be interleaved."""
        random = np.random.default_rng(0)
        monkeypatch.setitem(SAMPLINGS, "eleven", ((4, 2), (2, 1), (1, 1)))
        source = picture(random, 70, 50, "eleven")
        data = written(source, random, scans=separate(source))
        assert pixels(data).shape == (50, 70, 3)
        refused(data, "10 blocks")

    @pytest.mark.parametrize("optimise", [True, False])
    @pytest.mark.parametrize(("place", "value"), [(9, 1024), (63, -1024), (1, 2047), (5, 0x3FFF)])
    def test_coefficients_out_of_range(self, place: int, value: int, optimise: bool) -> None:
        random = np.random.default_rng(0)
        source = picture(random, 70, 50, density=0.1)
        source.coefficients[1][-1, -1, place] = value
        data = written(source, random)
        assert pixels(data).shape == (50, 70, 3)
        refused(data, "out of range", optimise)

    def test_means_that_are_out_of_range_once_prediction_starts_anew(self) -> None:
        random = np.random.default_rng(0)
        source = picture(random, 24, 24, "grey", density=0)
        source.coefficients[0][..., 0] = [[0, 1000, 2000], [2047, 2047, 2047], [2047, 2047, 2047]]
        assert_lossless(written(source, random))
        source.coefficients[0][2, 0, 0] = 2048
        data = written(source, random)
        assert pixels(data).shape == (24, 24)
        refused(data, "out of range")

    @pytest.mark.parametrize("size", [(65500, 65500), (65500, 2733), (0, 8), (65501, 1), (8, 65535)])
    def test_sizes(self, size: tuple[int, int]) -> None:
        data = bytearray(small("grey"))
        frame = data.index(b"\xff\xc0\0\x0b")
        struct.pack_into(">HH", data, frame + 5, *size)
        refused(bytes(data), "too many pixels" if min(size) > 1000 else ".")

    def test_scans(self) -> None:
        """One coefficient per scan: 500 scans in all, and then one more."""
        random = np.random.default_rng(0)
        source = picture(random, 9, 7, "grey", density=0.2)

        def bits(place: int, count: int) -> list[Scan]:
            return [Scan((0,), place, place, low + 1 if low + 1 < count else 0, low) for low in reversed(range(count))]

        scans = [Scan((0,), 0, 0), *itertools.chain(*(bits(place, 8 if place < 59 else 7) for place in range(1, 64)))]
        assert len(scans) == 500
        assert_lossless(written(source, random, scans=scans, process=0xC2))
        longer = [*scans[:-7], *bits(63, 8)]
        assert pixels(written(source, random, scans=longer, process=0xC2)).shape == (7, 9)
        refused(written(source, random, scans=longer, process=0xC2), "too many scans")
        colour = picture(random, 9, 7)
        assert_lossless(written(colour, random, scans=[Scan((1,)), *separate(colour) * 166, Scan((2,))]))
        refused(written(colour, random, scans=separate(colour) * 167), "too many scans")

    def test_what_is_no_jpeg(self) -> None:
        for data in (b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff\xd9", encoded(photo(0), "PNG"), bytes(1000)):
            refused(data)
        refused(encoded(photo(0))[2:])
        refused(b"\n" + encoded(photo(0)))

    def test_what_is_no_buffer(self) -> None:
        with pytest.raises(TypeError):
            _extension.transcode("text")


def test_two_components_have_no_colour_space(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    monkeypatch.setitem(SAMPLINGS, "two", ((1, 1), (1, 1)))
    refused(written(picture(random, 9, 9, "two"), random), "colour space")


def test_many_threads_at_once() -> None:
    random = np.random.default_rng(3)
    sources = [any_jpeg(random)[1] for _ in range(12)] + [encoded(noise(5, 300, 200))] * 4
    damaged = [data[: len(data) // 2] for data in sources]

    def attempt(data: bytes) -> object:
        try:
            return _extension.transcode(data), _extension.decode(data, (0, 0, 1, 1), 4, 1)
        except ValueError as error:
            return str(error)

    alone = list(map(attempt, sources + damaged))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(attempt, (sources + damaged) * 6)) == alone * 6


FAILING_MALLOC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
static long left = -1;
void fail_after(long count) { left = count; }
long remaining(void) { return left; }
void *malloc(size_t size) {
    static void *(*real)(size_t);
    if (!real) real = dlsym(RTLD_NEXT, "malloc");
    return left >= 0 && size >= 512 && left-- == 0 ? NULL : real(size);
}
void *realloc(void *old, size_t size) {
    static void *(*real)(void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "realloc");
    return left >= 0 && size >= 512 && left-- == 0 ? NULL : real(old, size);
}
"""
EXHAUSTING = """
import ctypes, sys
import numpy as np
from packtrain._codec.native import _extension
from packtrain._codec.native.places import PLACE
library, data, failures = ctypes.CDLL(sys.argv[1]), open(sys.argv[2], "rb").read(), 0
record = _extension.transcode(data)
image, out = np.full((300, 300, 3), 7, np.uint8), np.empty((1, 200, 200, 3), np.uint8)
place, row = np.zeros(1, PLACE), np.zeros(1, np.int64)
place["length"] = image.size
for field in ("width", "height", "crop_width", "crop_height"):
    place[field] = 300
place["new_width"] = place["new_height"] = 200

def copied(data):
    assert _extension.copy_records([image.reshape(-1)], place, False, 2, 1, out, row), "it blames the record"
    return out.tobytes()

uses = [_extension.transcode, lambda data: _extension.decode(data, (0, 0, 300, 300), 4, 1)]
uses += [lambda data: _extension.cut(record, (0, 0, 300, 300))[0], copied] if sys.argv[3] == "baseline" else []
for use in uses:
    expected, count = use(data), 0
    while True:
        library.fail_after(count)
        try:
            result = use(data)
        except MemoryError:
            result, failures = None, failures + 1
        left = library.remaining()
        library.fail_after(-1)
        assert result is None or result[0] == expected[0]
        if left >= 0:
            break
        count += 1
assert failures > 8
"""


@pytest.mark.parametrize("process", ["baseline", "progressive"])
def test_memory_that_ends(process: str, tmp_path: Path) -> None:
    """If any allocation fails, there is a MemoryError that does not blame the image, and nothing is freed twice."""
    source, library, image = tmp_path / "malloc.c", tmp_path / "malloc.so", tmp_path / "image.jpg"
    source.write_text(FAILING_MALLOC)
    output_of(tool("cc", "gcc"), "-shared", "-fPIC", "-o", library, source, "-ldl")
    image.write_bytes(encoded(noise(0, 300, 300, "RGB"), quality=95, progressive=process == "progressive"))
    command = [sys.executable, "-c", EXHAUSTING, str(library), str(image), process]
    done = subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
