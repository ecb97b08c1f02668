"""Images in terminals that show them: the protocols of kitty, iTerm2 and sixel."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from packtrain._codec.pillow import require_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

_CHUNK: Final = 4096
"""Characters that kitty takes at a time."""
_COLOURS: Final = 256
_BAND: Final = 6
"""Rows of pixels in a line of sixels."""


def protocol_of(environment: Mapping[str, str]) -> str | None:
    """Say which protocol the terminal of these variables takes: kitty, iterm2 or sixel; None if none is known.

    Programs that divide a terminal, such as tmux, do not hand images on.
    """
    kind, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if "TMUX" in environment or kind.startswith(("screen", "tmux")):
        return None
    if "KITTY_WINDOW_ID" in environment or kind in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
        return "kitty"
    if "KONSOLE_VERSION" in environment:
        return "kitty"
    if program in ("iTerm.app", "WezTerm", "mintty") or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    if kind.startswith(("foot", "mlterm", "contour")) or "sixel" in kind:
        return "sixel"
    return None


def shown(image: Image, protocol: str) -> str:
    """Return what a terminal is to be sent to show an image, in one of the protocols of `protocol_of`."""
    if protocol == "sixel":
        return "".join(_sixels(image))
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    data = base64.b64encode(file.getvalue()).decode()
    if protocol == "iterm2":
        return f"\x1b]1337;File=inline=1;size={len(file.getvalue())}:{data}\a\n"
    pieces = [data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)]
    heads = [f"{'a=T,f=100,' * (not at)}m={int(at < len(pieces) - 1)}" for at in range(len(pieces))]
    return "".join(f"\x1b_G{head};{piece}\x1b\\" for head, piece in zip(heads, pieces, strict=True)) + "\n"


def _sixels(image: Image) -> Iterator[str]:
    """The image in lines of six rows: of each colour in a line, a character says which of the six pixels have it."""
    few = image.quantize(_COLOURS, dither=require_pillow().Dither.NONE)
    pixels = np.asarray(few)
    palette = np.array(few.getpalette(), np.int64).reshape(-1, 3) * 100 // 255
    yield f'\x1bP0;1q"1;1;{image.width};{image.height}'
    yield from (f"#{number};2;{red};{green};{blue}" for number, (red, green, blue) in enumerate(palette.tolist()))
    for top in range(0, image.height, _BAND):
        band = pixels[top : top + _BAND]
        weights = 1 << np.arange(len(band))
        for colour in np.unique(band).tolist():
            line = (63 + weights @ (band == colour)).astype(np.uint8).tobytes().decode()
            runs = ((letter, len(list(same))) for letter, same in groupby(line))
            yield f"#{colour}" + "".join(f"!{n}{letter}" if n > 3 else letter * n for letter, n in runs) + "$"
        yield "-"
    yield "\x1b\\\n"
