"""A sheet: pictures of many rows in one image, each with its row, label and texts."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.pillow import require_pillow
from packtrain._core.printable import one_line
from packtrain._core.schema import LABEL
from packtrain._readers.dataset.pictures import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

_PAPER: Final = (255, 255, 255)
_TILE: Final = (241, 243, 245)
_INK: Final = (33, 37, 41)
_QUIET: Final = (110, 118, 126)
_ALARM: Final = (201, 42, 42)
_GAP: Final = 8
_SIZE: Final = 12
"""Height of the letters in pixels."""
_LINE: Final = 16
_MOST_LINES: Final = 3
"""Lines below a picture."""
# Fonts that have more letters than Pillow's own, which has those of western Europe; the first one there is.
_FONTS: Final = ("NotoSansCJK-Regular.ttc", "DejaVuSans.ttf")


def evenly(rows: Sequence[int] | npt.NDArray[np.int64], count: int) -> list[int]:
    """Return `count` of some rows, evenly spaced, from the first one on; all if there are fewer."""
    count = min(count, len(rows))
    return [int(rows[at * len(rows) // count]) for at in range(count)]


def sheet(pictures: Iterable[tuple[int, Picture]], side: int, columns: int | None = None) -> Image:
    """Draws a sheet.

    Args:
        pictures: Rows and their pictures, in the order of the sheet; at least one.
        side: The most pixels of a picture's width and height.
        columns: Number of tiles in a line; None: so many that the sheet is about as wide as it is high.

    Returns:
        The sheet, in RGB.

    Raises:
        MissingDependency: Neither Pillow nor pillow-simd is installed.
    """
    pillow = require_pillow("a sheet")
    from PIL import ImageDraw

    tiles = list(pictures)
    lines = max(len(_lines(row, picture)) for row, picture in tiles)
    wide, high = side + _GAP, side + lines * _LINE + _GAP
    columns = min(len(tiles), columns or math.ceil(math.sqrt(len(tiles) * high / wide)))
    made: Image = pillow.new("RGB", (columns * wide + _GAP, -(-len(tiles) // columns) * high + _GAP), _PAPER)
    draw = ImageDraw.Draw(made)
    for number, (row, picture) in enumerate(tiles):
        left, top = _GAP + number % columns * wide, _GAP + number // columns * high
        made.paste(tile(picture, side), (left, top))
        for at, text in enumerate(_lines(row, picture)):
            place = left, top + side + 2 + at * _LINE
            draw.text(place, _cut(text, side), fill=_QUIET if at else _INK, font=_font())
    return made


def tile(picture: Picture, side: int) -> Image:
    """Draws a square with a picture in its middle, or with its problem."""
    from PIL import ImageDraw

    made: Image = require_pillow("a picture").new("RGB", (side, side), _TILE)
    if picture.problem is not None:
        draw = ImageDraw.Draw(made)
        draw.rectangle((0, 0, side - 1, side - 1), outline=_ALARM, width=2)
        room = side // _LINE - 1
        # The end of a message says what is wrong, its beginning only where.
        for at, text in enumerate(textwrap.wrap(one_line(picture.problem), max(1, side // 7))[-room:]):
            draw.text((6, 4 + at * _LINE), _cut(text, side - 12), fill=_ALARM, font=_font())
    elif (image := picture.image) is not None:
        made.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return made


def _lines(row: int, picture: Picture) -> list[str]:
    """The lines below a picture: row and label, then the other texts."""
    others = [one_line(text) for name, text in picture.texts.items() if name != LABEL and text]
    return [" · ".join([f"{row:,}", *filter(None, [picture.texts.get(LABEL)])]), *others][:_MOST_LINES]


@functools.cache
def _font() -> Any:
    from PIL import ImageFont

    for name in _FONTS:
        with suppress(OSError, ImportError):
            return ImageFont.truetype(name, _SIZE)
    return ImageFont.load_default()


def _cut(text: str, width: int) -> str:
    """The beginning of a text that is at most so many pixels wide, in letters that the font can draw."""
    from PIL import ImageFont

    font = _font()
    if not isinstance(font, ImageFont.FreeTypeFont):
        text = text.encode("latin-1", "replace").decode("latin-1")
    # No letter is narrower than a pixel.
    text = text[:width]
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text}..."
