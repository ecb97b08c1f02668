"""The C extension: what JPEGs need that Pillow does not offer. Optional; import it through `packtrain._codec.native`.

All functions let other threads run. None of them trusts its input.
"""

from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

LIBJPEG: str
"""The libjpeg that the extension was built with, as ``"libjpeg-turbo 2.1.5"``."""

def transcode(data: Buffer, optimise: bool = True) -> bytes:
    """A JPEG as a crop-ready record: baseline, with restart markers, optimal Huffman tables and a table of intervals.

    The quantised coefficients, and with them the pixels, are those of `data`. EXIF and ICC segments are kept, other
    application data and comments are not. docs/format.md specifies the result.

    Args:
        data: The JPEG.
        optimise: Take the best Huffman tables for this image, not those of T.81, annex K.3: about 5 % fewer bytes.

    Raises:
        ValueError: libjpeg warns of something in `data`, or it is nothing that this can be done to: other than 8 bits,
            a colour space other than grey, YCbCr and RGB, more than 10 blocks per MCU, an incomplete progressive image.
        MemoryError: There is not enough memory.
    """

def cut(record: Buffer, box: tuple[int, int, int, int]) -> tuple[bytes, int, int] | None:
    """The same as `packtrain._codec.cut.cut`: (bytes, left, top), or None if `record` has no sound table of intervals.

    Raises:
        ValueError: `box` (left, top, width, height) is not inside the image.
    """

def decode(data: Buffer, box: tuple[int, int, int, int], channels: int, scale: int) -> tuple[bytes, int, int]:
    """Decodes a rectangle of a JPEG.

    Args:
        data: The JPEG; any that libjpeg decodes to RGB or grey.
        box: Left, top, width and height in pixels of the image as scaled.
        channels: 3 for RGB, 4 for RGBX, 1 for a grey image.
        scale: 1, 2, 4 or 8: both sides of the image are divided by it, rounded up.

    Returns:
        Pixels (uint8), where in them the rectangle begins, and bytes from one of its rows to the next. After its last
        row, as many bytes are there as a row has.

    Raises:
        ValueError: libjpeg refuses `data` or warns of it, `box` is not inside the image, or `channels` is 1 and the
            image is not grey.
        MemoryError: There is not enough memory.
    """

def rgb_to_rgbx(data: Buffer, row: int, left: int, top: int, width: int, height: int) -> bytes:
    """A rectangle of an image of three bytes per pixel and `row` pixels per row, with four bytes per pixel.

    Raises:
        ValueError: The rectangle is not inside the image.
    """

def rgbx_to_rgb(image: Any, width: int, height: int, mirrored: bool, out: Buffer) -> None:
    """Writes an image of four bytes per pixel into `out` with three bytes per pixel, mirrored left to right if asked.

    Args:
        image: Its pixels, height x width x 4, or the array capsule that Pillow's ``__arrow_c_array__`` gives.
        width: Pixels.
        height: Pixels.
        mirrored: Whether to exchange left and right.
        out: A writable buffer of height x width x 3 bytes.

    Raises:
        ValueError: `image` or `out` has another size.
    """

def copy_pixels(image: Buffer, mirrored: bool, past_caches: bool, out: Buffer) -> None:
    """Copies an image into `out`, mirrored left to right if asked.

    Args:
        image: uint8 [height, width, channels]; its rows may lie apart, the pixels of a row may not.
        mirrored: Whether to exchange left and right; for one channel or three.
        past_caches: Write straight to memory: faster if what is written is read by another core, or much later.
        out: A writable buffer of as many bytes.

    Raises:
        ValueError: `image` or `out` has another shape or size.
    """

def copy_records(
    shards: Sequence[Buffer], places: Buffer, check: bool, resample: int, style: int, out: Buffer, current: Buffer
) -> bool:
    """Copies a rectangle of each of some raw records, past the caches as `copy_pixels` does, and resizes it on the way.

    It gives up at the first record of which anything is wrong: it lies outside its shard, its size or its ``.npy``
    header is not that of an image of this size, the rectangle reaches outside the image, the checksum differs. And at
    once where checksums are asked for, or at the first one to be resized, and the processor has no instructions for
    that.

    Args:
        shards: The bytes of shards.
        places: int64 [records, 13]: where in `out` the rectangle goes; row, shard, offset and size in bytes, crc32c,
            width and height of the image; left, top, width and height of the rectangle, and whether to exchange left
            and right at last.
        check: Compare the records with their checksums.
        resample: The filter by which rectangles of another size than that of `out` are resized, as in
            `PIL.Image.Resampling`: 2, bilinear, or 3, bicubic; for three channels. Nothing is resized with any other.
        style: Whose pixels: 0, pillow-simd's; 1, those of Pillow up to 12; 2, those of Pillow from 13 on.
        out: uint8 [any, height, width, channels], writable: the rectangles. One channel or three.
        current: int64 [1], writable: the row that is being read, for who looks at it from outside.

    Returns:
        Whether all records were copied.

    Raises:
        ValueError: `places`, `out` or `current` has another shape.
        MemoryError: There is not enough memory.
    """

def resize_pixels(image: Buffer, resample: int, style: int, mirrored: bool, past_caches: bool, out: Buffer) -> None:
    """Resizes an image as Pillow does.

    Args:
        image: uint8 [height, width, 3]; its rows may lie apart, the pixels of a row may not.
        resample: See `copy_records`.
        style: Likewise.
        mirrored: Whether to exchange left and right at last.
        past_caches: See `copy_pixels`.
        out: uint8 [height, width, 3], writable: gets the image at its size.

    Raises:
        ValueError: `image` or `out` has another shape, or the processor has no instructions for this filter.
        MemoryError: There is not enough memory.
    """
