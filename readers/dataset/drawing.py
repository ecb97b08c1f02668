"""Draws the pixels of a sample: images of any type, masks as colours over them, boxes as lines. Needs Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.pillow import is_picture, require_pillow
from packtrain._core.arguments import choice, unexpected
from packtrain._core.errors import UsageError
from packtrain._core.schema import Schema

if TYPE_CHECKING:
    from PIL.Image import Image

FORMS: Final = ("xyxy", "xywh", "cxcywh", "xyxyn", "xywhn", "cxcywhn")
"""Meanings of the four numbers of a box; with n, they are parts of the image's width and height."""
GAP: Final = 2
_OPACITY: Final = 0.5
# Neighbouring values get hues that are far apart.
_TURN: Final = 0.6180339887498949
_LINE: Final = (255, 64, 64)


@dataclass(frozen=True)
class BoxField:
    """The array field that has the boxes of a sample, [boxes, 4] in pixels of the stored image.

    Attributes:
        name: Name of the field.
        form: One of `FORMS`: corners, a corner and the size, or the centre and the size.

    Raises:
        UsageError: There is no such form.
    """

    name: str
    form: str = FORMS[0]

    def __post_init__(self) -> None:
        choice("boxes", self.form, FORMS)

    @classmethod
    def of(cls, text: str, schema: Schema) -> BoxField:
        """Reads ``FIELD`` or ``FIELD:FORM``.

        Raises:
            UsageError: It is something else, or the field holds no boxes.
        """
        name, _, form = text.partition(":")
        found = cls(name, form or FORMS[0])
        try:
            shape = schema[name].shape
        except UsageError as error:
            raise UsageError(f"boxes={text!r}: {error}") from None
        if shape is None or len(shape) != 2 or shape[1] != 4:
            raise unexpected("boxes", text, "an array field of shape [boxes, 4], such as boxes or boxes:xywh")
        return found

    def corners(self, values: npt.ArrayLike, width: int, height: int) -> npt.NDArray[np.float64]:
        """Left, top, right and bottom of boxes, in pixels of the image of this size: float64 [boxes, 4]."""
        boxes = np.array(values, np.float64).reshape(-1, 4)
        if self.form.endswith("n"):
            boxes *= (width, height, width, height)
        if self.form.startswith("cxcywh"):
            boxes[:, :2] -= boxes[:, 2:] / 2
        if "wh" in self.form:
            boxes[:, 2:] += boxes[:, :2]
        return boxes


def as_images(value: Any) -> list[Image]:
    """The images in a value of a sample, in RGB: several of views, none if it is None."""
    if value is None:
        return []
    if isinstance(value, tuple | list):
        return [image for part in value for image in as_images(part)]
    return [value.convert("RGB") if is_picture(value) else require_pillow().fromarray(_bytes(np.asarray(value)))]


def span(value: Any) -> str | None:
    """Says how the numbers of an image became colours; None if they were bytes already."""
    if value is None or isinstance(value, tuple | list) or is_picture(value):
        return None if not isinstance(value, tuple | list) else next(filter(None, map(span, value)), None)
    array = np.asarray(value)
    if array.dtype == np.uint8:
        return None
    least, most = _range(array)
    return f"{array.dtype}, shown from {least:.3g} (black) to {most:.3g} (white)"


def fitted(image: Image, side: int) -> Image:
    """The image, at most `side` pixels wide and high; a small one enlarged, so that its pixels can be told apart."""
    pillow = require_pillow()
    longest = max(image.size)
    if longest > side:
        image = image.copy()
        # The mean of whole blocks first: hardly less sharp, and much faster.
        image.thumbnail((side, side), pillow.Resampling.BICUBIC, reducing_gap=2.0)
    elif longest * 2 <= side:
        times = side // longest
        image = image.resize((image.width * times, image.height * times), pillow.Resampling.NEAREST)
    return image


def beside(images: Sequence[Image]) -> Image:
    """Images side by side, `GAP` pixels apart."""
    if len(images) == 1:
        return images[0]
    size = sum(image.width + GAP for image in images) - GAP, max(image.height for image in images)
    joined: Image = require_pillow().new("RGB", size)
    at = 0
    for image in images:
        joined.paste(image, (at, 0))
        at += image.width + GAP
    return joined


def with_mask(image: Image, mask: npt.NDArray[Any]) -> Image:
    """The image under a mask [height, width] of the same picture: each value is a colour, and 0 is clear."""
    pillow = require_pillow()
    small = pillow.fromarray(np.ascontiguousarray(mask)).resize(image.size, pillow.Resampling.NEAREST)
    values, pixels = np.asarray(small), np.asarray(image, np.float32)
    blended = np.where((values != 0)[..., None], pixels + _OPACITY * (colours(values) - pixels), pixels)
    made: Image = pillow.fromarray(blended.astype(np.uint8))
    return made


def colours(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The colour of each value of a mask, float32 [..., 3] from 0 to 255."""
    turns = values[..., None] * _TURN + np.array([0, 1 / 3, 2 / 3])
    found: npt.NDArray[np.float32] = (127.5 * (1 + np.cos(2 * np.pi * turns))).astype(np.float32)
    return found


def with_boxes(image: Image, corners: npt.NDArray[np.float64], width: int, height: int) -> Image:
    """The image with the outlines of boxes.

    Args:
        image: The image, perhaps of another size than the one that the boxes are in.
        corners: Left, top, right and bottom, float64 [boxes, 4].
        width: Width of the image that the boxes are in, in pixels.
        height: Its height.
    """
    require_pillow()
    from PIL import ImageDraw

    image = image.copy()
    draw = ImageDraw.Draw(image)
    thick = max(1, max(image.size) // 160)
    scale = np.array([image.width / width, image.height / height] * 2)
    for left, top, right, bottom in np.nan_to_num(corners * scale, posinf=1e6, neginf=-1e6).clip(-1e6, 1e6).tolist():
        if right >= left and bottom >= top:
            draw.rectangle((left, top, right, bottom), outline=_LINE, width=thick)
    return image


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The pixels of an array [height, width], [channels, height, width] or [height, width, channels], as RGB."""
    if array.ndim == 3 and array.shape[0] in (1, 3):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        raise ValueError(f"an array of shape {list(array.shape)} is no image")
    if array.dtype != np.uint8:
        least, most = _range(array)
        scaled = (array.astype(np.float64) - least) * (255 / (most - least or 1))
        array = np.nan_to_num(scaled, posinf=255, neginf=0).clip(0, 255).round().astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))


def _range(array: npt.NDArray[Any]) -> tuple[float, float]:
    """The numbers that are black and white: 0 and 1 if there are no others, else the least and the greatest."""
    finite = array[np.isfinite(array)]
    least, most = float(finite.min(initial=0)), float(finite.max(initial=1))
    return least, most
