"""Turns a source file into the bytes of a record, for each store mode. Refuses files that cannot be trained on."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from packtrain._codec.cut import without_table
from packtrain._codec.jpeg_markers import frame_header, too_many_scans
from packtrain._codec.native import extension, require_extension
from packtrain._codec.pillow import (
    exceeds_limit,
    file_like,
    has_pillow,
    misfit,
    open_image,
    pillow_version,
    require_pillow,
    whole_images_only,
)
from packtrain._codec.record_forms import FORMS
from packtrain._core.errors import PacktrainError
from packtrain._core.options import ResizeRule, StoreOptions
from packtrain._core.store_modes import StoreMode

from .probe import ImageHeader, probe, probe_segments
from .sources import Refused

if TYPE_CHECKING:
    from PIL.Image import Image

# The number is raised whenever the transcoder gives other bytes for the same image.
_TRANSCODER: Final = "transcoder 1"
_COEFFICIENTS: Final = "coefficients 1"
_OTHERWISE: Final = "use --store verbatim, which keeps files as they are"
_ORIENTATION_TAG: Final = 0x0112
UPRIGHT: Final = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""Transpose operation that turns an image of each EXIF orientation upright, as in PIL.ImageOps.exif_transpose."""
_SUFFIXES: Final = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}
_MAGIC: Final = {
    b"\xff\xd8": "jpg",
    b"\x89PNG\r\n\x1a\n": "png",
    **{form.magic: form.extension for form in FORMS.values()},
}
_PALETTES: Final = ("P", "PA")
PALETTE_REMARK: Final = "a palette image: mode L is the grey of its colours, not its indices"


class StoredImage(NamedTuple):
    """An image as it is stored.

    Attributes:
        payload: Bytes of the record; for store mode raw, only the pixels (uint8, height x width x channels).
        header: Extension, width and height of the stored image, and EXIF orientation of the source file.
        source_size: Width and height of the source file's pixels.
        remarks: What the user should know about this image. Many images have the same remarks, so they can be counted.
    """

    payload: bytes
    header: ImageHeader
    source_size: tuple[int, int]
    remarks: tuple[str, ...] = ()


def store_image(data: bytes, options: StoreOptions, *, orientation: int | None = None) -> StoredImage:
    """Converts the bytes of a source file to the image that is stored.

    Args:
        data: Content of the whole file.
        options: How pixels are stored.
        orientation: EXIF orientation of pixels that are stored anew, if that is known; None for what the file says.

    Raises:
        Refused: The image cannot be decoded, resized or encoded, or its pixels do not fit into 8 bits.
        MemoryError: There is not enough memory for this image.
        MissingDependency: A package that the store mode needs is not installed.
    """
    if options.keeps_pixels:
        return _kept(data, options)
    source = _decode(data, options.mode)
    if orientation is not None:
        source = source._replace(header=source.header._replace(orientation=orientation))
    return _converted(source, options)


def store_pixels(
    pixels: bytes, size: tuple[int, int], orientation: int, mode: str, options: StoreOptions
) -> StoredImage:
    """Converts decoded pixels to the image that is stored.

    Args:
        pixels: uint8, height x width x channels.
        size: Width and height.
        orientation: EXIF orientation of these pixels.
        mode: Their mode, ``"RGB"`` or ``"L"``.
        options: How they are stored; not in a mode that keeps files.

    Raises:
        Refused: They cannot be resized or encoded.
        MemoryError: There is not enough memory for this image.
        MissingDependency: A package that the store mode needs is not installed.
    """
    image = require_pillow().frombytes(mode, size, pixels).convert(options.mode)
    return _converted(_Decoded(image, ImageHeader("npy", *size, orientation), []), options)


def store_picture(image: Image, options: StoreOptions) -> StoredImage:
    """Converts a PIL image to the image that is stored, as `store_pixels` does.

    Raises:
        Refused: Its pixels do not fit into 8 bits, or cannot be read, resized or encoded.
        MemoryError: There is not enough memory for this image.
        MissingDependency: A package that the store mode needs is not installed.
    """
    with whole_images_only(), faults_of_the_image("Pillow refuses it"):
        source = _loaded(image, options.mode)
    return _converted(source, options)


