"""Masks: maps of class indices, [height, width], which are turned and resized as the image of their sample was."""

from __future__ import annotations

import io
import warnings
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._codec.pillow import open_image, pillow_version, require_pillow, whole_images_only
from packtrain._core.options import ResizeRule, StoreOptions
from packtrain._core.schema import Field

from .images import UPRIGHT, StoredImage, faults_of_the_image
from .sources import Refused

Indices = npt.NDArray[Any]
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_DEPTH, _COLOUR = 24, 25
"""Where a PNG says how many bits a value has, and what its values are."""
_GREY, _PALETTE = 0, 3
_COLOURS: Final = {2: "RGB", 4: "grey with transparency", 6: "RGB with transparency"}
_JPEG: Final = b"\xff\xd8"


class StoredMask(NamedTuple):
    """A mask as it is stored.

    Attributes:
        payload: A PNG, or the bare values.
        width: Width in pixels.
        height: Height in pixels.
    """

    payload: bytes
    width: int
    height: int


class Frame(NamedTuple):
    """What became of a sample's image, so that the same becomes of its masks.

    Attributes:
        source_size: Width and height of the image file's pixels; None if the sample has no image.
        orientation: EXIF orientation by which the pixels were turned upright; 1 if they were not.
        resize: How the size was changed; None if it was not.
    """

    source_size: tuple[int, int] | None = None
    orientation: int = 1
    resize: ResizeRule | None = None

    @classmethod
    def of(cls, image: StoredImage, options: StoreOptions) -> Frame:
        """The frame of an image that was stored with these options."""
        orientation = image.header.orientation if options.orientation == "apply" else 1
        return cls(image.source_size, orientation, options.resize and ResizeRule.parse(options.resize))

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of what is stored, for upright pixels of `width` x `height`."""
        return (width, height) if self.resize is None else self.resize.output_size(width, height)


def store_mask(data: bytes, field: Field, frame: Frame) -> StoredMask:
    """Converts the bytes of a PNG to the mask that is stored. A PNG that need not change is stored as it is.

    Args:
        data: Content of the whole file.
        field: The field that the mask belongs to.
        frame: What became of the image of the same sample.

    Raises:
        Refused: The file holds no class indices of the field's width, or is broken, or has another size than the image.
        MemoryError: There is not enough memory for this mask.
    """
    depth = mask_depth(data)
    if depth > 8 and field.dtype == "|u1":
        raise Refused(
            f"its class indices have {depth} bits, and those of the field 8. If all are to have 16, pack into another "
            f"folder with --dtype {field.name}=uint16"
        )
    indices = _decode(data, depth)
    size = indices.shape[1], indices.shape[0]
    if frame.source_size not in (None, size):
        raise Refused(f"it has {_in_words(size)} pixels, and its image {_in_words(frame.source_size or size)}")
    stored = _resized(_turned(indices, frame.orientation), frame)
    height, width = stored.shape
    if field.encoding == "raw":
        return StoredMask(np.ascontiguousarray(stored, field.dtype).tobytes(), width, height)
    return StoredMask(data if stored is indices else _as_png(stored.astype(field.dtype)), width, height)


def mask_depth(data: bytes) -> int:
    """Returns the number of bits of a class index in a PNG, by its first bytes.

    Raises:
        Refused: It is not a PNG, or its pixels are colours.
    """
    if data.startswith(_JPEG):
        raise Refused("a JPEG, whose compression changes class indices: save masks as PNG, from their source")
    if not data.startswith(_PNG) or len(data) <= _COLOUR:
        raise Refused(f"not a PNG; it begins with {data[:16]!r}. Save masks as PNG, grey or with a palette")
    if data[_COLOUR] not in (_GREY, _PALETTE):
        what = _COLOURS.get(data[_COLOUR], f"of an unknown colour type {data[_COLOUR]}")
        raise Refused(f"its pixels are {what}, not class indices: save the index of each pixel's class as a grey PNG")
    return data[_DEPTH]


def rewrites_masks(options: StoreOptions) -> bool:
    """True if masks beside images that are stored with these options cannot always keep the bytes of their files."""
    return options.resize is not None or options.orientation == "apply"


def png_writer() -> str:
    """Names the libraries that decide the bytes of a PNG that has to be written."""
    from PIL import features

    # zlib-ng compresses otherwise than zlib. A Pillow that does not know the difference has zlib.
    faster = features.version("zlib_ng") if "zlib_ng" in features.features else None
    zlib = f"zlib-ng {faster}" if faster else f"zlib {features.version('zlib')}"
    return f"{pillow_version()}, {zlib}"


def _decode(data: bytes, depth: int) -> Indices:
    with warnings.catch_warnings(), whole_images_only(), faults_of_the_image("Pillow refuses it"):
        warnings.simplefilter("ignore")
        image = open_image(data)
        image.load()
        values = np.asarray(image)
    if image.mode == "L" and depth < 8:
        # Pillow spreads the values of fewer bits over 0 to 255, apart from those of a palette.
        return values >> (8 - depth)
    return values.astype("<u2" if depth > 8 else "|u1", copy=False)


def _turned(indices: Indices, orientation: int) -> Indices:
    """What `PIL.Image.transpose` gives for `UPRIGHT`."""
    match UPRIGHT.get(orientation):
        case None:
            return indices
        case "FLIP_LEFT_RIGHT":
            return indices[:, ::-1]
        case "ROTATE_180":
            return indices[::-1, ::-1]
        case "FLIP_TOP_BOTTOM":
            return indices[::-1]
        case "TRANSPOSE":
            return indices.T
        case "ROTATE_270":
            return np.rot90(indices, -1)
        case "TRANSVERSE":
            return indices[::-1, ::-1].T
        case _:
            return np.rot90(indices)


def _resized(indices: Indices, frame: Frame) -> Indices:
    height, width = indices.shape
    target = frame.size(width, height)
    if target == (width, height):
        return indices
    return indices[nearest(height, target[1])[:, None], nearest(width, target[0])]


def nearest(source: int, target: int) -> npt.NDArray[np.int64]:
    """Returns which of `source` pixels each of `target` pixels takes, int64 [target].

    The arithmetic is that of torch's ``interpolate`` with mode nearest, in float32, by which torchvision resizes masks.
    """
    scale = np.float32(source) / np.float32(target)
    taken = np.floor(np.arange(target, dtype=np.float32) * scale).astype(np.int64)
    return np.minimum(taken, source - 1)


def _as_png(indices: Indices) -> bytes:
    encoded = io.BytesIO()
    require_pillow().fromarray(np.ascontiguousarray(indices)).save(encoded, "PNG")
    return encoded.getvalue()


def _in_words(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
