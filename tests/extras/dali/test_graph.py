"""Laws of what DALI gets to decode: only what it decodes as Pillow does."""

from __future__ import annotations

import pytest
from helpers.support import encoded, picture

from packtrain._codec.geometry import Box
from packtrain._codec.image_plan import ImagePlan
from packtrain._extras.dali.graph import decodes
from packtrain._readers.transforms.undecoded import Undecoded

WIDTH, HEIGHT = 48, 36
JPEG = encoded(picture(0, WIDTH, HEIGHT))
PNG = encoded(picture(0, WIDTH, HEIGHT), "PNG")
# The byte behind the size in a PNG's header says how many bits a sample has.
DEEP = PNG[:24] + b"\x10" + PNG[25:]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (JPEG, True),
        (encoded(picture(0, WIDTH, HEIGHT), progressive=True), True),
        (JPEG.replace(b"\xff\xc0", b"\xff\xc3", 1), False),
        (PNG, True),
        (DEEP, False),
        (PNG[:20], False),
        (encoded(picture(0, WIDTH, HEIGHT), "GIF"), False),
        (b"", False),
    ],
    ids=["JPEG", "progressive", "lossless", "PNG", "16 bits", "cut short", "GIF", "nothing"],
)
def test_dali_gets_what_it_decodes_as_pillow_does(data: bytes, expected: bool) -> None:
    assert decodes(Undecoded(data, ImagePlan(Box(0, 0, WIDTH, HEIGHT), None, None, False, ()))) == expected


@pytest.mark.parametrize("box", [Box(0, 0, WIDTH + 1, HEIGHT), Box(8, 8, WIDTH, 8), Box(0, 1, WIDTH, HEIGHT)])
def test_dali_gets_no_jpeg_that_is_smaller_than_its_index_says(box: Box) -> None:
    assert not decodes(Undecoded(JPEG, ImagePlan(box, None, None, False, ())))
