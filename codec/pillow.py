"""Pillow or pillow-simd: two distributions of the package PIL. A user installs one of them, or none.

Without either, the C extension decodes JPEGs by itself; whatever else needs an image asks here, and is refused.

Which files are images, how large they may be, and which pixels fit into 8 bits is decided here, once for packing,
reading and verifying.
"""

from __future__ import annotations

import functools
import importlib
import io
import struct
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from packtrain._core.errors import MissingDependency
from packtrain._core.installing import extra_command

from .jpeg_markers import too_many_scans
from .record_forms import as_image_file

if TYPE_CHECKING:
    from PIL.Image import Image

# The bytes of an image file.
Encoded = bytes | bytearray | memoryview

# The commonest first, because Pillow asks one plugin after the other.
FORMATS: Final = {
    "JPEG": "JpegImagePlugin",
    "PNG": "PngImagePlugin",
    "WEBP": "WebPImagePlugin",
    "GIF": "GifImagePlugin",
    "BMP": "BmpImagePlugin",
    "TIFF": "TiffImagePlugin",
    "PPM": "PpmImagePlugin",
    "JPEG2000": "Jpeg2KImagePlugin",
    "AVIF": "AvifImagePlugin",
}
"""The formats that are opened, by Pillow's names, each with the module of its plugin.

Pillow knows forty more. Some of them run other programs (EPS runs Ghostscript), some have no signature, so that any
file may be taken for one, and hardly anybody trains on them.
"""
JPEGS: Final = ("JPEG", "MPO")
"""Pillow's names of a JPEG: MPO is one with further images behind it."""
_FOREIGN: Final = ((0, b"%PDF", "PDF"), (0, b"<svg", "SVG"), (4, b"ftyphei", "HEIC"), (4, b"ftypavif", "AVIF"))
_DEFAULT_LIMIT: Final = 1024 * 1024 * 1024 // 4 // 3
_WIDE: Final = {"F": "floating-point numbers", "I": "whole numbers of up to 32 bits"}


@functools.cache
def require_pillow(needed_by: str = "this step") -> ModuleType:
    """The module `PIL.Image`.

    Args:
        needed_by: What needs it.

    Raises:
        MissingDependency: Neither Pillow nor pillow-simd is installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependency(
            f"neither Pillow nor pillow-simd can be imported ({error}), which {needed_by} needs: {_advice()}"
        ) from error
    return Image


@functools.cache
def has_pillow() -> bool:
    """True if Pillow or pillow-simd can be imported."""
    try:
        require_pillow()
    except MissingDependency:
        return False
    return True


def file_like(data: Encoded) -> str:
    """Says what kind of file needs Pillow."""
    start = bytes(data[:8])
    if start.startswith(b"\xff\xd8"):
        return "a JPEG that packtrain alone does not decode for certain"
    return f"a file that is no JPEG (it begins with {start!r})"


def is_picture(value: object) -> TypeGuard[Image]:
    """True for a PIL image, of which there are none before the module is loaded."""
    loaded = sys.modules.get("PIL.Image")
    return loaded is not None and isinstance(value, loaded.Image)


def open_image(data: Encoded) -> Image:
    """Opens an encoded image of one of the `FORMATS`. Its pixels are decoded later, by Pillow's ``load``.

    Raises:
        UnidentifiedImageError: It is no such image. The message says what it is, and what to do about it.
        DecompressionBombError: It has more than twice `pixel_limit` pixels, or a JPEG has too many scans for its size.
            Above the limit itself, Pillow warns.
        ValueError: It is a damaged coefficient record.
        Exception: Whatever Pillow's plugins raise on a damaged header.
    """
    # First: a damaged coefficient record is damaged whatever is installed.
    data = as_image_file(data)
    pillow = require_pillow(file_like(data))
    from PIL import UnidentifiedImageError

    try:
        image: Image = pillow.open(io.BytesIO(data), formats=_plugins())
    except UnidentifiedImageError as error:
        raise UnidentifiedImageError(_unidentified(bytes(data[:32]))) from error
    if image.format in JPEGS:
        check_scans(data, image.width, image.height)
    return image


@contextmanager
def whole_images_only() -> Iterator[None]:
    """Makes Pillow refuse truncated images, whatever the caller has set ``ImageFile.LOAD_TRUNCATED_IMAGES`` to."""
    if not has_pillow():
        yield
        return
    from PIL import ImageFile

    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def pixel_limit() -> int | None:
    """Pillow's ``Image.MAX_IMAGE_PIXELS``, which users may change; None if there is no limit."""
    # Nobody has changed the limit of a module that is not loaded.
    loaded = sys.modules.get("PIL.Image")
    return _DEFAULT_LIMIT if loaded is None else loaded.MAX_IMAGE_PIXELS


def set_pixel_limit(limit: int | None) -> None:
    """Sets Pillow's ``Image.MAX_IMAGE_PIXELS``, for a worker process that is to have the limit of its parent."""
    if limit != pixel_limit():
        pillow: Any = require_pillow()
        pillow.MAX_IMAGE_PIXELS = limit


