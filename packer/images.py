"""Turns a source file into the bytes of a record, for each store mode. Refuses files that cannot be trained on."""

from __future__ import annotations

import errno
import io
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from packtrain._codec.cut import without_table
from packtrain._codec.native import extension
from packtrain._codec.pillow import (
    exceeds_limit,
    misfit,
    open_image,
    pillow_version,
    require_pillow,
    whole_images_only,
)
from packtrain._core.errors import PacktrainError
from packtrain._core.npy import npy_header
from packtrain._core.opening import open_regular
from packtrain._core.options import LARGEST_JPEG_SIDE, ResizeRule, StoreOptions

from .probe import ImageHeader, probe
from .transcoding import transcoded, transcoder

if TYPE_CHECKING:
    from PIL.Image import Image

_ORIENTATION_TAG: Final = 0x0112
_UPRIGHT: Final = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""Transpose operation that turns an image of each EXIF orientation upright, as in PIL.ImageOps.exif_transpose."""
_NO_FILE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL)
"""Errors by which `open_regular` says that there is no regular file of this name."""
_LARGEST: Final = 1 << 31
_SUFFIXES: Final = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}
_PALETTES: Final = ("P", "PA")
PALETTE_REMARK: Final = "a palette image: mode L is the grey of its colours, not its indices"


class Refused(Exception):
    """A source file cannot become a record.

    The message says why. It ends up in rejects.jsonl, so it holds nothing that differs between runs.
    """


class StoredImage(NamedTuple):
    """An image as it is stored.

    Attributes:
        payload: Bytes of the record; for store mode raw, only the pixels (uint8, height x width x channels).
        header: Extension, width and height of the stored image, and EXIF orientation of the source file.
        remarks: What the user should know about this image. Many images have the same remarks, so they can be counted.
    """

    payload: bytes
    header: ImageHeader
    remarks: tuple[str, ...] = ()


def read_source(path: str) -> bytes:
    """Reads a source file.

    Raises:
        Refused: The file is missing, empty, too large, or not a regular file.
        OSError: Reading fails for another reason, which is not the fault of the image.
    """
    try:
        descriptor = open_regular(path)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise Refused(error.strerror or os.strerror(error.errno)) from error
        raise
    try:
        status = os.fstat(descriptor)
        if status.st_size >= _LARGEST:
            raise Refused(f"larger than {_LARGEST - 1} bytes")
        data = os.read(descriptor, status.st_size + 1)
        if len(data) != status.st_size:
            pieces = [data]
            while pieces[-1]:
                pieces.append(os.read(descriptor, _LARGEST))
            data = b"".join(pieces)
    finally:
        os.close(descriptor)
    if not data:
        raise Refused("empty file")
    return data


def store_image(data: bytes, options: StoreOptions) -> StoredImage:
    """Converts the bytes of a source file to the image that is stored.

    Args:
        data: Content of the whole file.
        options: How pixels are stored.

    Raises:
        Refused: The image cannot be decoded, resized or encoded, or its pixels do not fit into 8 bits.
        MemoryError: There is not enough memory for this image.
        MissingDependency: A package that the store mode needs is not installed.
    """
    return _kept(data, options) if options.keeps_pixels else _converted(data, options)


def as_npy(image: StoredImage, channels: int) -> bytes:
    """Returns a raw image as the bytes of an `.npy` file, uint8 [height, width, channels]."""
    return npy_header("|u1", (image.header.height, image.header.width, channels)) + image.payload


def encoder(options: StoreOptions) -> str | None:
    """Names the libraries that, apart from the source files, decide the stored bytes; None for store mode verbatim.

    Raises:
        MissingDependency: A package that the store mode needs is not installed, or does not work.
    """
    if options.store == "verbatim":
        return None
    if options.store == "crop-ready":
        return transcoder()
    if options.store == "jpeg" and extension is not None:
        return f"{pillow_version()}, {transcoder()}"
    return pillow_version()


def _kept(data: bytes, options: StoreOptions) -> StoredImage:
    """Store modes that keep the pixels of the file."""
    header, remarks = None if options.check else probe(data), []
    if header is None or exceeds_limit(header.width, header.height):
        source = _decode(data, options.mode)
        header, remarks = source.header, source.remarks
    if options.store == "verbatim":
        return StoredImage(data, header, tuple(remarks))
    if header.extension != "jpg":
        return StoredImage(data, header, (*remarks, f"not crop-ready: not a JPEG ({header.extension})"))
    record, reason = transcoded(data)
    if record is not None and options.check and _pixels(record) != _pixels(data):
        record, reason = None, "transcoding would change its pixels"
    if record is None:
        # The file may have brought a table of restart intervals along, which says nothing of what libjpeg reads.
        return StoredImage(without_table(data), header, (*remarks, f"not crop-ready: {reason}"))
    return StoredImage(record, header, tuple(remarks))


def _converted(data: bytes, options: StoreOptions) -> StoredImage:
    """Store modes that decode the file and store its pixels anew."""
    image, header, remarks = _decode(data, options.mode)
    if options.orientation == "apply" and header.orientation in _UPRIGHT:
        with _faults_of_the_image("cannot turn it upright"):
            image = image.transpose(require_pillow().Transpose[_UPRIGHT[header.orientation]])
    if options.resize is not None:
        size = ResizeRule.parse(options.resize).output_size(image.width, image.height)
        if size != image.size:
            with _faults_of_the_image(f"cannot resize it to {size[0]} x {size[1]}"):
                # Bilinear with antialiasing is what torchvision's Resize does to a PIL image by default.
                image = image.resize(size, require_pillow().Resampling.BILINEAR)
    if options.store == "raw":
        return StoredImage(image.tobytes(), header._replace(extension="npy", **_size(image)), tuple(remarks))
    header = header._replace(extension="jpg", **_size(image))
    if max(image.size) > LARGEST_JPEG_SIDE:
        raise Refused(
            f"{image.width} x {image.height} pixels do not fit into a JPEG, whose sides have at most "
            f"{LARGEST_JPEG_SIDE}: resize it, or use store mode raw"
        )
    encoded = io.BytesIO()
    with _faults_of_the_image("cannot encode it as a JPEG"):
        image.save(encoded, "JPEG", quality=options.quality)
    if extension is None:
        return StoredImage(encoded.getvalue(), header, (*remarks, "not crop-ready: there is no C extension here"))
    record, reason = transcoded(encoded.getvalue())
    if record is None:
        return StoredImage(encoded.getvalue(), header, (*remarks, f"not crop-ready: {reason}"))
    return StoredImage(record, header, tuple(remarks))


class _Source(NamedTuple):
    """A decoded source file: the image in the wanted mode, the file's header, and remarks."""

    image: Image
    header: ImageHeader
    remarks: list[str]