def extension_of(data: bytes) -> str:
    """The usual file extension of an encoded image, without the dot, by its first bytes.

    Raises:
        Refused: Pillow does not know what it is.
    """
    for magic, name in _MAGIC.items():
        if data.startswith(magic):
            return name
    with faults_of_the_image("Pillow refuses it"), open_image(data) as image:
        return _extension(image)


def encoder(options: StoreOptions) -> str | None:
    """Names the libraries that, apart from the source files, decide the stored bytes; None if there are none.

    Raises:
        MissingDependency: A package that the store mode needs is not installed, or does not work.
    """
    names = [] if options.keeps_pixels else [pillow_version()]
    # Records that only Pillow can write may do without the extension.
    if options.store_mode.transcodes and (options.keeps_pixels or extension is not None):
        module = require_extension(_purpose(options.store_mode), _OTHERWISE)
        names.append(f"{_COEFFICIENTS if options.store in FORMS else _TRANSCODER} ({module.LIBJPEG})")
    return ", ".join(names) or None


def _kept(data: bytes, options: StoreOptions) -> StoredImage:
    """Store modes that keep the pixels of the file."""
    header, remarks = None if options.check else probe(data), []
    if header is None and not options.check and not has_pillow():
        header = _decodable(data)
    if header is None or exceeds_limit(header.width, header.height):
        source = _decode(data, options.mode)
        header, remarks = source.header, source.remarks
    size = header.width, header.height
    if not options.store_mode.transcodes:
        return StoredImage(data, header, size, tuple(remarks))
    if header.extension != "jpg":
        return StoredImage(data, header, size, (*remarks, _unlike(options, f"not a JPEG ({header.extension})")))
    record, reason = transcoded(data, options.store_mode)
    if record is not None and options.check and not _is_same(record, data, options.store_mode):
        record, reason = None, "transcoding would change its pixels"
    if record is None:
        # The file may have brought a table of restart intervals along, which says nothing of what libjpeg reads.
        return StoredImage(without_table(data), header, size, (*remarks, _unlike(options, reason)))
    return StoredImage(record, header._replace(extension=extension_of(record)), size, tuple(remarks))


def _unlike(options: StoreOptions, reason: str) -> str:
    """The remark about a record that is not what the store mode makes of JPEGs."""
    what = "not stored as coefficients" if options.store in FORMS else "not crop-ready"
    return f"{what}: {reason}"


def _decodable(data: bytes) -> ImageHeader | None:
    """The header of a JPEG that Pillow would open, and the extension reads without a warning; None for all others."""
    module = require_extension("Reading JPEGs without Pillow")
    header = probe_segments(data) if data.startswith(b"\xff\xd8") else None
    if header is None:
        return None
    try:
        module.decode(data, (0, 0, header.width, header.height), 3, 1)
        # It stops at the last pixel; Pillow and the transcoder read to the end marker.
        module.transcode(data)
    except ValueError:
        return None
    return header


def _is_same(record: bytes, jpeg: bytes, mode: StoreMode) -> bool:
    pixels = _pixels(jpeg)
    if mode.name in FORMS:
        # What the extension decodes, and the JPEG that all other decoders are given.
        module, frame = require_extension(_purpose(mode), _OTHERWISE), frame_header(jpeg)
        if frame is None or module.coefficients(record) != module.coefficients(jpeg):
            return False
        decoded, start, _ = module.decode(record, (0, 0, frame.width, frame.height), 3, 1)
        if decoded[start:] != pixels:
            return False
    return _pixels(record) == pixels


