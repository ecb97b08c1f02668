"""The most scans of a JPEG that are taken: as many as libjpeg reads in about a second, whoever decodes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.jpegs import SEGMENTS, any_jpeg, picture, progressive, scan_bomb, segment, written
from PIL import Image

from packtrain._codec.geometry import Box
from packtrain._codec.jpeg_markers import too_many_scans
from packtrain._codec.native import extension
from packtrain._codec.pillow import open_image
from packtrain._core.options import StoreOptions
from packtrain._packer.images import store_image
from packtrain._packer.sources import Refused

# 33 scans of 5704 x 5704 pixels are fewer than 2^30 pixels, and 33 of 5705 x 5705 are more.
SIDE = 5704
WHY = f"a JPEG with 33 scans of {SIDE + 1} x {SIDE + 1} pixels, .* at most 32 scans"


def of(data: bytes, size: tuple[int, int] = (SIDE + 1, SIDE + 1)) -> str | None:
    return too_many_scans(data, *size)


def test_more_scans_than_the_size_allows() -> None:
    assert of(scan_bomb(8, 8, 32)) is None
    assert of(scan_bomb(8, 8, 33), (SIDE, SIDE)) is None
    assert str(of(scan_bomb(8, 8, 33))).startswith(f"a JPEG with 33 scans of {SIDE + 1} x {SIDE + 1} pixels")
    assert of(scan_bomb(8, 8, 5000), (400, 400)) is None
    assert of(scan_bomb(8, 8, 5000), (500, 500)) is not None
    for size in ((0, 0), (1, 1)):
        assert of(scan_bomb(8, 8, 5000), size) is None


def test_what_looks_like_a_scan_and_is_none() -> None:
    data = scan_bomb(8, 8, 32)
    comment = segment(0xFE, b"\xff\xda" * 100)
    assert of(data[:2] + comment + data[2:-2] + comment + data[-2:]) is None
    assert of(data + scan_bomb(8, 8, 32)) is None, "a second image behind the first"


def test_a_scan_behind_anything_that_libjpeg_passes_over() -> None:
    """Bytes that are no marker, bytes that only fill, and markers without a segment."""
    data = scan_bomb(8, 8, 33)
    for between in (b"garbage", b"\xff\xff\xff", b"\xff\x01", b"\xff\x02", b"\xff\xbf", b"\xff\xd3", b"\xff\0\xff\0"):
        assert of(data.replace(b"\xff\xda", between + b"\xff\xda")) is not None


def test_no_ordinary_image_has_too_many() -> None:
    random = np.random.default_rng(0)
    source = picture(random, 70, 50)
    data = written(source, random, scans=progressive(source), process=0xC2, segments=SEGMENTS)
    for each in (data, *(any_jpeg(random)[1] for _ in range(20)), b"", b"\xff", b"\xff\xda", data[:-2] + b"\xff\xda"):
        assert too_many_scans(each, 65500, 65500) is None


def test_pillow_is_not_handed_one() -> None:
    assert open_image(scan_bomb(SIDE, SIDE, 33)).size == (SIDE, SIDE)
    with pytest.raises(Image.DecompressionBombError, match=WHY):
        open_image(scan_bomb(SIDE + 1, SIDE + 1, 33))


@pytest.mark.skipif(extension is None, reason="packtrain's C extension is not built")
def test_the_extension_has_the_same_limit() -> None:
    assert extension is not None
    with pytest.raises(ValueError, match="not complete"):
        extension.transcode(scan_bomb(SIDE, SIDE, 33))
    bomb = scan_bomb(SIDE + 1, SIDE + 1, 33)
    with pytest.raises(ValueError, match="too many scans"):
        extension.transcode(bomb)
    with pytest.raises(ValueError, match="too many scans"):
        extension.decode(bomb, Box(0, 0, 8, 8), 1, 1)


@pytest.mark.parametrize(
    "options",
    [
        StoreOptions("verbatim"),
        StoreOptions("verbatim", check=True),
        StoreOptions("crop-ready"),
        StoreOptions("jpeg", quality=90),
        StoreOptions("raw", resize="64x64"),
    ],
    ids=lambda options: f"{options.store}, checked" if options.check else options.store,
)
def test_it_is_refused_in_every_store_mode(options: StoreOptions) -> None:
    with pytest.raises(Refused, match=f"^{WHY}"):
        store_image(scan_bomb(SIDE + 1, SIDE + 1, 33), options)
