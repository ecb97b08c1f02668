"""Runs the steps on tensors that a pipeline ends with: on one image, on a batch in memory, on a batch on a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from packtrain._codec.native import extension
from packtrain._core.errors import UsageError

from .tensor_steps import FinishingStep, PILToTensor, PointwiseStep, ToImage, ToPureTensor

Numbers = Sequence[Sequence[float]]
"""Random numbers of each image of a batch, uniform in [0, 1), Python floats."""

_UNCHANGING: Final = (PILToTensor, ToImage, ToPureTensor)


class Finisher:
    """The steps of one pipeline, in the order in which they run.

    Args:
        steps: The steps.
        first: Which of the random numbers of a sample is the first of theirs.

    Attributes:
        steps: The steps.
        draws: Number of random numbers that they take.
    """

    def __init__(self, steps: Iterable[FinishingStep], first: int = 0) -> None:
        self.steps: Final = tuple(steps)
        self.draws: Final = sum(step.draws for step in self.steps)
        self._first = first
        self._parts: Final = tuple(_parts(self.steps, first))

    def __bool__(self) -> bool:
        """True if there is anything to do."""
        return bool(self._parts)

    @property
    def converts(self) -> bool:
        """True if the result has other values than bytes."""
        return any(isinstance(part, _Converted) for part in self._parts)

    def __eq__(self, other: object) -> bool:
        """True if both do the same with the same random numbers of a sample."""
        if not isinstance(other, Finisher) or self.steps != other.steps:
            return False
        return self._first == other._first or not self.draws

    def __hash__(self) -> int:
        return hash((self.steps, self.draws))

    def image(self, image: torch.Tensor, random: Sequence[float]) -> torch.Tensor:
        """Finishes one image.

        Args:
            image: uint8 [channels, height, width]; may be overwritten.
            random: All random numbers of the sample.

        Returns:
            [channels, height, width], contiguous if it has been converted.

        Raises:
            UsageError: A step cannot be applied to it.
        """
        for part in self._parts:
            image = part.image(image, random)
        return image

    def batch(self, images: torch.Tensor, random: Numbers) -> torch.Tensor:
        """Finishes images where they are: only with operations of torch, so that a device can do this later.

        Args:
            images: uint8 [batch, channels, height, width], in channels_last memory; may be overwritten.
            random: All random numbers of each sample; anything if `draws` is 0.

        Returns:
            [batch, channels, height, width], in channels_last memory.

        Raises:
            UsageError: A step cannot be applied to them.
        """
        for part in self._parts:
            images = part.batch(images, random)
        return images.contiguous(memory_format=torch.channels_last)

    def array(self, pixels: npt.NDArray[np.uint8], random: Numbers, out: npt.NDArray[Any]) -> None:
        """Finishes images in memory.

        Args:
            pixels: uint8 [batch, height, width, channels], contiguous; may be overwritten.
            random: All random numbers of each sample; anything if `draws` is 0.
            out: Gets the result, [batch, height, width, channels] of the dtype that `dtype` says, contiguous. It may be
                `pixels` itself.

        Raises:
            UsageError: A step cannot be applied to them.
        """
        target = torch.from_numpy(out).permute(0, 3, 1, 2)
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        for part in self._parts:
            images = part.batch_in_memory(images, random, target)
        if images.data_ptr() != target.data_ptr():
            target.copy_(images)

    def dtype(self, channels: int) -> torch.dtype:
        """The dtype of the result for images with so many channels.

        Raises:
            UsageError: A step cannot be applied to them, or it changes their shape.
        """
        image = torch.zeros(channels, 8, 8, dtype=torch.uint8)
        shape, last = image.shape, max((part.stop for part in self._parts), default=0)
        image = self.image(image, [0.0] * last)
        if image.shape != shape:
            raise UsageError(f"{self.steps[-1]} makes {list(image.shape)} of {list(shape)}")
        return image.dtype


class _Converted:
    """Steps that change each value by itself: for bytes, one pass through a table."""

    stop: Final = 0

    def __init__(self, steps: Iterable[PointwiseStep]) -> None:
        self._steps = tuple(steps)
        self._tables: dict[tuple[int, torch.device], torch.Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tables": {}}

    def image(self, image: torch.Tensor, random: Sequence[float]) -> torch.Tensor:
        table = self._table(image) if extension is not None and image.dtype == torch.uint8 else None
        if extension is None or table is None or table.element_size() not in (2, 4, 8):
            return self._convert(image.contiguous())
        made = torch.empty(image.shape, dtype=table.dtype)
        extension.lookup(_rows(image[None]), _bits(table), True, _bits(made))
        return made

    def batch(self, images: torch.Tensor, random: Numbers) -> torch.Tensor:
        if images.dtype != torch.uint8:
            return self._convert(images)
        table = self._table(images)
        channels = images.shape[1]
        pixels = images.permute(0, 2, 3, 1)
        # The numbers of a channel are a row of the table.
        rows = torch.arange(0, 256 * channels, 256, dtype=torch.int32, device=images.device)
        found = table.flatten().index_select(0, pixels.to(torch.int32).add_(rows).flatten())
        return found.view(pixels.shape).permute(0, 3, 1, 2)

    def batch_in_memory(self, images: torch.Tensor, random: Numbers, out: torch.Tensor) -> torch.Tensor:
        if extension is None or images.dtype != torch.uint8:
            return self._convert(images)
        table = self._table(images)
        if table.element_size() not in (2, 4, 8):
            return self._convert(images)
        made = (
            out
            if out.dtype == table.dtype
            else torch.empty_like(images, dtype=table.dtype, memory_format=torch.channels_last)
        )
        extension.lookup(_rows(images), _bits(table), False, _bits(made.permute(0, 2, 3, 1)))
        return made

    def _convert(self, values: torch.Tensor) -> torch.Tensor:
        for step in self._steps:
            values = step.convert(values)
        return values

    def _table(self, images: torch.Tensor) -> torch.Tensor:
        """Return the result of the steps for each byte in each channel: [channels, 256]."""
        key = images.shape[-3], images.device
        if key not in self._tables:
            # Computed by the processor, whatever device it is for: others may round differently.
            values = torch.arange(256, dtype=torch.uint8).expand(key[0], 1, 256)
            self._tables[key] = self._convert(values).reshape(key[0], 256).contiguous().to(images.device)
        return self._tables[key]


class _Each:
    """A step that runs on one image after the other."""

    def __init__(self, step: FinishingStep, first: int) -> None:
        self._step = step
        self._numbers = slice(first, first + step.draws)
        self.stop: Final = first + step.draws

    def image(self, image: torch.Tensor, random: Sequence[float]) -> torch.Tensor:
        return self._step.finish(image, random[self._numbers])

    def batch(self, images: torch.Tensor, random: Numbers) -> torch.Tensor:
        each = list(images)
        numbers = [row[self._numbers] for row in random] if self._step.draws else [()] * len(each)
        finished = [self._step.finish(image, row) for image, row in zip(each, numbers, strict=True)]
        if all(image is other for image, other in zip(each, finished, strict=True)):
            return images
        return torch.stack(finished)

    def batch_in_memory(self, images: torch.Tensor, random: Numbers, out: torch.Tensor) -> torch.Tensor:
        return self.batch(images, random)


def _parts(steps: Sequence[FinishingStep], first: int) -> Iterator[_Converted | _Each]:
    for pointwise, group in groupby(steps, lambda step: isinstance(step, PointwiseStep)):
        found = list(group)
        if pointwise:
            if changing := [step for step in found if type(step) not in _UNCHANGING]:
                yield _Converted(changing)  # type: ignore[arg-type]
            continue
        for step in found:
            yield _Each(step, first)
            first += step.draws


def _rows(images: torch.Tensor) -> npt.NDArray[np.uint8]:
    """All rows of images, [batch, channels, height, width], as [rows, width, channels]."""
    return images.permute(0, 2, 3, 1).contiguous().flatten(0, 1).numpy()


def _bits(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor as an array of integers of the same size, since numpy does not know all of torch's dtypes."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]).numpy()
