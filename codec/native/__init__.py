"""The C extension, if it was built. Building it takes a C compiler and libjpeg-turbo's headers at installation time."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from packtrain._core.errors import MissingDependency
from packtrain._core.installing import build_command

from .selftest import fault

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer


class Extension(Protocol):
    """The functions of the compiled module `packtrain._codec.native._extension`.

    They do for JPEGs and pixels what Pillow does not offer. All but `cut` release the GIL, and none trusts its input,
    which may even change in the meantime: what lies in a mapped file belongs to whoever may write to the file.

    Errors are of three kinds. What is wrong with the input is a ValueError, too little memory a MemoryError. A libjpeg
    that does not do what it should is a RuntimeError, and no fault of the input.
    """

    LIBJPEG: str
    """The libjpeg that the extension was built with, for example ``"libjpeg-turbo 2.1.5"``."""
    LOADED: str
    """The libjpeg that it uses: its version of the interface, what it says of itself, and its file."""

    def transcode(self, data: Buffer, optimise: bool = True, /) -> bytes:
        """Rewrites a JPEG, or a coefficient record, as a crop-ready record.

        The record is a baseline JPEG with restart markers, optimal Huffman tables and a table of restart intervals;
        docs/format-records.md specifies it. Its quantised coefficients, and therefore its pixels, are those of `data`.
        EXIF and ICC segments are kept; other application data and comments are dropped.

        Args:
            data: The JPEG.
            optimise: Use the best Huffman tables for this image instead of those of T.81, annex K.3. This saves about
                5 % of the bytes.

        Raises:
            ValueError: libjpeg warns about `data`, or `data` cannot be transcoded: its samples do not have 8 bits, its
                colour space is not grey, YCbCr or RGB, it has more than 10 blocks per MCU, or it is an incomplete
                progressive image.
            MemoryError: There is not enough memory.
        """

    def coefficient_record(self, data: Buffer, /) -> bytes:
        """Rewrites a JPEG as a coefficient record, which docs/format-records.md specifies.

        Its quantised coefficients, and therefore its pixels, are those of `data`. EXIF and ICC segments are kept.

        Args:
            data: The JPEG, or a coefficient record.

        Raises:
            ValueError: As for `transcode`; or `data` is a damaged record.
            MemoryError: There is not enough memory.
        """

    def coefficients(self, data: Buffer, reader: str = "", /) -> tuple[bytes, ...]:
        """Reads the quantised coefficients of each component.

        Args:
            data: A JPEG, or a coefficient record.
            reader: What reads the groups of a record, for tests: ``"plain"``, ``"bmi2"`` or ``"avx512"``; empty: the
                fastest.

        Returns:
            For each component int16 [rows of blocks, blocks in a row, 64], each block in natural order.

        Raises:
            ValueError: As for `coefficient_record`; or this processor has no such reader.
            MemoryError: There is not enough memory.
        """

    def cut(self, record: Buffer, box: tuple[int, int, int, int], /) -> tuple[bytes, int, int] | None:
        """Cuts a small JPEG out of a record.

        From a crop-ready record, exactly as `packtrain._codec.cut.python_cut` does. From a coefficient record, a JPEG
        with the standard Huffman tables.

        Args:
            record: The bytes of the record.
            box: Left, top, width and height of the rectangle, in pixels.

        Returns:
            The small JPEG, and how many pixels of the whole image lie to its left and above it; None if `record` has no
            valid table of restart intervals.

        Raises:
            ValueError: `box` is not inside the image.
        """

    def decode(
        self, data: Buffer, box: tuple[int, int, int, int], channels: int, scale: int, /
    ) -> tuple[bytes, int, int]:
        """Decodes a rectangle of a JPEG or of a coefficient record.

        Args:
            data: Any JPEG that libjpeg decodes to RGB or grey, or a coefficient record.
            box: Left, top, width and height of the rectangle, in pixels of the scaled image.
            channels: 3 for RGB, 4 for RGBX, 1 for a grey image.
            scale: 1, 2, 4 or 8: width and height of the image are divided by it and rounded up.

        Returns:
            Pixels (uint8), the offset in bytes at which the rectangle begins in them, and the number of bytes from one
            row of the rectangle to the next. Beside it there are at most 128 columns more, above and below it nothing.

        Raises:
            ValueError: libjpeg refuses `data` or warns about it, its samples do not have 8 bits, it cannot be scaled
                (as lossless images), `box` is not inside the image, or `channels` is 1 and the image is not grey.
            MemoryError: There is not enough memory.
        """

    def rgb_to_rgbx(self, data: Buffer, row: int, left: int, top: int, width: int, height: int, /) -> bytes:
        """Copies a rectangle of an image with three bytes per pixel to four bytes per pixel.

        Args:
            data: The pixels of the image, uint8 [height of the image * row * 3].
            row: Pixels in a row of the image.
            left: Left edge of the rectangle, in pixels.
            top: Top edge of the rectangle, in pixels.
            width: Width of the rectangle, in pixels.
            height: Height of the rectangle, in pixels.

        Raises:
            ValueError: The rectangle is not inside the image.
        """

    def rgbx_to_rgb(
        self, image: object, width: int, height: int, mirrored: bool, out: npt.NDArray[np.uint8], /
    ) -> None:
        """Writes an image with four bytes per pixel into `out` with three bytes per pixel.

        Args:
            image: The pixels, uint8 [height * width * 4], or the array capsule of Pillow's ``__arrow_c_array__``.
            width: Width of the image, in pixels.
            height: Height of the image, in pixels.
            mirrored: Exchange left and right.
            out: The result, uint8 [height, width, 3], writable and contiguous.

        Raises:
            ValueError: `image` or `out` has a different size, or they overlap.
        """

    def copy_pixels(
        self, image: npt.NDArray[np.uint8], mirrored: bool, past_caches: bool, out: npt.NDArray[np.uint8], /
    ) -> None:
        """Copies an image into `out`.

        Args:
            image: The pixels, uint8 [height, width, channels]. There may be gaps between rows, but not within them.
            mirrored: Exchange left and right; only for one or three channels.
            past_caches: Write straight to memory. This is faster if another core reads the result, or this one reads it
                much later.
            out: The result, uint8 [height, width, channels], writable and contiguous.

        Raises:
            ValueError: `image` or `out` has a different shape or size, or they overlap.
        """

    def copy_records(
        self,
        shards: Sequence[Buffer],
        places: npt.NDArray[np.void],
        check: bool,
        resample: int,
        style: int,
        out: npt.NDArray[np.uint8],
        current: Buffer,
        /,
    ) -> bool:
        """Copies a rectangle out of each of several raw records, resized if `places` give it another size.

        It writes past the caches, as `copy_pixels` does. It stops at the first record that is not valid: the record
        lies outside its shard, its size or its ``.npy`` header does not match the size of the image, the rectangle
        reaches outside the image, or the checksum differs. It also stops at the first record that it cannot resize, and
        does nothing at all if `check` is true and the processor has no instruction for crc32c.

        Args:
            shards: The bytes of the shards.
            places: What to copy and where to: `packtrain._codec.native.places.PLACE` [records].
            check: Compare the records with their checksums.
            resample: The filter for resizing, as in `PIL.Image.Resampling`: 2 is bilinear, 3 is bicubic. Images are
                resized only with these two filters, and only if they have three channels.
            style: Whose pixels the filter reproduces: 0 for pillow-simd's, 1 for those of Pillow up to 12, 2 for those
                of Pillow 13 and later.
            out: The results, uint8 [any, height, width, channels] with one or three channels, writable and contiguous.
            current: The row that is being read, int64 [1], writable: other processes may watch it.

        Returns:
            True if all records were copied; False if it stopped early.

        Raises:
            ValueError: `places`, `out` or `current` has a different shape or dtype, or `out` overlaps a shard.
            MemoryError: There is not enough memory.
        """

    def take_rows(
        self,
        columns: Sequence[npt.NDArray[Any]],
        counts: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        out: npt.NDArray[Any],
        /,
    ) -> None:
        """Takes entries of a column that lies in several arrays, such as those of the segments of a dataset.

        Args:
            columns: The arrays, contiguous. Their entries are as large as those of `out`.
            counts: How many rows belong to each of them, int64 [columns]; their sum is the number of rows.
            rows: First the rows of the first array, then those of the second one, and so on, int64 [rows].
            out: Gets the entries, [rows, ...], writable and contiguous.

        Raises:
            ValueError: There is no such row, the arrays do not have these sizes, or `out` overlaps one of the others.
        """

    def hash_keys(
        self,
        offsets: npt.NDArray[np.int64],
        texts: npt.NDArray[np.uint8],
        seed: int,
        number: int,
        out: npt.NDArray[np.uint64],
        /,
    ) -> None:
        """Writes the hashes of keys, which docs/format-splits.md specifies.

        Args:
            offsets: Where the keys begin, and where the last one ends, int64 [n + 1], contiguous.
            texts: Their bytes, contiguous.
            seed: Any number of 64 bits.
            number: Tells keys of one kind from those of another.
            out: Gets the hashes, uint64 [n], writable and contiguous.

        Raises:
            ValueError: The arrays do not have these sizes, `offsets` do not ascend or lead out of `texts`, or `out`
                overlaps one of the others.
        """

    def has_repeats(self, hashes: npt.NDArray[np.uint64], /) -> bool:
        """Finds out whether two of many hashes are the same.

        Args:
            hashes: The hashes, uint64 [n], contiguous.

        Raises:
            ValueError: `hashes` is something else.
            MemoryError: There is not enough memory.
        """

    def lookup(
        self, image: npt.NDArray[np.uint8], table: npt.NDArray[Any], planes: bool, out: npt.NDArray[Any], /
    ) -> None:
        """Writes for each byte of an image the number that a table holds for it.

        Args:
            image: The pixels, uint8 [height, width, channels]. There may be gaps between rows, but not within them.
            table: Numbers of 2, 4 or 8 bytes, [channels, 256], contiguous.
            planes: True for one channel after the other; False for one pixel after the other, written past the caches.
            out: The result, numbers of the table's size, [channels, height, width] or [height, width, channels],
                writable and contiguous.

        Raises:
            ValueError: `image`, `table` or `out` has a different shape or size, or `out` overlaps one of the others.
            MemoryError: There is not enough memory.
        """

    def unfilter(self, rows: Buffer, width: int, out: npt.NDArray[np.uint8], /) -> None:
        """Undoes the filters of a PNG's rows, of one byte per pixel.

        Args:
            rows: What zlib makes of the file's data: for each row the number of its filter, and `width` bytes.
            width: Width of the image, in pixels.
            out: The result, uint8 [height, width], writable and contiguous.

        Raises:
            ValueError: `rows` or `out` has a different size, they overlap, or a row has an unknown filter.
            MemoryError: There is not enough memory.
        """

    def resize_pixels(
        self,
        image: npt.NDArray[np.uint8],
        source: tuple[int, int, int, int],
        target: tuple[int, int, int, int],
        resample: int,
        style: int,
        mirrored: bool,
        past_caches: bool,
        out: npt.NDArray[np.uint8],
        /,
    ) -> None:
        """Resizes an image as Pillow does, or computes a part of the result from a part of the image.

        Args:
            image: The pixels, uint8 [height, width, 3]. There may be gaps between rows, but not within them.
            source: Width and height of the whole image, and left and top of `image` in it, in pixels.
            target: Width and height to which the whole image is resized, and left and top of `out` in that, in pixels.
            resample: The filter; see `copy_records`.
            style: Whose pixels the filter reproduces; see `copy_records`.
            mirrored: Exchange left and right of `out`.
            past_caches: Write straight to memory; see `copy_pixels`.
            out: The result, uint8 [height, width, 3], writable and contiguous.

        Raises:
            ValueError: `image` or `out` has a different shape or does not lie within its whole, they overlap, `out`
                depends on pixels outside `image`, or this processor has no instructions for the filter.
            MemoryError: There is not enough memory.
        """

    def brighten(self, pixels: npt.NDArray[np.uint8], factor: float, /) -> None:
        """Blends an image with black, as `PIL.ImageEnhance.Brightness` does.

        Args:
            pixels: The image, uint8 [height, width, channels] with one or three channels, writable and contiguous. It
                is changed in place.
            factor: 0 is black, 1 the image.

        Raises:
            ValueError: `pixels` is not such an array, or `factor` is not finite.
        """

    def contrast(self, pixels: npt.NDArray[np.uint8], factor: float, style: int, /) -> None:
        """Blends an image with the mean of its grey values, as `PIL.ImageEnhance.Contrast` does.

        Args:
            pixels: The image; see `brighten`.
            factor: 0 is the mean, 1 the image.
            style: Whose grey values: 0 for pillow-simd's, 1 for Pillow's.

        Raises:
            ValueError: As `brighten`, or `style` is unknown.
        """

    def saturate(self, pixels: npt.NDArray[np.uint8], factor: float, style: int, /) -> None:
        """Blends an image with its grey version, as `PIL.ImageEnhance.Color` does.

        Args:
            pixels: The image; see `brighten`.
            factor: 0 is grey, 1 the image.
            style: See `contrast`.

        Raises:
            ValueError: As `contrast`.
        """

    def turn_hues(self, pixels: npt.NDArray[np.uint8], shift: int, /) -> None:
        """Adds to the hues of an image, as they are in Pillow's mode HSV, and converts it back.

        Args:
            pixels: The image; see `brighten`.
            shift: What is added, modulo 256; 255 is about a whole turn.

        Raises:
            ValueError: As `brighten`.
        """

    def map_values(self, pixels: npt.NDArray[np.uint8], table: Buffer, /) -> None:
        """Replaces each value of an image by another one.

        Args:
            pixels: The image; see `brighten`.
            table: The new values, uint8 [256].

        Raises:
            ValueError: As `brighten`, or `table` does not have 256 bytes.
        """

    def stretch_values(self, pixels: npt.NDArray[np.uint8], /) -> None:
        """Stretches the values of each channel to those from 0 to 255, as `PIL.ImageOps.autocontrast` does.

        Args:
            pixels: The image; see `brighten`.

        Raises:
            ValueError: As `brighten`.
        """

    def equalize_values(self, pixels: npt.NDArray[np.uint8], /) -> None:
        """Equalises the histogram of each channel, as `PIL.ImageOps.equalize` does.

        Args:
            pixels: The image; see `brighten`.

        Raises:
            ValueError: As `brighten`.
        """

    def box_blur(self, image: npt.NDArray[np.uint8], sigma: float, out: npt.NDArray[np.uint8], /) -> None:
        """Blurs an image as Pillow's `ImageFilter.GaussianBlur` does, by three box filters along each axis.

        Args:
            image: The pixels, uint8 [height, width, 1 or 3], contiguous.
            sigma: Standard deviation in pixels, which Pillow calls the radius.
            out: The result, uint8 of the same shape, writable and contiguous.

        Raises:
            ValueError: `image` or `out` has a different shape, they overlap, or `sigma` is too large.
            MemoryError: There is not enough memory.
        """

    def gaussian_blur(
        self,
        image: npt.NDArray[np.uint8],
        across: npt.NDArray[np.float32],
        down: npt.NDArray[np.float32],
        out: npt.NDArray[np.uint8],
        /,
    ) -> None:
        """Convolves an image, mirrored at its edges, with a symmetric kernel: down first, then across.

        Args:
            image: The pixels, uint8 [height, width, 1 or 3], contiguous.
            across: Weights along a row: that of the centre, then those of the pixels on either side, float32 [any].
            down: Weights along a column, likewise.
            out: The result, uint8 of the shape of `image`, writable and contiguous.

        Raises:
            ValueError: `image` or `out` has a different shape, `out` overlaps one of the others, the weights are not
                float32, or the kernel reaches further than the image.
            MemoryError: There is not enough memory.
        """

    def sharpness(self, image: npt.NDArray[np.uint8], factor: float, out: npt.NDArray[np.uint8], /) -> None:
        """Blends an image with a smoothed one, as Pillow's `ImageEnhance.Sharpness` does.

        Args:
            image: The pixels, uint8 [height, width, 1 or 3], contiguous.
            factor: 0 for the smoothed image, 1 for the image itself, more for a sharper one.
            out: The result, uint8 of the same shape, writable and contiguous.

        Raises:
            ValueError: `image` or `out` has a different shape, or they overlap.
            MemoryError: There is not enough memory.
        """

    def mean_of_images(
        self, images: npt.NDArray[np.uint8], weights: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], /
    ) -> None:
        """Adds up images, each times its weight, in float32 and in their order.

        Args:
            images: The images, uint8 [images, ...], contiguous.
            weights: float32 [images], contiguous.
            out: The sums without their fractions, at most 255: uint8 [...], writable and contiguous.

        Raises:
            ValueError: `images`, `weights` or `out` has a different size, or `out` overlaps one of the others.
        """

    def blend_images(self, pixels: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8], share: float, /) -> None:
        """Blends an image with another one, as `PIL.Image.blend` does.

        Args:
            pixels: The image, uint8 [height, width, 1 or 3], writable and contiguous. It is changed in place.
            other: The other one, uint8 of the same shape, contiguous.
            share: 0 is the image, 1 the other one.

        Raises:
            ValueError: `pixels` or `other` has a different shape, or they overlap.
        """

    def warp(
        self,
        image: npt.NDArray[np.uint8],
        coefficients: tuple[float, ...],
        resample: int,
        fill: Buffer,
        out: npt.NDArray[np.uint8],
        /,
    ) -> None:
        """Moves pixels along lines, as Pillow's `Image.transform` does.

        Args:
            image: The pixels, uint8 [height, width, 1, 3 or 4], contiguous.
            coefficients: Six for an affine map, eight for a perspective, as Pillow has them.
            resample: 0 for the nearest pixel, 2 for bilinear, 3 for bicubic; with four channels only 0.
            fill: The colour outside the image, one byte for each channel.
            out: The result, uint8 [any, any, channels], writable and contiguous. Its shape is the new size.

        Raises:
            ValueError: `image`, `coefficients`, `fill` or `out` has a different shape, or the images overlap, or
                there is no such filter.
            MemoryError: There is not enough memory.
        """


def _imported() -> tuple[Extension | None, str]:
    """The extension, or None and the reason."""
    try:
        module = cast(Extension, importlib.import_module(f"{__name__}._extension"))
    except ModuleNotFoundError:
        return None, "it could not be built when packtrain was installed"
    except ImportError as error:
        return None, f"it was built, but cannot be loaded: {error}"
    problem = fault(module)
    if problem is None:
        return module, ""
    return None, f"it was built with {module.LIBJPEG}, and fails its own test with {module.LOADED}: {problem}"


_found: Final = _imported()
extension: Final = _found[0]
"""The extension, or None if it was not built or does not work here."""
absence: Final = _found[1]
"""Why `extension` is None, as the end of a sentence; empty if it is not."""


def require_extension(purpose: str, otherwise: str = "") -> Extension:
    """The extension, for callers that cannot work without it.

    Args:
        purpose: What needs the extension, as the beginning of a sentence.
        otherwise: What can be done without it, as the end of a sentence.

    Raises:
        MissingDependency: The extension was not built, or does not work here.
    """
    if extension is None:
        way_out = f"; or {otherwise}" if otherwise else ""
        raise MissingDependency(
            f"{purpose} needs packtrain's C extension, but {absence}. Run `{build_command()}`{way_out}"
        )
    return extension
