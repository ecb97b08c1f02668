"""From stored bytes to a PIL image: of a whole record, or of a rectangle of it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from packtrain._core.npy import HEADER_BYTES, npy_header
from packtrain._core.options import StoreOptions

from .cut import cut
from .decoders import Decoder
from .geometry import Box
from .pillow import require_pillow
from .pixels import rgb_from_pixels
from .stages import CUT, DECODE, OnStage, untimed

if TYPE_CHECKING:
    from PIL.Image import Image


class RecordDecoder:
    """Decodes the records of a dataset.

    Args:
        store: How the dataset stores pixels.
        decoder: Decodes what is not raw.
    """

    def __init__(self, store: StoreOptions, decoder: Decoder) -> None:
        self.store = store
        self.decoder = decoder

    def image(self, record: memoryview, width: int, height: int, on_stage: OnStage = untimed) -> Image:
        """Decodes a record.

        Args:
            record: Its stored bytes.
            width: Pixels, from the index.
            height: Likewise.
            on_stage: Is told of each stage.

        Returns:
            An image in the dataset's pixel mode.

        Raises:
            ValueError: The record does not hold an image of this size.
            Exception: Whatever Pillow raises on an encoded record that it refuses.
        """
        image = self.region(record, width, height, Box(0, 0, width, height), on_stage=on_stage)
        return ordinary(self.with_info(image, record))

    def region(
        self, record: memoryview, width: int, height: int, box: Box, scale: int = 1, on_stage: OnStage = untimed
    ) -> Image:
        """Decodes a rectangle of a record, and as little of the rest as can be.

        Args:
            record: Its stored bytes.
            width: Pixels of the whole image, from the index.
            height: Likewise.
            box: A rectangle inside the image.
            scale: 1, 2, 4 or 8: decode to so many times smaller an image. Each side of `box` then becomes the smallest
                number of whole pixels that cover it. Of no effect on raw records.
            on_stage: Is told of each stage.

        Returns:
            An image in the dataset's pixel mode, or RGBX in place of RGB, perhaps over memory that is not its own.

        Raises:
            ValueError: The record does not hold an image of this size.
            Exception: Whatever Pillow raises on an encoded record that it refuses.
        """
        if self.store.store == "raw":
            return self._raw_region(record, width, height, box)
        if self.store.mode == "L" and scale == 1 and (aligned := _aligned(box, width)) != box:
            left = box.left - aligned.left
            image = self.region(record, width, height, aligned, on_stage=on_stage)
            return image.crop((left, 0, left + box.width, box.height))
        whole = box == (0, 0, width, height)
        part = None if whole else cut(record, box)
        on_stage(CUT)
        if part is not None:
            box = Box(box.left - part.left, box.top - part.top, box.width, box.height)
            image = self.decoder.decode(part.data, self.store.mode, shrunk(box, scale), scale)
        else:
            image = self.decoder.decode(record, self.store.mode, None if whole else shrunk(box, scale), scale)
        on_stage(DECODE)
        if whole and image.size != shrunk(box, scale)[2:]:
            raise ValueError(f"it holds an image of {image.width} x {image.height} pixels, not of {width} x {height}")
        return image

    def with_info(self, image: Image, record: memoryview) -> Image:
        """The image of a record with what Pillow's `info` says of it, EXIF and ICC profile above all.

        Whoever gets the image may ask for it, to turn it upright for instance, and does not know who decoded it.
        """
        if self.store.store != "raw" and self.decoder.name != "pillow":
            image.info = require_pillow().open(io.BytesIO(record)).info
        return image

    def pixels(self, record: memoryview, width: int, height: int, box: Box) -> npt.NDArray[np.uint8]:
        """A rectangle of a raw record: a read-only view of its pixels, uint8 [height, width, channels].

        Raises:
            ValueError: The record does not hold an image of this size.
        """
        channels = self.store.channels
        pixels = raw_pixels(record, height, width, channels)
        left, top, wide, high = box
        row = width * channels
        return np.ndarray((high, wide, channels), np.uint8, pixels, top * row + left * channels, (row, channels, 1))

    def rgb(
        self, record: memoryview, width: int, height: int, box: Box, on_stage: OnStage = untimed
    ) -> npt.NDArray[np.uint8] | None:
        """A rectangle of a record, uint8 [height, width, 3]: what `region` gives at scale 1 in mode RGB.

        Its rows may lie apart. None where it takes `region` to tell what becomes of the record.
        """
        if self.store.mode != "RGB":
            return None
        if self.store.store == "raw":
            return self.pixels(record, width, height, box)
        whole = box == (0, 0, width, height)
        part = None if whole else cut(record, box)
        on_stage(CUT)
        if part is not None:
            box = Box(box.left - part.left, box.top - part.top, box.width, box.height)
        pixels = self.decoder.pixels(record if part is None else part.data, None if whole else box)
        on_stage(DECODE)
        return pixels if pixels is not None and pixels.shape == (box.height, box.width, 3) else None

    def _raw_region(self, record: memoryview, width: int, height: int, box: Box) -> Image:
        pixels = raw_pixels(record, height, width, self.store.channels)
        if self.store.mode == "RGB":
            return rgb_from_pixels(pixels, width, box)
        rows = pixels[box.top * width : (box.top + box.height) * width]
        image: Image = require_pillow().frombuffer("L", (width, box.height), rows, "raw", "L", width, 1)
        return image if box.width == width else image.crop((box.left, 0, box.left + box.width, box.height))


def ordinary(image: Image) -> Image:
    """An image of a common mode in memory of its own: Pillow 12 crashes where another one is exported."""
    if image.mode == "RGBX":
        return image.convert("RGB")
    return image.copy() if image.readonly else image


def shrunk(box: Box, scale: int) -> Box:
    """The pixels of an image `scale` times smaller that cover `box`."""
    if scale == 1:
        return box
    left, top = box.left // scale, box.top // scale
    right, bottom = -(-(box.left + box.width) // scale), -(-(box.top + box.height) // scale)
    return Box(left, top, right - left, bottom - top)


def _aligned(box: Box, width: int) -> Box:
    """A box that is widened to the pixels with which those in it are converted to grey.

    pillow-simd converts four at a time, and those that are left over at the right with other rounding.
    """
    left, right = box.left & ~3, min((box.left + box.width + 3) & ~3, width)
    return Box(left, box.top, right - left, box.height)


def raw_pixels(record: memoryview, height: int, width: int, channels: int) -> memoryview:
    """The pixels of a raw record, uint8 [height * width * channels], without the `.npy` header if it has one.

    Raises:
        ValueError: The record has another size or header.
    """
    size = height * width * channels
    if len(record) == size:
        return record
    header = npy_header("|u1", (height, width, channels))
    # As bytes: memoryviews are compared number by number.
    if len(record) != size + HEADER_BYTES or bytes(record[:HEADER_BYTES]) != header:
        raise ValueError(f"a raw record of {len(record)} bytes does not hold {height} x {width} x {channels} pixels")
    return record[HEADER_BYTES:]
