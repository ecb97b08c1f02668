"""Turns a source file into the bytes of a record, for each store mode. Refuses files that cannot be trained on."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import warnings
from typing import TYPE_CHECKING, Final, NamedTuple

from packtrain._codec.cut import without_table
from packtrain._codec.native import extension, require_extension
from packtrain._codec.pillow import pillow_version, require_pillow
from packtrain._core.npy import npy_header
from packtrain._core.options import ResizeRule, StoreOptions

from .probe import ImageHeader, probe

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
_MISSING: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_LARGEST: Final = 1 << 31
# The number is raised whenever the transcoder gives other bytes for the same image.
_TRANSCODER: Final = "transcoder 1"


class Refused(Exception):
    """A source file cannot become a record.

    The message says why. It ends up in rejects.jsonl, so it holds nothing that differs between runs.
    """


class StoredImage(NamedTuple):
    """An image as it is stored.

    Attributes:
        payload: Bytes of the record; for store mode raw, only the pixels (uint8, height x width x channels).
        header: Extension, width and height of the stored image, and EXIF orientation of the source file.
    """

    payload: bytes
    header: ImageHeader


def read_source(path: str) -> bytes:
    """Reads a source file.

    Raises:
        Refused: The file is missing, empty, too large, or not a regular file.
        OSError: Reading fails for another reason, which is not the fault of the image.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO would block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _MISSING:
            raise Refused(os.strerror(error.errno or 0)) from error
        if error.errno == errno.ENXIO:
            raise Refused("not a regular file") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Refused("a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file")
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
        Refused: Pillow cannot decode the file.
    """
    if options.keeps_pixels:
        header = None if options.check else probe(data)
        if header is None:
            image, suffix, orientation = _decode(data, "RGB")
            header = ImageHeader(suffix, image.width, image.height, orientation)
        return StoredImage(_crop_ready(data, options) if options.store == "crop-ready" else data, header)
    image, _, orientation = _decode(data, options.mode, apply_orientation=options.orientation == "apply")
    if options.resize is not None:
        size = ResizeRule.parse(options.resize).output_size(image.width, image.height)
        if size != image.size:
            # Bilinear with antialiasing is what torchvision's Resize does to a PIL image by default.
            image = image.resize(size, require_pillow().Resampling.BILINEAR)
    if options.store == "raw":
        return StoredImage(image.tobytes(), ImageHeader("npy", image.width, image.height, orientation))
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=options.quality)
    payload = encoded.getvalue() if extension is None else extension.transcode(encoded.getvalue())
    return StoredImage(payload, ImageHeader("jpg", image.width, image.height, orientation))


def as_npy(image: StoredImage, channels: int) -> bytes:
    """Returns a raw image as the bytes of an `.npy` file, uint8 [height, width, channels]."""
    return npy_header("|u1", (image.header.height, image.header.width, channels)) + image.payload


def encoder(options: StoreOptions) -> str | None:
    """Names the libraries that, apart from the source files, decide the stored bytes; None for store mode verbatim.

    Raises:
        MissingDependency: A package that the store mode needs is not installed.
    """
    if options.store == "verbatim":
        return None
    if options.store == "crop-ready":
        module = require_extension("Store mode crop-ready (--store verbatim does not: it keeps files as they are)")
        return f"{_TRANSCODER} ({module.LIBJPEG})"
    if options.store == "jpeg" and extension is not None:
        return f"{pillow_version()}, {_TRANSCODER} ({extension.LIBJPEG})"
    return pillow_version()


def _crop_ready(data: bytes, options: StoreOptions) -> bytes:
    """Returns the crop-ready record of a JPEG that can be transcoded, and any other data as it is.

    A JPEG that cannot be transcoded loses the table of restart intervals that it may have brought along.
    """
    if not data.startswith(b"\xff\xd8"):
        return data
    try:
        record: bytes = require_extension("Store mode crop-ready").transcode(data)
    except ValueError:
        # This kind of JPEG has no crop-ready form, or libjpeg would have to guess a part of it. The caller has already
        # made sure that Pillow reads it as an image.
        return without_table(data)
    if options.check and _decode(record, "RGB")[0].tobytes() != _decode(data, "RGB")[0].tobytes():
        return without_table(data)
    return record


def _decode(data: bytes, mode: str, *, apply_orientation: bool = False) -> tuple[Image, str, int]:
    """Returns the decoded image in `mode`, the usual extension of its format, and its EXIF orientation."""
    pillow = require_pillow()
    from PIL import UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # Training code can read a picture that Pillow only warns about.
            warnings.simplefilter("ignore")
            image = pillow.open(io.BytesIO(data))
            suffix = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}.get(image.format, image.format.lower())
            # Load first. A TIFF file is turned upright while it loads. And getexif() loads a PNG file: if that fails, a
            # second attempt to load the broken file would succeed.
            image.load()
            orientation = _orientation(image)
            image = image.convert(mode)
    except UnidentifiedImageError as error:
        raise Refused(f"not an image that Pillow knows; it begins with {data[:16]!r}") from error
    except MemoryError:
        raise
    except Exception as error:
        # Pillow's plugins raise any kind of error. The data is in memory, so the content must be at fault.
        reason = re.sub(r"0x[0-9a-f]{6,}", "0x...", str(error))
        raise Refused(f"Pillow refuses it: {type(error).__name__}: {reason}") from error
    if apply_orientation and orientation in _UPRIGHT:
        image = image.transpose(pillow.Transpose[_UPRIGHT[orientation]])
    return image, suffix, orientation


def _orientation(image: Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:
        # Broken EXIF data is no reason to refuse an image, since training code does not read it.
        return 1
    return value if value in range(1, 9) else 1
