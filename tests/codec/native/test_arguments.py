"""Laws of all functions that read one piece of memory and write another: sizes are compared, and pieces lie apart."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from packtrain._codec.native.places import PLACE

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

IMAGE = (4, 6, 3)
SIZE = 72
TABLE = np.zeros((3, 256), np.uint32)
WEIGHTS = np.ones(1, np.float32)
PLACES = np.zeros(1, PLACE)
for name in ("width", "crop_width", "new_width"):
    PLACES[name] = 6
for name in ("height", "crop_height", "new_height"):
    PLACES[name] = 4
PLACES["length"] = SIZE
NO_PLACES = np.zeros(0, PLACE)


def shaped(memory: memoryview, *shape: int, dtype: Any = np.uint8) -> Any:
    return np.frombuffer(memory, dtype).reshape(shape)


def image(memory: memoryview) -> Any:
    return shaped(memory, *IMAGE)


# What it reads and what it writes, in bytes, and the call.
CALLS: dict[str, tuple[int, int, Callable[[memoryview, memoryview], Any]]] = {
    "copy_pixels": (SIZE, SIZE, lambda a, b: _extension.copy_pixels(image(a), False, False, b)),
    "copy_pixels, upside down": (SIZE, SIZE, lambda a, b: _extension.copy_pixels(image(a)[::-1], False, False, b)),
    "copy_records": (
        SIZE,
        SIZE,
        lambda a, b: _extension.copy_records(
            [b"", a], in_shard(1), False, -1, 0, shaped(b, 1, *IMAGE), np.zeros(1, int)
        ),
    ),
    "lookup": (SIZE, 4 * SIZE, lambda a, b: _extension.lookup(image(a), TABLE, True, b)),
    "lookup, table": (
        TABLE.nbytes,
        4 * SIZE,
        lambda a, b: _extension.lookup(np.zeros(IMAGE, np.uint8), shaped(a, 3, 256, dtype=np.uint32), True, b),
    ),
    "rgbx_to_rgb": (4 * 24, SIZE, lambda a, b: _extension.rgbx_to_rgb(a, 6, 4, False, b)),
    "unfilter": (SIZE + 4, SIZE, lambda a, b: _extension.unfilter(a, 18, b)),
    "mean_of_images": (SIZE, SIZE, lambda a, b: _extension.mean_of_images(a, WEIGHTS, b)),
    "mean_of_images, weights": (
        4,
        SIZE,
        lambda a, b: _extension.mean_of_images(bytes(SIZE), shaped(a, 1, dtype=np.float32), b),
    ),
    "blend_images": (SIZE, SIZE, lambda a, b: _extension.blend_images(image(b), image(a), 0.5)),
    "box_blur": (SIZE, SIZE, lambda a, b: _extension.box_blur(image(a), 1.0, image(b))),
    "gaussian_blur": (SIZE, SIZE, lambda a, b: _extension.gaussian_blur(image(a), WEIGHTS, WEIGHTS, image(b))),
    "gaussian_blur, across": (
        4,
        SIZE,
        lambda a, b: _extension.gaussian_blur(
            np.zeros(IMAGE, np.uint8), shaped(a, 1, dtype=np.float32), WEIGHTS, image(b)
        ),
    ),
    "gaussian_blur, down": (
        4,
        SIZE,
        lambda a, b: _extension.gaussian_blur(
            np.zeros(IMAGE, np.uint8), WEIGHTS, shaped(a, 1, dtype=np.float32), image(b)
        ),
    ),
    "sharpness": (SIZE, SIZE, lambda a, b: _extension.sharpness(image(a), 2.0, image(b))),
    "warp": (SIZE, SIZE, lambda a, b: _extension.warp(image(a), (1, 0, 0, 0, 1, 0), 0, b"\0\0\0", image(b))),
    "resize_pixels": (
        SIZE,
        SIZE,
        lambda a, b: _extension.resize_pixels(image(a), (6, 4, 0, 0), (6, 4, 0, 0), 2, 1, False, False, image(b)),
    ),
}


def in_shard(number: int) -> Any:
    places = PLACES.copy()
    places["shard"] = number
    return places


@pytest.mark.parametrize("name", CALLS)
def test_no_function_writes_over_what_it_reads(name: str) -> None:
    read, written, call = CALLS[name]
    # Numbers of four bytes have to be aligned.
    room = np.zeros(2 * read + 2 * written + 16, np.uint8).data
    place = (written + 15) // 8 * 8
    source = room[place : place + read]
    for apart in (place - written, place + (read + 3) // 4 * 4):
        call(source, room[apart : apart + written])
    for overlapping in (place - written + 4, place, place + read // 8 * 4):
        with pytest.raises(ValueError, match="overlap"):
            call(source, room[overlapping : overlapping + written])


def huge(size: int) -> mmap.mmap:
    """Memory of zeros that takes no room as long as nobody touches it."""
    no_reserve = 0x4000
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)


def test_a_product_of_sizes_beyond_64_bits() -> None:
    """2^32 images of 2^32 bytes are not none at all."""
    with pytest.raises(ValueError, match="more or fewer images"):
        _extension.mean_of_images(b"", huge(1 << 34), huge(1 << 32))


@pytest.mark.parametrize("width", [1 << 59, 1 << 61])
def test_an_image_without_rows_may_be_of_any_width(width: int) -> None:
    """A row of it is never allocated."""
    nothing = np.zeros((0, width, 1), np.uint8)
    for planes in (False, True):
        _extension.lookup(nothing, np.zeros((1, 256), np.uint64), planes, np.zeros(0, np.uint64))
    _extension.copy_pixels(nothing, False, False, bytearray())
    with pytest.raises(ValueError, match="dense rows"):
        _extension.resize_pixels(
            np.zeros((0, width, 3), np.uint8), (6, 4, 0, 0), (6, 4, 0, 0), 2, 1, False, False, np.zeros(IMAGE, np.uint8)
        )


class TestErrors:
    """Only memory of the wrong kind is a ValueError; what is no memory stays a TypeError."""

    OUTPUTS: tuple[tuple[Any, ...], ...] = (
        (_extension.copy_pixels, np.zeros(IMAGE, np.uint8), False, False),
        (_extension.copy_records, [], NO_PLACES, False, -1, 0, np.zeros((1, *IMAGE), np.uint8)),
        (_extension.lookup, np.zeros(IMAGE, np.uint8), TABLE, True),
        (_extension.mean_of_images, bytes(SIZE), WEIGHTS),
        (_extension.rgbx_to_rgb, bytes(96), 6, 4, False),
        (_extension.unfilter, bytes(SIZE + 4), 18),
    )

    @pytest.mark.parametrize("call", OUTPUTS, ids=lambda call: call[0].__name__)
    def test_of_the_output(self, call: tuple[Any, ...]) -> None:
        function, *arguments = call
        for wrong in (None, "text", 7):
            with pytest.raises(TypeError, match="bytes-like"):
                function(*arguments, wrong)
        with pytest.raises(ValueError, match="not contiguous and writable"):
            function(*arguments, bytes(4 * SIZE))

    FUNCTIONS = (
        (_extension.box_blur, 1.0),
        (_extension.sharpness, 1.0),
        (_extension.warp, (1, 0, 0, 0, 1, 0), 0, b"\0\0\0"),
    )

    @pytest.mark.parametrize("call", FUNCTIONS, ids=lambda call: call[0].__name__)
    def test_of_image_and_output(self, call: tuple[Any, ...]) -> None:
        function, *arguments = call
        image = np.zeros(IMAGE, np.uint8)
        for wrong in (None, "text", 7):
            with pytest.raises(TypeError, match="bytes-like"):
                function(wrong, *arguments, image)
            with pytest.raises(TypeError, match="bytes-like"):
                function(image.copy(), *arguments, wrong)
        with pytest.raises(ValueError, match="not contiguous and writable"):
            function(image, *arguments, bytes(SIZE))

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="before Python 3.12 no Python code can hand out memory")
    @pytest.mark.parametrize("call", FUNCTIONS, ids=lambda call: call[0].__name__)
    def test_for_want_of_memory(self, call: tuple[Any, ...]) -> None:
        class Full:
            def __buffer__(self, flags: int) -> memoryview:
                raise MemoryError

        function, *arguments = call
        with pytest.raises(MemoryError):
            function(Full(), *arguments, np.zeros(IMAGE, np.uint8))
        with pytest.raises(MemoryError):
            function(np.zeros(IMAGE, np.uint8), *arguments, Full())
