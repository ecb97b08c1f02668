"""Laws of the extension's decoder: rectangles of any JPEG with Pillow's pixels, by its own Huffman decoder."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from helpers.jpegparts import parsed
from helpers.jpegs import ARITHMETIC, SAMPLINGS, Picture, any_jpeg, picture, progressive, rectangles, segment, written
from helpers.pixels import noise
from helpers.support import encoded
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

SEEDS = st.integers(0, 2**32 - 1)
Rectangle = tuple[int, int, int, int]


def decoded(data: bytes, box: Rectangle, channels: int = 4, scale: int = 1) -> npt.NDArray[np.uint8]:
    """The rectangle's pixels, [height, width, channels]; also checks what else the function promises."""
    pixels, start, stride = _extension.decode(data, box, channels, scale)
    assert type(pixels) is bytes
    _, _, width, height = box
    assert start >= 0 and width * channels <= stride <= (width + 128) * channels
    assert len(pixels) == start + height * stride, "above and below there is nothing else"
    rows = np.frombuffer(pixels, np.uint8)[start:].reshape(height, stride)
    return rows[:, : width * channels].reshape(height, width, channels)


def oracle(data: bytes, scale: int = 1, mode: str = "RGB") -> npt.NDArray[np.uint8]:
    """Pillow's full decode, [height, width, channels]."""
    image = Image.open(io.BytesIO(data))
    if scale > 1:
        image.draft(None, (image.width / scale, image.height / scale))  # type: ignore[arg-type]
    whole = np.asarray(image.convert(mode))
    return whole.reshape(*whole.shape[:2], -1)


def check(data: bytes, box: Rectangle, whole: npt.NDArray[np.uint8], channels: int = 4, scale: int = 1) -> None:
    left, top, width, height = box
    found = decoded(data, box, channels, scale)
    if channels == 4:
        assert (found[..., 3] == 255).all()
    np.testing.assert_array_equal(found[..., :3], whole[top : top + height, left : left + width])