def _converted(source: _Decoded, options: StoreOptions) -> StoredImage:
    """Store modes that store the pixels of a decoded file anew."""
    image, header, remarks = source
    source_size = image.size
    if options.orientation == "apply" and header.orientation in UPRIGHT:
        with faults_of_the_image("cannot turn it upright"):
            image = image.transpose(require_pillow().Transpose[UPRIGHT[header.orientation]])
    if options.resize is not None:
        size = ResizeRule.parse(options.resize).output_size(image.width, image.height)
        if size != image.size:
            with faults_of_the_image(f"cannot resize it to {size[0]} x {size[1]}"):
                # Bilinear with antialiasing is what torchvision's Resize does to a PIL image by default.
                image = image.resize(size, require_pillow().Resampling.BILINEAR)
    raw = options.store_mode.is_raw
    header = header._replace(extension="npy" if raw else "jpg", width=image.width, height=image.height)
    if raw:
        return StoredImage(image.tobytes(), header, source_size, tuple(remarks))
    limit = options.store_mode.largest_side
    if limit is not None and max(image.size) > limit:
        raise Refused(
            f"{image.width} x {image.height} pixels do not fit into a JPEG, whose sides have at most "
            f"{limit}: resize it, or use store mode raw"
        )
    encoded = io.BytesIO()
    with faults_of_the_image("cannot encode it as a JPEG"):
        image.save(encoded, "JPEG", quality=options.quality)
    jpeg = encoded.getvalue()
    record, reason = None, "there is no C extension here"
    if extension is not None:
        record, reason = transcoded(jpeg, options.store_mode)
    if record is None:
        remarks.append(_unlike(options, reason))
    return StoredImage(jpeg if record is None else record, header, source_size, tuple(remarks))


class _Decoded(NamedTuple):
    """A decoded source file: the image in the wanted mode, the file's header, and remarks."""

    image: Image
    header: ImageHeader
    remarks: list[str]


def _decode(data: bytes, mode: str) -> _Decoded:
    pillow = require_pillow(file_like(data))
    from PIL import UnidentifiedImageError

    with warnings.catch_warnings(), whole_images_only(), faults_of_the_image("Pillow refuses it"):
        frame = frame_header(data) if data.startswith(b"\xff\xd8") else None
        if frame is not None and (reason := too_many_scans(data, frame.width, frame.height)):
            raise Refused(reason)
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
        return _loaded(image, mode)


def _loaded(image: Image, mode: str) -> _Decoded:
    """Loads an image that was opened."""
    if reason := misfit(image):
        raise Refused(reason)
    # Load first. A TIFF file is turned upright while it loads. And getexif() loads a PNG file: if that fails, a second
    # attempt to load the broken file would succeed.
    image.load()
    header = ImageHeader(_extension(image), image.width, image.height, _orientation(image))
    remarks = [PALETTE_REMARK] if mode == "L" and image.mode in _PALETTES else []
    return _Decoded(image.convert(mode), header, remarks)


def _extension(image: Image) -> str:
    kind = image.format or ""
    return _SUFFIXES.get(kind, kind.lower())


def _pixels(data: bytes) -> bytes:
    return _decode(data, "RGB").image.tobytes()


@contextmanager
def faults_of_the_image(what: str) -> Iterator[None]:
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


def transcoded(jpeg: bytes, mode: StoreMode) -> tuple[bytes | None, str]:
    """Transcodes a JPEG that Pillow reads.

    Returns:
        The record of this mode and an empty text; or None, and why this JPEG has none. Similar JPEGs get the same
        reason.

    Raises:
        MemoryError: There is not enough memory.
        MissingDependency: There is no C extension.
    """
    module = require_extension(_purpose(mode), _OTHERWISE)
    try:
        return (module.coefficient_record if mode.name in FORMS else module.transcode)(jpeg), ""
    except ValueError as error:
        return None, _reason(str(error))


def _purpose(mode: StoreMode) -> str:
    return f"Store mode {mode.name}"


def _reason(message: str) -> str:
    # libjpeg's messages begin with a capital letter, and hold numbers that differ from image to image.
    if message[:1].isupper():
        return f"libjpeg: {re.sub(r'0x[0-9a-f]+|[0-9]+', 'N', message)}"
    return message
