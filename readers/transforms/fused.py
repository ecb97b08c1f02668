"""Transforms that see the encoded record: only what they need of it is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch

from packtrain._codec import resizing
from packtrain._codec.decode import RecordDecoder, ordinary, shrunk
from packtrain._codec.geometry import Box, Flip, Scale, Step, apply, first_crop, needed
from packtrain._codec.native import extension
from packtrain._codec.pillow import require_pillow
from packtrain._codec.pixels import array_from_image, array_from_pixels, array_resized
from packtrain._codec.stages import RESIZE, TRANSFORM, WRITE, OnStage, untimed

from .geometric import Compose

if TYPE_CHECKING:
    from PIL.Image import Image

_SCALES: Final = (8, 4, 2)
_MIRROR: Final = Flip(horizontal=True)
# Where the steps read less of the image than this, decoding that part alone saves more than putting it in place costs.
_WORTHWHILE: Final = 0.8


class FusedTransform:
    """A transform over the records of a dataset.

    The pixels equal those of the transform on the whole decoded image, bit for bit, unless `scaled`.

    Args:
        compose: The transform; without transforms of `packtrain.transforms` at its beginning, images are
            decoded whole.
        records: Decodes.
        scaled: Let the decoder shrink JPEGs by 2, 4 or 8, as far as they are still to be resized to less than that.
            Much faster for large photographs, with slightly other pixels: see `benchmarks/README.md`.
    """

    def __init__(self, compose: Compose, records: RecordDecoder, *, scaled: bool = False) -> None:
        self.compose = compose
        self._records = records
        self._scaled = scaled
        # What a raw record can go through while it is copied; without the extension, Pillow mirrors faster than numpy.
        raw = records.store.store == "raw" and not compose.rest
        self._copies: tuple[tuple[Step, ...], ...] = ((), (_MIRROR,))[: raw * (1 + (extension is not None))]
        self._style = None if compose.rest or records.store.channels != 3 else resizing.style()

    def steps(self, width: int, height: int, random: Sequence[float] | None = None) -> tuple[Step, ...]:
        """What the transform comes down to for an image of `width` x `height` pixels.

        Args:
            width: Pixels.
            height: Pixels.
            random: Uniform in [0, 1), `compose.draws` of them; None draws them from torch's default generator.

        Raises:
            UsageError: The transform cannot be applied to an image of this size.
        """
        if random is None:
            draws = self.compose.draws
            random = torch.rand(draws, dtype=torch.float64).tolist() if draws else ()
        return self.compose.steps(width, height, random)

    def decode(
        self, record: memoryview, width: int, height: int, steps: tuple[Step, ...], on_stage: OnStage = untimed
    ) -> tuple[Image | npt.NDArray[np.uint8], tuple[Step, ...]]:
        """Decodes what `steps` need; `on_stage` is told of each stage.

        Returns:
            An image and the steps that are left; where nothing but a resize and a mirroring by packtrain itself is
            left, the pixels, uint8 [height, width, channels], whose rows may lie apart.

        Raises:
            ValueError: The record does not hold an image of this size.
            Exception: Whatever Pillow raises on an encoded record that it refuses.
        """
        box, steps = first_crop(steps, width, height)
        if steps in self._copies:
            return self._records.pixels(record, width, height, box), steps
        if self._style is not None and self._is_resize(steps) and self._scale(box, steps) == 1:
            pixels = self._records.rgb(record, width, height, box, on_stage)
            if pixels is not None:
                return pixels, steps
        image, steps = self._decode_box(record, width, height, box, steps, on_stage)
        return (self._records.with_info(image, record) if self.compose.rest else image), steps

    def _decode_box(
        self, record: memoryview, width: int, height: int, box: Box, steps: tuple[Step, ...], on_stage: OnStage
    ) -> tuple[Image, tuple[Step, ...]]:
        """Decodes what `steps`, applied to `box`, need."""
        scale = self._scale(box, steps)
        if scale > 1:
            image = self._records.region(record, width, height, box, scale, on_stage)
            return _resize_exactly(image, box, scale, steps[0]), steps[1:]
        # Without a crop behind them, they need everything.
        part = needed(steps, box.width, box.height) if len(steps) > 1 else Box(0, 0, box.width, box.height)
        if part.width * part.height >= _WORTHWHILE * box.width * box.height:
            return self._records.region(record, width, height, box, on_stage=on_stage), steps
        inner = Box(box.left + part.left, box.top + part.top, part.width, part.height)
        image = self._records.region(record, width, height, inner, on_stage=on_stage)
        # A resize weights pixels by where they are in the whole image. What is not needed is left as it is.
        canvas = require_pillow().new(image.mode, (box.width, box.height), None)
        canvas.paste(image, (part.left, part.top))
        return canvas, steps

    def finish(
        self,
        image: Image | npt.NDArray[np.uint8],
        steps: tuple[Step, ...],
        into: npt.NDArray[np.uint8] | None = None,
        on_stage: OnStage = untimed,
    ) -> Any:
        """Carries out the steps that are left.

        Args:
            image: What `decode` returned.
            steps: Likewise.
            into: uint8 [height, width, channels], contiguous: where the pixels go if they have this shape and nothing
                foreign comes behind.
            on_stage: Is told of each stage.

        Returns:
            `into`, or a tensor, uint8 [channels, height, width]; in memory the channels of a pixel lie side by side, as
            in torchvision. With foreign callables behind the fused transforms: what the last of them returns.
        """
        if self.compose.rest and not isinstance(image, np.ndarray):
            image = apply(image, steps)
            on_stage(RESIZE)
            result: Any = ordinary(image)
            for transform in self.compose.rest:
                result = transform(result)
            on_stage(TRANSFORM)
            return result
        mirrored = bool(steps) and steps[-1] == _MIRROR
        if isinstance(image, np.ndarray):
            if steps and isinstance(steps[0], Scale):
                assert self._style is not None
                pixels = array_resized(image, steps[0], self._style, mirrored=mirrored, into=into)
                on_stage(RESIZE)
            else:
                pixels = array_from_pixels(image, mirrored=mirrored, into=into)
        else:
            image = apply(image, steps[:-1] if mirrored else steps)
            on_stage(RESIZE)
            pixels = array_from_image(image, mirrored=mirrored, into=into)
        on_stage(WRITE)
        if pixels is into:
            return into
        return torch.from_numpy(pixels).permute(2, 0, 1)

    def _is_resize(self, steps: tuple[Step, ...]) -> bool:
        return (
            bool(steps)
            and isinstance(steps[0], Scale)
            and steps[0].resample in resizing.RESAMPLES
            and steps[1:] in ((), (_MIRROR,))
        )

    def _scale(self, box: Box, steps: tuple[Step, ...]) -> int:
        if not (self._scaled and steps and isinstance(steps[0], Scale)) or self._records.store.store == "raw":
            return 1
        wide, high = box.width // steps[0].width, box.height // steps[0].height
        return next((scale for scale in _SCALES if scale <= min(wide, high)), 1)


def _resize_exactly(image: Image, box: Box, scale: int, step: Step) -> Image:
    """Resizes an image that shows `box`, `scale` times smaller and filled up to whole pixels."""
    assert isinstance(step, Scale)
    covered = shrunk(box, scale)
    left, top = box.left / scale - covered.left, box.top / scale - covered.top
    right, bottom = left + box.width / scale, top + box.height / scale
    return image.resize((step.width, step.height), step.resample, (left, top, right, bottom))