class TestPixels:
    @given(SEEDS)
    @settings(max_examples=2 * settings().max_examples)
    def test_any_jpeg(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        _, data = any_jpeg(random, 120)
        grey = Image.open(io.BytesIO(data)).mode == "L"
        for source in (data, _extension.transcode(data)):
            for scale in (1, int(random.choice([2, 4, 8]))):
                whole = oracle(source, scale)
                for box in rectangles(random, whole.shape[1], whole.shape[0], 4):
                    for channels in (3, 4):
                        check(source, box, whole, channels, scale)
                    if grey:
                        check(source, box, whole[..., :1], 1, scale)

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    @pytest.mark.parametrize("restart", [0, 1, 3])
    def test_every_column(self, sampling: str, restart: int) -> None:
        random = np.random.default_rng(len(sampling))
        across, down = picture(random, 1, 1, sampling).mcu
        source = picture(random, 3 * across + 1, down + 1, sampling, density=0.2)
        data = written(source, random, restart=restart)
        whole = oracle(data)
        for left in range(source.width):
            for width in {1, 2, source.width // 2, source.width - left}:
                if left + width <= source.width:
                    check(data, (left, down // 2, width, down // 2 + 1), whole)

    @pytest.mark.parametrize("kind", ARITHMETIC)
    def test_arithmetic_coding(self, kind: str) -> None:
        random, whole = np.random.default_rng(0), oracle(ARITHMETIC[kind])
        for box in rectangles(random, whole.shape[1], whole.shape[0], 10):
            check(ARITHMETIC[kind], box, whole)

    @pytest.mark.parametrize("cut", [1, 3, 5, 9])
    def test_a_progressive_image_without_its_last_scans(self, cut: int) -> None:
        """libjpeg smooths over what is missing, and Pillow's version of it may do so differently."""
        random = np.random.default_rng(cut)
        source = picture(random, 70, 60, density=0.3)
        data = written(source, random, scans=progressive(source)[:-cut], process=0xC2)
        assert oracle(data).shape == (60, 70, 3)
        with pytest.raises(ValueError, match="not complete"):
            _extension.decode(data, (0, 0, 70, 60), 4, 1)

    @pytest.mark.parametrize("quality", [1, 30, 75, 95, 100])
    @pytest.mark.parametrize("restart", [0, 1, 5])
    def test_qualities_of_noise(self, quality: int, restart: int) -> None:
        for mode in ("RGB", "L"):
            for optimise in (False, True):
                image = noise(quality, 123, 77, mode)
                data = encoded(image, quality=quality, restart_marker_blocks=restart, optimize=optimise)
                check(data, (0, 0, 123, 77), oracle(data))
                check(data, (50, 40, 33, 21), oracle(data))
                # Where only the first coefficients count, the others are passed over.
                check(data, (0, 0, 16, 10), oracle(data, 8), scale=8)

    @pytest.mark.parametrize("size", [(65500, 9), (9, 65500)])
    def test_the_longest_sides(self, size: tuple[int, int]) -> None:
        data, random = encoded(noise(1, *size)), np.random.default_rng(0)
        whole = oracle(data)
        for box in rectangles(random, *size, 3):
            check(data, box, whole)

    @given(SEEDS)
    def test_damage_shows_whether_coefficients_are_decoded_or_passed_over(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        data = bytearray(encoded(noise(seed % 1000, 64, 48), quality=int(random.integers(5, 100))))
        start = data.rindex(b"\xff\xda") + 14
        for place in random.integers(start, len(data) - 2, random.integers(1, 4)).tolist():
            data[place] = int(random.integers(255))
        results = []
        for scale in (1, 8):
            try:
                results.append(decoded(bytes(data), (0, 0, 64 // scale, 48 // scale), 3, scale).mean(axis=(0, 1)))
            except ValueError as error:
                results.append(str(error))
        whole, small = results
        assert isinstance(whole, str) == isinstance(small, str), results

    @pytest.mark.parametrize("sampling", ["4:4:4", "4:2:0", "4:2:2", "grey"])
    @pytest.mark.parametrize("parts", [1, 2])
    def test_what_lies_to_the_right_of_the_rectangle_does_not_matter(self, sampling: str, parts: int) -> None:
        """The end of an interval is passed over, up to its marker: pixels further left do not depend on it."""
        random = np.random.default_rng(1)
        across, down = picture(random, 1, 1, sampling).mcu
        source = picture(random, 8 * across, 3 * down, sampling, density=0.3)
        data = written(source, random, restart=8 // parts)
        whole, damaged = oracle(data), bytearray(data)
        found = parsed(data)
        place = len(data) - sum(len(coded) + 2 for coded in found.intervals)
        for number, coded in enumerate(found.intervals):
            if number % parts == parts - 1:
                # Begins with a zero, since the byte before may be 0xff.
                damaged[place + len(coded) - 7 : place + len(coded)] = b"\0\xff\0\xff\0\xff\0"
            place += len(coded) + 2
        for width in (1, across, 2 * across) if parts == 1 else (5 * across, 5 * across + 2):
            check(bytes(damaged), (0, 1, width, 3 * down - 1), whole)
        with pytest.raises(ValueError, match=r"."):
            check(bytes(damaged), (0, 0, 8 * across, 3 * down), whole)
        # But the marker must be the right one.
        wrong = data.replace(b"\xff\xd1", b"\xff\xd5", 1)
        with pytest.raises(ValueError, match="damaged"):
            _extension.decode(wrong, (0, 0, across, 3 * down), 3, 1)


def blocks(random: np.random.Generator, kind: str, count: int) -> Iterator[list[int]]:
    """Blocks that each test one property of a Huffman decoder."""
    for _ in range(count):
        block = [0] * 64
        block[0] = int(random.integers(-1000, 1000))
        if kind == "runs":
            place = 0
            while (place := place + int(random.integers(1, 40))) < 64:
                block[place] = int(random.choice([-1, 1, 300]))
        elif kind == "last":
            block[63] = int(random.choice([-1, 1, 1, 2, 30]))
            block[62] = int(random.integers(-1, 2))
            block[61] = int(random.integers(0, 2))
        elif kind == "full":
            block[1:] = random.choice([-1, 1], 63).tolist()
        elif kind == "large":
            block[1:] = random.integers(-1023, 1024, 63).tolist()
        elif kind == "far":
            block[int(random.choice([16, 17, 32, 33, 48, 49, 63]))] = int(random.choice([-5, 1]))
        yield block


@pytest.mark.parametrize("restart", [0, 1, 4])
@pytest.mark.parametrize("kind", ["flat", "runs", "last", "full", "large", "far"])
def test_what_a_huffman_decoder_may_get_wrong(kind: str, restart: int) -> None:
    """Runs of zeros, blocks that end with their last coefficient, pairs that begin in one block and end in the next."""
    for seed in range(12):
        random = np.random.default_rng(seed)
        values = np.array(list(blocks(random, kind, 48))).reshape(6, 8, 64)
        source = Picture(64, 48, ((1, 1),), (values,), ((1,) * 64,))
        data = written(source, random, restart=restart)
        optimised = encoded(Image.open(io.BytesIO(data)), quality=100, restart_marker_blocks=restart, optimize=True)
        for each in (data, optimised):
            check(each, (0, 0, 64, 48), oracle(each))
            check(each, (0, 0, 8, 6), oracle(each, 8), scale=8)


def grey(width: int, height: int, dc: tuple[int, int], ac: list[tuple[int, int]], bits: str) -> bytes:
    """A grey JPEG whose tables hold these codes (length, symbol) and whose scan is these bits, with ones at the end."""
    tables = b""
    for number, codes in ((0, [dc]), (0x10, ac)):
        counts = bytes(sum(length == size for length, _ in codes) for size in range(1, 17))
        tables += segment(0xC4, bytes([number]) + counts + bytes(symbol for _, symbol in codes))
    frame = b"\x08" + height.to_bytes(2) + width.to_bytes(2) + b"\1\1\x11\0"
    head = segment(0xDB, b"\0" + b"\1" * 64) + segment(0xC0, frame) + tables
    coded = int(bits + "1" * (-len(bits) % 8), 2).to_bytes(-(-len(bits) // 8)).replace(b"\xff", b"\xff\0")
    return b"\xff\xd8" + head + segment(0xDA, b"\1\1\0\0\x3f\0") + coded + b"\xff\xd9"


def test_differences_that_grow_beyond_all_bounds() -> None:
    """66,000 times the largest step of a code: the pixels of libjpeg or an error, but no undefined behaviour."""
    width, rows = 65500, 9
    bits = ("0" + "1" * 15 + "0") * (-(-width // 8) * rows)
    data = grey(width, 8 * rows, (1, 15), [(1, 0)], bits)
    found = decoded(data, (0, 0, width, 8 * 7), 1)
    np.testing.assert_array_equal(found, oracle(data, mode="L")[: 8 * 7])
    decoded(data, (0, 0, width, 8 * rows), 1)


@pytest.mark.parametrize("length", [2, 5, 9, 10, 11, 12, 16])
def test_codes_that_mean_nothing(length: int) -> None:
    """A block that ends with an unused code or a symbol of progressive images is refused, decoded or passed over."""
    last = "1" + "0" * (length - 1)
    for before in (*range(6), 30, 61, 62):

        def block(symbol: int, code: str, before: int = before) -> bytes:
            return grey(8, 8, (1, 0), [(1, 1), (length, symbol)], "0" + "01" * before + code)

        for scale in (1, 8):
            whole = (0, 0, 8 // scale, 8 // scale)
            check(block(0, last), whole, oracle(block(0, last), scale), scale=scale)
            for damaged in (block(0x10, last), block(0xE0, last), block(0, "1" * length)):
                with pytest.raises(ValueError, match="the coded data is damaged"):
                    _extension.decode(damaged, whole, 4, scale)


def test_the_longest_codes_and_values() -> None:
    """Where they are passed over, the first coefficients of the blocks after them are still found."""
    random = np.random.default_rng(0)
    bits = ""
    for size in random.integers(0, 2, 4 * 63).reshape(4, 63).tolist():
        bits += "0" + format(int(random.integers(1 << 8)), "08b")
        for large in size:
            code, width = ("0" * 16, 15) if large else ("0" * 15 + "1", 12)
            bits += code + format(int(random.integers(1 << width)), f"0{width}b")
    data = grey(32, 8, (1, 8), [(16, 15), (16, 12)], bits)
    check(data, (0, 0, 4, 1), oracle(data, 8), scale=8)


class TestRefusals:
    @pytest.mark.parametrize("scale", [1, 2, 4, 8])
    @pytest.mark.parametrize("channels", [1, 3, 4])
    def test_rectangles(self, channels: int, scale: int) -> None:
        data = encoded(noise(0, 50, 41, "L"))
        width, height = -(-50 // scale), -(-41 // scale)
        decoded(data, (0, 0, width, height), channels, scale)
        most = 2**31 - 1
        for box in (
            (-1, 0, 1, 1),
            (0, -1, 1, 1),
            (0, 0, 0, 1),
            (0, 0, 1, 0),
            (0, 0, -1, 1),
            (0, 0, 1, -1),
            (1, 0, width, 1),
            (0, 1, 1, height),
            (width, 0, 1, 1),
            (0, height, 1, 1),
            (most, 0, 1, 1),
            (0, most, 1, 1),
            (most, most, most, most),
            (0, 0, most, 1),
            (0, 0, 1, most),
            (1, 1, most, most),
            (-(2**31), -(2**31), most, most),
        ):
            with pytest.raises(ValueError, match="rectangle"):
                _extension.decode(data, box, channels, scale)

    @pytest.mark.parametrize(("channels", "scale"), [(5, 1), (0, 1), (2, 1), (-4, 1), (4, 0), (4, 3), (4, 16), (4, -1)])
    def test_channels_and_scales(self, channels: int, scale: int) -> None:
        with pytest.raises(ValueError, match="channels"):
            _extension.decode(encoded(noise(0, 50, 41)), (0, 0, 1, 1), channels, scale)

    def test_numbers_that_are_too_large(self) -> None:
        with pytest.raises(OverflowError):
            _extension.decode(encoded(noise(0, 50, 41)), (0, 0, 2**31, 1), 4, 1)

    def test_grey_of_colour(self) -> None:
        for data in (encoded(noise(0, 9, 9)), encoded(noise(0, 9, 9), keep_rgb=True)):
            with pytest.raises(ValueError, match="not a grey image"):
                _extension.decode(data, (0, 0, 1, 1), 1, 1)

    def test_colours_that_it_does_not_know(self) -> None:
        for data in (encoded(noise(0, 9, 9, "CMYK")), b"", encoded(noise(0, 9, 9), "PNG")):
            for channels in (1, 3, 4):
                with pytest.raises(ValueError, match=r"."):
                    _extension.decode(data, (0, 0, 1, 1), channels, 1)

    @pytest.mark.parametrize("restart", [0, 2])
    @pytest.mark.parametrize("process", [0xC0, 0xC2])
    def test_every_truncation(self, process: int, restart: int) -> None:
        """An error, if part of the rectangle is missing."""
        random = np.random.default_rng(0)
        source = picture(random, 30, 30, density=0.05)
        scans = progressive(source) if process == 0xC2 else None
        data = written(source, random, scans=scans, process=process, restart=restart)
        for size in range(len(data) - 2):
            with pytest.raises(ValueError, match=r"."):
                _extension.decode(data[:size], (0, 0, 30, 30), 4, 1)
            if process == 0xC2 or size < len(data) - 4:
                with pytest.raises(ValueError, match=r"."):
                    _extension.decode(data[:size] + b"\xff\xd9", (0, 0, 30, 30), 4, 1)

    @pytest.mark.parametrize("restart", [0, 2])
    def test_truncations_behind_the_rectangle(self, restart: int) -> None:
        """They may be noticed or not, but do not change the pixels before them."""
        random = np.random.default_rng(0)
        data = written(picture(random, 30, 64, density=0.05), random, restart=restart)
        whole, seen = oracle(data), 0
        for size in range(data.index(b"\xff\xda"), len(data)):
            for end in (b"", b"\xff\xd9"):
                try:
                    check(data[:size] + end, (0, 0, 30, 30), whole)
                except ValueError:
                    seen += 1
        assert seen > (len(data) - data.index(b"\xff\xda")) / 2

    @pytest.mark.parametrize("what", ["another number", "left out", "one byte too many", "one too many", "end"])
    def test_restart_markers(self, what: str) -> None:
        random = np.random.default_rng(0)
        data = written(picture(random, 40, 40), random, restart=1)
        place = data.index(b"\xff\xd1")
        damaged = {
            "another number": data[:place] + b"\xff\xd2" + data[place + 2 :],
            "left out": data[:place] + data[place + 2 :],
            "one byte too many": data[:place] + b"\0" + data[place:],
            "one too many": data[:place] + b"\xff\xd1" + data[place:],
            "end": data[:-2] + b"\0" + data[-2:],
        }[what]
        with pytest.raises(ValueError, match="damaged"):
            _extension.decode(damaged, (0, 0, 40, 40), 4, 1)

    def test_sizes_and_scans(self) -> None:
        data = bytearray(encoded(noise(0, 9, 9, "L")))
        frame = data.index(b"\xff\xc0")
        data[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"
        with pytest.raises(ValueError, match="too many pixels"):
            _extension.decode(data, (0, 0, 1, 1), 4, 1)
