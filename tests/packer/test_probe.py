"""Laws of the quick look at a file: it vouches for nothing that Pillow would refuse."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest
from helpers.corpus import ORIENTATION, XMP, chunk, decoded, exif, jpegs, mutated, pngs, wide_grey, with_segment
from helpers.support import encoded, picture, real_list, sources
from PIL import Image

from packtrain._core.options import StoreOptions
from packtrain._packer.images import store_image
from packtrain._packer.probe import ImageHeader, probe
from packtrain._packer.sources import Refused

CORPUS: Final = [*jpegs(), *pngs()]
JPEG: Final = encoded(picture(0, 70, 50))
PNG: Final = encoded(picture(0, 70, 50), "PNG")

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow warns of most damage


def orientation(data: bytes) -> int:
    """The orientation by Pillow; 1 where it cannot tell."""
    image = Image.open(io.BytesIO(data))
    image.load()
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except Exception:
        return 1
    return int(value) if value in range(1, 9) else 1


def by_pillow(data: bytes) -> ImageHeader | None:
    """The header that Pillow itself gives, without the extension."""
    image = decoded(data)
    return None if image is None else ImageHeader("", *image.size, orientation(data))


def by_packing(data: bytes, *, check: bool) -> ImageHeader | None:
    """The header that packing gives."""
    try:
        header = store_image(data, StoreOptions("verbatim", check=check)).header
    except Refused:
        return None
    return ImageHeader("", header.width, header.height, header.orientation)


def assert_laws(data: bytes, which: str = "") -> None:
    truth, quick = by_pillow(data), probe(data)
    if quick is not None:
        seen = ImageHeader("", quick.width, quick.height, quick.orientation)
        assert truth == seen, f"the probe vouches for what is not so {which}"
    assert by_packing(data, check=False) == truth, f"packing does not accept exactly what Pillow does {which}"
    assert by_packing(data, check=True) == truth, f"--check does not accept exactly what Pillow does {which}"


def with_chunk(png: bytes, kind: bytes, body: bytes, *, before: bytes = b"IDAT") -> bytes:
    """A PNG file with one more chunk."""
    at = png.index(before) - 4
    return png[:at] + chunk(kind, body) + png[at:]


# An index of three pictures with two entries.
MPF: Final = (
    b"MPF\0II*\0\x08\0\0\0"
    + struct.pack("<HHHIIHHIII", 2, 0xB001, 4, 1, 3, 0xB002, 7, 32, 38, 0)
    + struct.pack("<IIIHH", 0, 99, 7, 0, 0) * 2
)


def traps() -> Iterator[tuple[str, bytes]]:
    """Files whose headers look sound at first sight, and which Pillow refuses or reads in its own way."""
    yield "JFIF segment without a version", with_segment(JPEG, 0xE0, b"JFIF\0")
    yield "Adobe segment without a version", with_segment(JPEG, 0xEE, b"Adobe")
    yield "ICC segment without a number", with_segment(JPEG, 0xE2, b"ICC_PROFILE\0")
    yield "ICC segment of an unknown number", with_segment(JPEG, 0xE2, b"ICC_PROFILE\0\1")
    yield "Photoshop resource that breaks off", with_segment(JPEG, 0xED, b"Photoshop 3.0\x008BIM\4\4")
    yield "index of several pictures that breaks off", with_segment(JPEG, 0xE2, MPF)
    yield "EXIF twice", with_segment(with_segment(JPEG, 0xE1, exif(3)), 0xE1, exif(6))
    yield "orientation twice", with_segment(JPEG, 0xE1, exif(3, "<", (ORIENTATION, 3, 1, 6)))
    yield "orientation of another type", with_segment(JPEG, 0xE1, exif(3).replace(b"\x12\1\3\0", b"\x12\1\4\0"))
    yield (
        "resolution without digits",
        with_segment(encoded(picture(0)), 0xE1, exif(3, "<", (0x11A, 2, 1, 0), (0x128, 3, 1, 2))),
    )
    xmp = b'<x tiff:Orientation="6"/>'
    yield "XMP orientation beside that of EXIF", with_segment(with_segment(JPEG, 0xE1, exif(3)), 0xE1, XMP + xmp)
    yield "XMP orientation as an element", with_segment(JPEG, 0xE1, XMP + b"<tiff:Orientation>8</tiff:Orientation>")
    frame = JPEG.index(b"\xff\xc0")
    blocks = bytearray(JPEG)
    blocks[frame + 11 : frame + 19 : 3] = b"\x22\x22\x22"
    yield "more blocks in a unit than libjpeg takes", bytes(blocks)
    for name, size in (("width", (1, 65501)), ("height", (65535, 1))):
        yield f"{name} beyond libjpeg's limit", JPEG[: frame + 5] + struct.pack(">HH", *size) + JPEG[frame + 9 :]
    yield "height to come later", JPEG[: frame + 5] + bytes(2) + JPEG[frame + 7 :]
    yield "a second whole scan", JPEG[:-2] + JPEG[JPEG.index(b"\xff\xda") :]
    yield "a table behind the scan", JPEG[:-2] + JPEG[JPEG.index(b"\xff\xdb") :]
    for marker in (0xC4, 0xCC, 0xDA, 0xD8, 0xE0, 0xD9, 0xD0, 0xFF):
        yield f"marker {marker:02x} in the coded data", JPEG[:-100] + bytes([0xFF, marker]) + JPEG[-98:]
    progressive = encoded(picture(0, 70, 50), progressive=True)
    scans = [at for at in range(len(progressive)) if progressive.startswith(b"\xff\xda", at)]
    tables = [at for at in range(scans[1], len(progressive)) if progressive.startswith(b"\xff\xc4", at)]
    yield "a scan of impossible frequencies", changed(progressive, scans[2] + 7, 63, 1)
    yield "a scan of too many bits", changed(progressive, scans[2] + 9, 0x0E)
    yield "a refinement of the wrong bit", changed(progressive, scans[2] + 9, 0x31)
    yield "a scan with a missing table", changed(progressive, scans[2] + 6, 0x33)
    yield "a later table that overflows", changed(progressive, tables[0] + 5, 0xFF)
    two = struct.pack(">BBHB", 0xFF, 0xDA, 10, 2) + progressive[scans[1] + 5 : scans[1] + 7] * 2
    two = two[:7] + bytes([two[5] % 3 + 1]) + two[8:]
    yield "frequencies of two components at once", progressive[: scans[1]] + two + progressive[scans[1] + 7 :]
    scan = JPEG.index(b"\xff\xda")
    yield "no coded data", JPEG[: scan + 14] + JPEG[-2:]
    yield "nothing behind the scan's marker", JPEG[: scan + 2] + JPEG[-2:]
    yield "an end inside the scan's header", JPEG[: scan + 12] + JPEG[-2:]
    table = struct.pack(">BBHBB", 0xFF, 0xC4, 21, 0, 2) + bytes(15) + b"\0\1"
    yield "restarts of an impossible interval", JPEG[:scan] + struct.pack(">BBHB", 0xFF, 0xDD, 3, 0) + JPEG[scan:]
    yield "a table that uses the code of ones alone", JPEG[:scan] + table + JPEG[scan:]
    yield "sRGB chunk without content", with_chunk(PNG, b"sRGB", b"")
    yield "pHYs chunk cut short", with_chunk(PNG, b"pHYs", bytes(8))
    yield "iCCP chunk of unknown compression", with_chunk(PNG, b"iCCP", b"name\0\1")
    yield "text beyond Pillow's limit", with_chunk(PNG, b"zTXt", b"k\0\0" + zlib.compress(bytes(2 << 20)))
    yield (
        "the same behind the pixels",
        with_chunk(PNG, b"zTXt", b"k\0\0" + zlib.compress(bytes(2 << 20)), before=b"IEND"),
    )
    yield "XMP orientation in a text", with_chunk(PNG, b"tEXt", b"XML:com.adobe.xmp\0" + xmp)
    yield "EXIF in a text", with_chunk(PNG, b"tEXt", b"exif\0" + exif(6))
    yield "EXIF behind the pixels", with_chunk(PNG, b"eXIf", exif(6)[6:], before=b"IEND")
    yield "a second header", with_chunk(PNG, b"IHDR", PNG[16:29])
    yield (
        "another chunk in front of the header",
        with_chunk(PNG, b"bKGD", PNG[16:19] + b"\1" + PNG[20:29], before=b"IHDR"),
    )
    yield "an end in front of the pixels", with_chunk(PNG, b"IEND", b"")
    at = PNG.index(b"IDAT") - 4
    pixels = PNG[at + 8 : PNG.index(b"IEND") - 8]
    parts = [chunk(b"IDAT", pixels[:100]), chunk(b"IDAT", pixels[100:]), PNG[-12:]]
    yield "pixels in two chunks", PNG[:at] + b"".join(parts)
    yield "pixels in two chunks with another between", PNG[:at] + chunk(b"tIME", bytes(7)).join(parts)
    yield "no pixels", PNG[:at] + PNG[-12:]
    yield "an unknown colour type", changed(PNG, 25, 5)
    yield "grey of 16 bits", encoded(wide_grey(), "PNG")


def changed(data: bytes, at: int, *values: int) -> bytes:
    """The file with other bytes from `at` on; a PNG header gets its checksum."""
    result = data[:at] + bytes(values) + data[at + len(values) :]
    if data is PNG:
        result = result[:29] + struct.pack(">I", zlib.crc32(result[12:29])) + result[33:]
    return result


TRAPS: Final = dict(traps())


def test_common_files_are_beyond_doubt() -> None:
    common = [*jpegs(), *(encoded(picture(1, 40, 30, mode), "PNG") for mode in ("RGB", "L", "RGBA"))]
    assert [probe(data) is not None for data in common] == [True] * len(common)


def test_real_photographs_are_beyond_doubt() -> None:
    photographs = [source.data for source in sources(real_list())]
    suspects = sum(probe(data) is None for data in photographs)
    assert suspects <= len(photographs) // 20
    for data in photographs[::20]:
        assert_laws(data)


def test_sound_files_are_taken_as_pillow_takes_them() -> None:
    for number, data in enumerate(CORPUS):
        assert by_pillow(data) is not None
        assert_laws(data, f"(file {number})")


@pytest.mark.parametrize("name", TRAPS)
def test_traps_are_taken_as_pillow_takes_them(name: str) -> None:
    assert_laws(TRAPS[name])


def test_a_file_with_very_many_scans_is_not_read_once_for_each() -> None:
    """It takes minutes to look for the end of each of them in all that is left of the file."""
    data = next(data for data in jpegs() if data.count(b"\xff\xda") > 1)
    last = data[data.rindex(b"\xff\xda") : -2]
    for scans, sure in ((400, True), (20_000, False)):
        assert (probe(data[:-2] + last * scans + b"\xff\xd9") is not None) == sure


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        pytest.param(0, 3000, marks=pytest.mark.complete),
        *(pytest.param(seed, 20_000, marks=pytest.mark.stress) for seed in range(1, 11)),
    ],
)
def test_damaged_files_are_taken_as_pillow_takes_them(seed: int, count: int) -> None:
    accepted = 0
    for number in range(count):
        random = np.random.default_rng([seed, number])
        data = mutated(CORPUS[random.integers(len(CORPUS))], random)
        assert_laws(data, f"(seed {seed}, mutation {number})")
        accepted += probe(data) is not None
    assert count // 10 < accepted < count * 9 // 10, "the mutations are too mild or too wild to tell anything"


@pytest.mark.stress
@pytest.mark.parametrize("number", range(0, len(CORPUS), 3))
def test_every_flipped_bit_of_a_header_is_taken_as_pillow_takes_it(number: int) -> None:
    data = CORPUS[number]
    for bit in range(8 * min(len(data), 1000)):
        at, mask = bit // 8, 1 << bit % 8
        assert_laws(changed(data, at, data[at] ^ mask), f"(bit {bit} of file {number})")
