"""Speed of a decoder on this machine, measured briefly on a generated image."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from packtrain._codec import native, resizing
from packtrain._codec.cut import cut
from packtrain._codec.geometry import FILTERS, Box, Scale
from packtrain._codec.pillow import require_pillow
from packtrain._codec.record_forms import FORMS

if TYPE_CHECKING:
    from packtrain._codec.decoders import Decoder

SIZE: Final = (500, 375)
"""Width and height of the JPEG, those of a typical ImageNet file."""
TARGET: Final = 224
"""Width and height that crops are resized to."""
_QUALITY: Final = 90
"""With this quality the JPEG also has the bytes of a typical ImageNet file."""
_BOXES: Final = (
    Box(300, 40, 158, 119),
    Box(30, 150, 274, 205),
    Box(110, 20, 354, 265),
    Box(50, 40, 418, 314),
    Box(20, 10, 474, 356),
)
"""Crops of a tenth to nine tenths of the area, evenly spread, as RandomResizedCrop draws them."""
_SECONDS: Final = 0.2
"""Time for each figure."""
_MIN_RUNS: Final = 5
_BILINEAR: Final = FILTERS["bilinear"]


@dataclass(frozen=True)
class DecoderSpeed:
    """Time that a decoder takes for one image on one core: medians, in microseconds.

    Attributes:
        decode: Time to decode a whole JPEG of 500 x 375 pixels.
        cut: Time to cut a random crop out of a crop-ready record and decode it; None if crop-ready records cannot be
            made here.
        coefficients: Time to decode the same crop of a coefficient record; None if these cannot be made here.
        resize: Time to resize the crop to 224 x 224 pixels.
    """

    decode: float
    cut: float | None
    coefficients: float | None
    resize: float

    @property
    def images_per_second(self) -> float:
        """Random crops per second on one core, from crop-ready records if these can be made here."""
        return 1e6 / ((self.cut or self.decode) + self.resize)


def measure_decoder(decoder: Decoder) -> DecoderSpeed:
    """Measure a decoder for less than a second."""
    jpeg = photograph()
    extension = native.extension
    crop_ready = None if extension is None else memoryview(extension.transcode(jpeg))
    coefficients = None if extension is None else memoryview(extension.coefficient_record(jpeg))
    style = resizing.style() if decoder.pixels(jpeg) is not None else None
    # Like a dataset: where the decoder gives plain pixels, packtrain resizes them itself.
    decode: Callable[..., Any] = partial(decoder.decode, mode="RGB") if style is None else decoder.pixels
    crops = [decode(jpeg, box=box) for box in _BOXES]

    def crop_all(record: memoryview) -> None:
        for box in _BOXES:
            if record is coefficients and decoder.name == FORMS["coefficients"].read_by:
                decode(record, box=box)
                continue
            part = cut(record, box)
            assert part is not None
            decode(part.data, box=box._replace(left=box.left - part.left, top=box.top - part.top))

    def per_crop(record: memoryview | None) -> float | None:
        return None if record is None else _median(partial(crop_all, record)) / len(_BOXES)

    def resize_all() -> None:
        for crop in crops:
            if style is None:
                crop.resize((TARGET, TARGET), _BILINEAR)
            else:
                resizing.array_resized(crop, Scale(TARGET, TARGET, _BILINEAR), style)

    return DecoderSpeed(
        decode=_median(lambda: decode(jpeg)),
        cut=per_crop(crop_ready),
        coefficients=per_crop(coefficients),
        resize=_median(resize_all) / len(_BOXES),
    )


def photograph() -> bytes:
    """Make a JPEG that takes as long to decode as a photograph: detail at all scales, about 100 kB."""
    pillow = require_pillow()
    random = np.random.default_rng(0)
    total = np.zeros((SIZE[1], SIZE[0], 3))
    for detail, contrast in ((100, 50), (25, 40), (6, 30), (2, 30), (1, 15)):
        shape = (-(-SIZE[1] // detail), -(-SIZE[0] // detail), 3)
        coarse = pillow.fromarray(random.integers(0, 256, shape, np.uint8))
        total += (np.asarray(coarse.resize(SIZE, FILTERS["bicubic"]), float) / 127.5 - 1) * contrast
    buffer = io.BytesIO()
    pillow.fromarray((128 + total).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


def _median(call: Callable[[], object]) -> float:
    """Median duration of a call, in microseconds."""
    call()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(times) < _MIN_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6
