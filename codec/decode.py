"""Decodes records: from stored bytes to the pixels of a whole image, or of a rectangle of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._core.manifest import HEADER_BYTES
from packtrain._core.npy import npy_header
from packtrain._core.options import StoreOptions

from .cut import cut
from .decoders import Decoder
from .pillow import check_pixels, open_image, require_pillow
from .pixels import Box, array_from_image, rgb_from_pixels
from .record_forms import FORMS, header_file
from .stages import CUT, DECODE, OnStage, untimed

if TYPE_CHECKING:
    from PIL.Image import Image


class DecodedPart(NamedTuple):
    """A rectangle of an image that has been decoded already.

    Attributes:
        pixels: uint8 [height, width, channels]; there may be gaps between rows.
        scale: How many times smaller than the stored image it was decoded.
        left: Number of pixels of the scaled image to its left.
        top: Number of pixels of the scaled image above it.
    """

    pixels: npt.NDArray[np.uint8]
    scale: int
    left: int
    top: int

    def cropped(self, box: Box, scale: int) -> npt.NDArray[np.uint8] | None:
        """A view of `box`, a rectangle of the stored image, at `scale`; None if it was not decoded."""
        left, top, width, height = shrunk(box, scale)
        left, top = left - self.left, top - self.top
        if scale != self.scale or left < 0 or top < 0:
            return None
        found = self.pixels[top : top + height, left : left + width]
        return found if found.shape[:2] == (height, width) else None


class EncodedImage(NamedTuple):
    """An image as it is stored.

    Attributes:
        data: The record's bytes.
        width: Width in pixels, from the index.
        height: Height in pixels, from the index.
        part: A rectangle of it that has been decoded already, see `RecordDecoder.with_part`; usually None.
    """

    data: memoryview
    width: int
    height: int
    part: DecodedPart | None = None

    @property
    def box(self) -> Box:
        """The rectangle of the whole image."""
        return Box(0, 0, self.width, self.height)


class RecordDecoder:
    """Decodes the images of a dataset.

    Args:
        store: How the dataset stores pixels.
        decoder: Decodes all store modes but raw.

    Attributes:
        raw: True if records are pixels.
        cuts: True if a rectangle of an encoded record can be decoded without reading the rest of the record. Nobody has
            checked a table that came with a source file, and files are stored verbatim whatever they say.
    """

    def __init__(self, store: StoreOptions, decoder: Decoder) -> None:
        self.store = store
        self.decoder = decoder
        self.raw: Final = store.store_mode.is_raw
        self.cuts: Final = store.store_mode.transcodes
        self._form: Final = FORMS.get(store.store)

    def image(self, encoded: EncodedImage, on_stage: OnStage = untimed) -> Image:
        """Decodes a whole image.

        Args:
            encoded: The image.
            on_stage: Called at the end of each stage.

        Returns:
            An image in the dataset's pixel mode.

        Raises:
            ValueError: The record does not hold an image of this size.
            Exception: Whatever Pillow raises on an encoded record that it refuses.
        """
        image = self.region(encoded, encoded.box, on_stage=on_stage)
        return ordinary(self.with_info(image, encoded))

    def region(self, encoded: EncodedImage, box: Box, scale: int = 1, on_stage: OnStage = untimed) -> Image:
        """Decodes a rectangle of an image, and as little of the rest as possible.

        Args:
            encoded: The image.
            box: A rectangle inside it.
            scale: 1, 2, 4 or 8: decode to an image that is this many times smaller. Each side of `box` then becomes
                the smallest number of whole pixels that cover it. Has no effect on raw records.
            on_stage: Called at the end of each stage.

        Returns:
            An image in the dataset's pixel mode, or RGBX instead of RGB. Its memory may belong to something else.

        Raises:
            ValueError: The record does not hold an image of this size.
            Exception: Whatever Pillow raises on an encoded record that it refuses.
        """
        if encoded.part is not None and (found := encoded.part.cropped(box, scale)) is not None:
            flat = np.ascontiguousarray(found).reshape(-1)
            return self._image(flat.data, found.shape[1], Box(0, 0, found.shape[1], found.shape[0]))
        if self.raw:
            pixels = raw_pixels(encoded.data, encoded.height, encoded.width, self.store.channels)
            return self._image(pixels, encoded.width, box)
        if self.store.mode == "L" and scale == 1 and (aligned := _aligned(box, encoded.width)) != box:
            left = box.left - aligned.left
            image = self.region(encoded, aligned, on_stage=on_stage)
            return image.crop((left, 0, left + box.width, box.height))
        data, inside = self._source(encoded, box, on_stage)
        image = self.decoder.decode(data, self.store.mode, None if inside is None else shrunk(inside, scale), scale)
        on_stage(DECODE)
        if inside is None and image.size != shrunk(box, scale)[2:]:
            raise ValueError(
                f"it holds an image of {image.width} x {image.height} pixels, not of {encoded.width} x {encoded.height}"
            )
        return image

    def with_info(self, image: Image, encoded: EncodedImage) -> Image:
        """Adds Pillow's `info` on the record, above all EXIF and the ICC profile.

        Transforms may need it, for example to turn the image upright, whichever decoder was used.
        """
        if not self.raw and self.decoder.name != "pillow":
            image.info = open_image(header_file(encoded.data)).info
        return image

    def raw_pixels(self, encoded: EncodedImage, box: Box) -> npt.NDArray[np.uint8]:
        """A rectangle of a raw record: a read-only view of its pixels, uint8 [height, width, channels].

        Raises:
            ValueError: The record does not hold an image of this size.
        """
        channels = self.store.channels
        pixels = raw_pixels(encoded.data, encoded.height, encoded.width, channels)
        left, top, wide, high = box
        row = encoded.width * channels
        return np.ndarray((high, wide, channels), np.uint8, pixels, top * row + left * channels, (row, channels, 1))

    def rgb(
        self, encoded: EncodedImage, box: Box, on_stage: OnStage = untimed, scale: int = 1
    ) -> npt.NDArray[np.uint8] | None:
        """A rectangle of an image, uint8 [height, width, 3]: the pixels of `region` in mode RGB.

        There may be other bytes between its rows. None if the record has to be decoded by `region`.
        """
        if self.store.mode != "RGB":
            return None
        if encoded.part is not None and (found := encoded.part.cropped(box, scale)) is not None:
            return found
        if self.raw:
            return self.raw_pixels(encoded, box)
        data, inside = self._source(encoded, box, on_stage)
        pixels = self.decoder.pixels(data, None if inside is None else shrunk(inside, scale), scale)
        on_stage(DECODE)
        _, _, width, height = shrunk(box, scale)
        return pixels if pixels is not None and pixels.shape == (height, width, 3) else None

    def with_part(self, encoded: EncodedImage, box: Box, scale: int = 1, on_stage: OnStage = untimed) -> EncodedImage:
        """Decodes a rectangle once, so that `region` and `rgb` find it, and all that lies in it, decoded.

        Takes and raises what `region` does.
        """
        pixels = self.rgb(encoded, box, on_stage, scale)
        if pixels is None:
            pixels = array_from_image(self.region(encoded, box, scale, on_stage))
            on_stage(DECODE)
        left, top, _, _ = shrunk(box, scale)
        return encoded._replace(part=DecodedPart(pixels, scale, left, top))

    def _source(
        self, encoded: EncodedImage, box: Box, on_stage: OnStage
    ) -> tuple[bytes | bytearray | memoryview, Box | None]:
        """Return what is to be decoded for a rectangle, and where the rectangle lies there; None if it is all of it."""
        whole = box == encoded.box
        data: bytes | bytearray | memoryview = encoded.data
        if not whole:
            # Decoders check the size of what they are given, which may be a small part.
            check_pixels(encoded.width, encoded.height)
        if self._form is not None and bytes(data[:8]) == self._form.magic:
            if self.decoder.name == self._form.read_by:
                on_stage(CUT)
                return data, None if whole else box
            data = self._form.image_file(data) if whole else data
        part = cut(encoded.data, box) if self.cuts and not whole else None
        on_stage(CUT)
        if part is None:
            return data, None if whole else box
        return part.data, Box(box.left - part.left, box.top - part.top, box.width, box.height)

    def _image(self, pixels: memoryview, row: int, box: Box) -> Image:
        """A PIL image of a rectangle of pixels, uint8 [height * row * channels]."""
        if self.store.mode == "RGB":
            return rgb_from_pixels(pixels, row, box)
        rows = pixels[box.top * row : (box.top + box.height) * row]
        image: Image = require_pillow().frombuffer("L", (row, box.height), rows, "raw", "L", row, 1)
        return image if box.width == row else image.crop((box.left, 0, box.left + box.width, box.height))


def ordinary(image: Image) -> Image:
    """The image in an ordinary mode and in memory of its own: Pillow 12 crashes when it exports any other image."""
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
    """`box` widened to whole groups of the pixels that are converted to grey together.

    pillow-simd converts four pixels at a time, and rounds the ones left over at the right edge differently.
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