def _decode(data: bytes, mode: str) -> _Source:
    pillow = require_pillow()
    from PIL import UnidentifiedImageError

    with warnings.catch_warnings(), whole_images_only(), _faults_of_the_image("Pillow refuses it"):
        # Training code can read a picture that Pillow only warns about.
        warnings.simplefilter("ignore")
        try:
            image = open_image(data)
        except UnidentifiedImageError as error:
            raise Refused(str(error)) from error
        except pillow.DecompressionBombError as error:
            raise Refused(
                f"Pillow refuses it: DecompressionBombError: {error} Make it smaller, or raise "
                "PIL.Image.MAX_IMAGE_PIXELS and pack from Python"
            ) from error
        kind = image.format or ""
        if reason := misfit(image):
            raise Refused(reason)
        # Load first. A TIFF file is turned upright while it loads. And getexif() loads a PNG file: if that fails, a
        # second attempt to load the broken file would succeed.
        image.load()
        orientation = _orientation(image)
        remarks = [PALETTE_REMARK] if mode == "L" and image.mode in _PALETTES else []
        image = image.convert(mode)
    return _Source(
        image, ImageHeader(_SUFFIXES.get(kind, kind.lower()), image.width, image.height, orientation), remarks
    )


def _pixels(data: bytes) -> bytes:
    return _decode(data, "RGB").image.tobytes()


def _size(image: Image) -> dict[str, int]:
    return {"width": image.width, "height": image.height}


@contextmanager
def _faults_of_the_image(what: str) -> Iterator[None]:
    """Turns an error of Pillow's into `Refused`. The data is in memory, so the content must be at fault."""
    try:
        yield
    except (Refused, MemoryError, PacktrainError):
        raise
    except Exception as error:
        # Pillow's plugins raise any kind of error.
        reason = re.sub(r"0x[0-9a-f]{6,}", "0x...", str(error))
        raise Refused(f"{what}: {type(error).__name__}: {reason}") from error


def _orientation(image: Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:
        # Broken EXIF data is no reason to refuse an image, since training code does not read it.
        return 1
    return value if value in range(1, 9) else 1
