"""Masks: maps of class indices, [height, width], which are turned and resized as the image of their sample was."""

from __future__ import annotations

import io
import warnings
from typing import Final, NamedTuple

import numpy as np

from packtrain._codec.geometry import Scale
from packtrain._codec.masks import Mask, PngHeader, decode_png, map_mask, png_header
from packtrain._codec.pillow import require_pillow, whole_images_only
from packtrain._core.options import ResizeRule, StoreOptions
from packtrain._core.schema import Field

from .images import UPRIGHT, StoredImage, faults_of_the_image
from .listing import Encoded
from .sources import Refused

_JPEG: Final = b"\xff\xd8"
_NEAREST: Final = 0


class Frame(NamedTuple):
    """The changes of size and orientation of a sample's image, which are made to its masks as well.

    Attributes:
        source_size: Width and height of the image file's pixels; None if the sample has no image.
        orientation: EXIF orientation by which the pixels were turned upright; 1 if they were not.
        resize: How the size was changed; None if it was not.
    """

    source_size: tuple[int, int] | None = None
    orientation: int = 1
    resize: ResizeRule | None = None

    @property
    def is_kept(self) -> bool:
        """True if the image has the pixels that it had, so that its masks need not change."""
        return self.resize is None and self.orientation not in UPRIGHT

    @classmethod
    def of(cls, image: StoredImage, options: StoreOptions) -> Frame:
        """The frame of an image that was stored with these options."""
        orientation = image.header.orientation if options.orientation == "apply" else 1
        resize = None if options.resize is None else ResizeRule.parse(options.resize)
        return cls(image.source_size, orientation, resize)


def store_mask(data: bytes, field: Field, frame: Frame) -> Encoded:
    """Converts the bytes of a PNG to the record of a mask. A PNG that need not change is stored as it is.

    Args:
        data: Content of the whole file.
        field: The field that the mask belongs to.
        frame: What became of the image of the same sample.

    Raises:
        Refused: The file holds no class indices of the field's width, or is broken, or has another size than the image.
        MemoryError: There is not enough memory for this mask.
    """
    depth = mask_header(data).depth
    if depth > 8 and field.dtype == "|u1":
        raise Refused(
            f"its class indices have {depth} bits, and those of the field 8. If all are to have 16, pack into another "
            f"folder with --dtype {field.name}=uint16"
        )
    indices = _decode(data)
    stored = _framed(indices, frame)
    if stored is indices and field.encoding == "png":
        height, width = indices.shape
        return encoded_mask(data, width, height, field)
    return _stored(stored, field)


def store_indices(indices: Mask, field: Field, frame: Frame) -> Encoded:
    """Converts class indices, [height, width], to the record of a mask.

    Args:
        indices: They fit the type of the field.
        field: The field that the mask belongs to.
        frame: What became of the image of the same sample.

    Raises:
        Refused: The mask has another size than the image.
    """
    return _stored(_framed(indices, frame), field)


def mask_header(data: bytes) -> PngHeader:
    """Reads the header of a mask.

    Raises:
        Refused: It is not a PNG, or its pixels are colours.
    """
    if data.startswith(_JPEG):
        raise Refused("a JPEG, whose compression changes class indices: save masks as PNG, from their source")
    try:
        return png_header(data)
    except ValueError as error:
        raise Refused(f"{error}. Save the index of each pixel's class as a PNG, grey or with a palette") from error


def rewrites_masks(options: StoreOptions) -> bool:
    """True if masks beside images that are stored with these options cannot always keep the bytes of their files."""
    return options.resize is not None or options.orientation == "apply"


def png_writer() -> str:
    """Names the library that, beside Pillow, decides the bytes of a PNG that has to be written."""
    from PIL import features

    # zlib-ng compresses otherwise than zlib. A Pillow that does not know the difference has zlib.
    faster = features.version("zlib_ng") if "zlib_ng" in features.features else None
    return f"zlib-ng {faster}" if faster else f"zlib {features.version('zlib')}"


def _decode(data: bytes) -> Mask:
    with warnings.catch_warnings(), whole_images_only(), faults_of_the_image("Pillow refuses it"):
        warnings.simplefilter("ignore")
        return decode_png(data)


def _framed(indices: Mask, frame: Frame) -> Mask:
    """The mask after what became of the image; the same object if nothing changes."""
    size = indices.shape[1], indices.shape[0]
    if frame.source_size not in (None, size):
        raise Refused(f"it has {_in_words(size)} pixels, and its image {_in_words(frame.source_size or size)}")
    return _resized(_turned(indices, frame.orientation), frame.resize)


def _stored(indices: Mask, field: Field) -> Encoded:
    height, width = indices.shape
    if field.encoding == "raw":
        return encoded_mask(np.ascontiguousarray(indices, field.dtype).tobytes(), width, height, field)
    return encoded_mask(mask_png(indices, field), width, height, field)


def encoded_mask(payload: bytes, width: int, height: int, field: Field) -> Encoded:
    """The record of a mask of which these are the PNG, or the bare values."""
    bare = field.encoding == "raw"
    return Encoded(payload, "npy" if bare else "png", (height, width), field.dtype if bare else None, (width, height))


def _turned(indices: Mask, orientation: int) -> Mask:
    """Turn a mask as `PIL.Image.transpose` does for `UPRIGHT`."""
    if orientation not in UPRIGHT:
        return indices
    turned = indices.T if orientation >= 5 else indices
    return turned[:: -1 if orientation in (3, 4, 7, 8) else 1, :: -1 if orientation in (2, 3, 6, 7) else 1]


def _resized(indices: Mask, resize: ResizeRule | None) -> Mask:
    height, width = indices.shape
    target = (width, height) if resize is None else resize.output_size(width, height)
    return indices if target == (width, height) else map_mask(indices, [Scale(target[0], target[1], _NEAREST)])


def mask_png(indices: Mask, field: Field) -> bytes:
    """Writes class indices, [height, width], as a PNG of the field's width."""
    encoded = io.BytesIO()
    require_pillow().fromarray(np.ascontiguousarray(indices, field.dtype)).save(encoded, "PNG")
    return encoded.getvalue()


def _in_words(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
