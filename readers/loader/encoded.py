"""Images that are still to be decoded, on their way from a worker to the process that has them decoded.

Their bytes lie one behind the other in the slot of the batch, beside numbers that say where, and what becomes of each.
There is room for somewhat more than images of their dataset usually take, within limits. What does not fit goes through
the worker's pipe, with the texts and the like. A batch that was made in this very process has them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.geometry import Box, Scale
from packtrain._codec.image_plan import ImagePlan
from packtrain._core.schema import IMAGE

from ..transforms.undecoded import UPSIDE_DOWN, Undecoded
from .arena import Arrays, Layout, SlotArray, Varying

if TYPE_CHECKING:
    from typing_extensions import Buffer

# No field of a dataset has a colon in its name.
MEMORY: Final = f"{IMAGE}:bytes"
"""Name of the memory for undecoded images."""
PLANS: Final = f"{IMAGE}:plans"
"""Name of the array that says where each of them lies, and what becomes of it."""
SPILT: Final = f"{IMAGE}:spilt"
"""Name of the list of those for which there was no room; empty bytes for all others."""
_ELSEWHERE: Final = -1
# There is never room for more bytes per image than this, or than its pixels take as float32 if that is more. So the
# slots of large photographs take no more memory than those of normalised images do.
_SMALL: Final = 256 << 10
# Start and length; box, resize, window, mirrored, upside down.
_NUMBERS: Final = SlotArray("<i8", (2 + 4 + 3 + 4 + 1 + 1,), internal=True)
_NO_RESIZE: Final = (-1,) * 3
_NO_WINDOW: Final = (-1,) * 4
# The sizes of 128 photographs add up to more than this many times their mean in 1 of 200 batches.
_MARGIN: Final = 1.2


def with_room(layout: Layout, sizes: Sequence[int]) -> Layout:
    """The layout with room for undecoded images.

    Args:
        layout: A layout without it.
        sizes: Numbers of bytes of some of the images.
    """
    most = max(_SMALL, 4 * math.prod(layout.fields[IMAGE].shape))
    size = min(most, _rounded(_MARGIN * fmean(sizes))) if sizes else 0
    fields = {**layout.fields, PLANS: _NUMBERS, MEMORY: SlotArray("|u1", (size,), internal=True)}
    return replace(layout, fields=fields, varying={**layout.varying, SPILT: Varying("bytes")})


def _rounded(size: float) -> int:
    """The size rounded up to one of four in each doubling, so that other samples rarely need other slots."""
    step = 2.0 ** (math.floor(math.log2(max(size, 4))) - 2)
    return int(math.ceil(size / step) * step)


class EncodedWriter:
    """Writes the undecoded images of a batch, one after the other.

    Args:
        arrays: The arrays of the batch. Without those for undecoded images, they stay as they are.
        spilt: Gets what is to go through the pipe.

    Attributes:
        images: The images, if they stay as they are.
    """

    def __init__(self, arrays: Arrays, spilt: list[Any]) -> None:
        self.images: Final[list[Undecoded]] = []
        self._plans = arrays.get(PLANS)
        self._memory = arrays[MEMORY].reshape(-1) if MEMORY in arrays else np.empty(0, np.uint8)
        self._spill: Final = spilt.append
        self._end = 0

    def write(self, at: int, image: Undecoded) -> None:
        """Adds image `at` of the batch, which is the next one."""
        if self._plans is None:
            self.images.append(image)
            self._spill(b"")
            return
        data, start = np.frombuffer(image.data, np.uint8), self._end
        end = start + len(data)
        fits = end <= len(self._memory)
        if fits:
            self._memory[start:end] = data
            self._end = end
        self._spill(b"" if fits else image.data)
        self._plans[at] = (start if fits else _ELSEWHERE, len(data), *_numbers(image.plan))


def read(arrays: Arrays, count: int, spilt: Sequence[Buffer]) -> list[Undecoded]:
    """The images of a batch. Those in the slot refer to it, and so keep it from being used again.

    Args:
        arrays: The arrays of the batch.
        count: Number of its samples.
        spilt: What went through the pipe.
    """
    memory: npt.NDArray[Any] = arrays[MEMORY].reshape(-1)
    return [
        Undecoded(memoryview(other) if start == _ELSEWHERE else memory[start : start + length].data, _plan(*plan))
        for (start, length, *plan), other in zip(arrays[PLANS][:count].tolist(), spilt, strict=True)
    ]


def _numbers(plan: ImagePlan) -> Iterator[int]:
    yield from plan.box
    yield from plan.resize or _NO_RESIZE
    yield from plan.window or _NO_WINDOW
    yield from (plan.mirrored, bool(plan.rest))


def _plan(*numbers: int) -> ImagePlan:
    resize, window = numbers[4:7], numbers[7:11]
    return ImagePlan(
        Box(*numbers[:4]),
        None if resize == _NO_RESIZE else Scale(*resize),
        None if window == _NO_WINDOW else Box(*window),
        bool(numbers[11]),
        (UPSIDE_DOWN,) if numbers[12] else (),
    )