def exceeds_limit(width: int, height: int) -> bool:
    """True if Pillow would warn about an image of this size, or refuse it."""
    limit = pixel_limit()
    return limit is not None and width * height > limit


def check_pixels(width: int, height: int) -> None:
    """Does what ``Image.open`` does for an image of this size: for images of which only a part is decoded.

    Warns with Pillow's DecompressionBombWarning above the limit.

    Raises:
        DecompressionBombError: The image has more than twice as many pixels as the limit; without Pillow, a ValueError.
    """
    limit = pixel_limit()
    if limit is None or width * height <= limit:
        return
    text = f"an image of {width} x {height} pixels exceeds the limit of {limit} pixels (PIL.Image.MAX_IMAGE_PIXELS)"
    if width * height > 2 * limit:
        raise _bomb_error()(f"{text} more than twice")
    warnings.warn(text, require_pillow().DecompressionBombWarning if has_pillow() else RuntimeWarning, stacklevel=2)


def check_scans(data: Encoded, width: int, height: int) -> None:
    """Refuses a JPEG of this size that would take too long to decode. Pillow does not.

    Raises:
        DecompressionBombError: It has too many scans; without Pillow, a ValueError.
    """
    if reason := too_many_scans(data, width, height):
        raise _bomb_error()(reason)


def _bomb_error() -> type[Exception]:
    return require_pillow().DecompressionBombError if has_pillow() else ValueError


def misfit(image: Image) -> str | None:
    """Why the pixels of an image cannot become 8 bits per channel; None if they can.

    Pillow's ``convert`` clips wider pixels at 0 and 255 instead of scaling them: most pictures become white or black.
    """
    if image.mode == "LAB":
        what = "in the colour space L*a*b*, which not every Pillow converts: convert it to RGB first"
    elif image.mode in _WIDE:
        what = f"{_WIDE[image.mode]}, of which Pillow would clip all that is not between 0 and 255"
    elif image.mode.startswith("I;"):
        what = "16 bits wide, of which Pillow would clip all above 255"
    else:
        return None
    scale = ": convert it to 8 bits first, with a scale that suits your data, or store its numbers in a field of arrays"
    return f"its pixels are {what}{'' if image.mode == 'LAB' else scale}"


@functools.cache
def _plugins() -> tuple[str, ...]:
    """Those of the `FORMATS` that this Pillow knows."""
    pillow = require_pillow()
    for module in FORMATS.values():
        try:
            importlib.import_module(f"PIL.{module}")
        except ImportError:
            # An older Pillow: files of this format are refused by name.
            continue
    return tuple(name for name in FORMATS if name in pillow.OPEN)


def _unidentified(start: bytes) -> str:
    """Describe a file that begins with `start` and is not an image of one of the `FORMATS`."""
    name = next((name for at, magic, name in _FOREIGN if start[at:].startswith(magic)), None)
    claimed = {} if name else _claimed(start)
    if known := next((name for name, opened in claimed.items() if opened), None):
        return f"it begins like a file of format {known}, but Pillow cannot make sense of its header"
    name = name or next(iter(claimed), None)
    if name is None:
        return f"not an image that Pillow knows; it begins with {start[:16]!r}"
    who = "the Pillow that is installed cannot read" if name in FORMATS else "packtrain does not open"
    return f"a file of format {name}, which {who}: convert it to PNG or JPEG"


def _claimed(start: bytes) -> dict[str, bool]:
    """The formats that a file may be of by its first bytes. True for those that this Pillow opens for packtrain."""
    pillow = require_pillow()
    pillow.init()
    found = {}
    for name, (_, accept) in pillow.OPEN.items():
        try:
            claimed = accept is not None and accept(start)
        except (SyntaxError, IndexError, TypeError, struct.error):
            # As Pillow does: the file is too short for this plugin.
            continue
        if claimed:
            # A plugin returns a text if the format is known but was not built in.
            found[str(name)] = name in _plugins() and not isinstance(claimed, str)
    return found


def pillow_version() -> str:
    """Return the installed Pillow and its libjpeg, for example ``"Pillow 12.1.1, libjpeg-turbo 3.1.0"``."""
    require_pillow()
    import PIL
    from PIL import features

    name = "pillow-simd" if "post" in PIL.__version__ else "Pillow"
    turbo = features.version("libjpeg_turbo")
    return (
        f"{name} {PIL.__version__}, {f'libjpeg-turbo {turbo}' if turbo else 'libjpeg ' + str(features.version('jpg'))}"
    )


@functools.cache
def pillow_conflict() -> str | None:
    """A warning if Pillow and pillow-simd are both installed, since they overwrite each other's files; None if not."""
    found = [name for name in ("pillow", "pillow-simd") if _is_installed(name)]
    if len(found) < 2:
        return None
    return (
        "Pillow and pillow-simd are both installed and have overwritten each other's files. Keep one: "
        "`pip uninstall -y pillow pillow-simd`, then " + _advice()
    )


def _advice() -> str:
    return (
        f'install one of the two: `{extra_command("pillow")}` (a wheel), or the faster `CC="cc -mavx2" '
        f"{extra_command('simd')}` (compiled here; needs a C compiler and zlib and libjpeg headers)"
    )


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
