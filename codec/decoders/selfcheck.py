"""Checks that a back end gives Pillow's pixels on this machine, on a few small JPEGs that both decode."""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..pillow import require_pillow
from ..pixels import Box
from .base import PILLOW

if TYPE_CHECKING:
    from PIL.Image import Image

    from .base import BackEnd

# Sampling factors of luma (across, down), and the number of MCUs (across, down) that 48 blocks make with them.
_SAMPLINGS: Final = {
    "4:4:4": ((1, 1), (4, 4)),
    "4:2:2": ((2, 1), (4, 3)),
    "4:4:0": ((1, 2), (6, 2)),
    "4:2:0": ((2, 2), (4, 2)),
    "4:1:1": ((4, 1), (2, 4)),
}
_GREY_SIZE: Final = (64, 48)
_BOX: Final = Box(5, 3, 21, 14)


def deviation(back_end: BackEnd) -> str | None:
    """Return how the pixels of `back_end` differ from Pillow's; None if they do not.

    A back end may refuse to decode at a scale other than 1, because Pillow then does it.
    """
    for name, data in samples().items():
        for mode in ("RGB", "L"):
            for scale in (1, 2, 4, 8):
                for box in (None, _BOX) if scale == 1 else (None,):
                    try:
                        image = back_end.attempt(data, mode, box, scale)
                    except (ValueError, OSError) as error:
                        if scale == 1:
                            return f"refuses a small {name} JPEG: {error}"
                    else:
                        if _differ(image, PILLOW.decode(data, mode, box, scale)):
                            return (
                                f"decodes a small {name} JPEG to other pixels than Pillow (mode {mode}, scale {scale})"
                            )
    return None


@functools.cache
def samples() -> dict[str, bytes]:
    """Small JPEGs by name: each sampling, grey, progressive, with restart markers. None has a whole number of MCUs."""
    wide, high = _GREY_SIZE
    # Low contrast, because `sampled` assigns the differences between blocks to other components, where their sums must
    # stay in range.
    pixels = bytes(96 + (x * x + 3 * y * y + 7 * x * y >> 3) % 64 for y in range(high) for x in range(wide))
    grey: Image = require_pillow().frombytes("L", _GREY_SIZE, pixels)
    whole = _encoded(grey, quality=90)
    found = {
        name: sampled(whole, luma, 8 * luma[0] * mcus[0] - 3, 8 * luma[1] * mcus[1] - 5)
        for name, (luma, mcus) in _SAMPLINGS.items()
    }
    found["grey"] = _encoded(grey.crop((0, 0, wide - 3, high - 5)))
    colour = PILLOW.decode(found["4:2:0"], "RGB")
    found["progressive"] = _encoded(colour, progressive=True)
    found["restarting"] = _encoded(colour, restart_marker_blocks=3)
    return found


def sampled(grey: bytes, luma: Sequence[int], width: int, height: int) -> bytes:
    """A colour JPEG made of the blocks of a grey one, in a sampling that Pillow cannot write.

    The blocks of a JPEG follow each other no matter which component they belong to. Other headers therefore turn them
    into another image, as long as the number of blocks stays the same.

    Args:
        grey: A baseline JPEG as Pillow writes it.
        luma: Sampling factors of the first component, across and down; those of the others are 1.
        width: Width of the result, in pixels; it must end in the last column of MCUs.
        height: Height of the result, in pixels; it must end in the last row of MCUs.
    """
    frame, scan = grey.index(b"\xff\xc0"), grey.index(b"\xff\xda")
    factors = (luma[0] << 4 | luma[1], 0x11, 0x11)
    components = b"".join(bytes((number, factor, 0)) for number, factor in enumerate(factors, 1))
    return b"".join(
        (
            grey[:frame],
            struct.pack(">HHBHHB", 0xFFC0, 17, 8, height, width, 3) + components,
            grey[frame + 2 + 11 : scan],
            b"\xff\xda\0\x0c\3\1\0\2\0\3\0\0\x3f\0",
            grey[scan + 2 + 8 :],
        )
    )


def _differ(image: Image, other: Image) -> bool:
    return image.size != other.size or image.tobytes("raw", other.mode) != other.tobytes()


def _encoded(image: Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()
