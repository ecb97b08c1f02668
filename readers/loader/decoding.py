"""Decodes the images of a batch where the consumer wants them, and makes of each what its plan says.

A decoder turns compressed bytes into pixels on the device, each image of its own size. All that follows, crop, resize
and flips, is done for the whole batch, see `resampling`. What the decoder refuses is decoded on the CPU, and what that
refuses too is a damaged record.

A decoder of the hardware may write as soon as it is called, whatever is queued on the stream that it was given, so that
it overwrites memory that queued work still reads (meta-pytorch/torchcodec#1634, pytorch/vision#9606). Hence the rule:

- Before the decoder is called, the process waits for all work that is queued on the side stream. All memory that the
  decoder may get was last used by that stream, or is only given out once the consumer's stream is done with it.
- After it was called, the process waits again: then the pixels are there, and nothing reads the compressed bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from packtrain._core.errors import CorruptRecord, LoaderError

from ..dataset.rows import is_sample
from ..transforms.undecoded import Undecoded
from .ragged import Ragged
from .resampling import resampled

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .batches import BatchMaker
    from .engine import Batch


@dataclass(frozen=True)
class UndecodedImages:
    """The images of a batch, still to be decoded.

    Attributes:
        images: The images.
        shape: Height, width and channels of each result.
    """

    images: Sequence[Undecoded]
    shape: tuple[int, ...]


class ImageDecoder(Protocol):
    """Decodes whole images."""

    def decode(self, data: Sequence[Buffer]) -> Sequence[torch.Tensor | None]:
        """Decodes images to tensors on the device, uint8 [height, width, 3] each, not turned by their EXIF orientation.

        Returns:
            None in place of each image that the decoder refuses.

        Raises:
            LoaderError: The decoder itself has failed.
        """


class BatchDecoder:
    """Decodes the images of a batch, and keeps to the rule above.

    Args:
        make: Makes the decoder when it is first used. Workers that are forked before that know nothing of it.
        wait: Waits until all work is done that is queued on the present stream.
        device: Device of the pixels.
    """

    def __init__(
        self, make: Callable[[torch.device], ImageDecoder], wait: Callable[[], object], device: torch.device
    ) -> None:
        self._make = make
        self._made: ImageDecoder | None = None
        self._wait = wait
        self._device = device

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_made": None}

    def decode(self, data: Sequence[Buffer]) -> list[torch.Tensor | None]:
        """Return the pixels of each image, see `ImageDecoder.decode`. No work on them is queued any more.

        Raises:
            LoaderError: The decoder cannot be made, or it has failed.
        """
        self._wait()
        try:
            if self._made is None:
                try:
                    self._made = self._make(self._device)
                except (ImportError, OSError, RuntimeError) as error:
                    raise LoaderError(
                        f"the GPU's decoder cannot be used ({error}): `packtrain doctor` tries it on one picture; "
                        "decode='cpu' needs none"
                    ) from error
            return list(self._made.decode(data))
        finally:
            self._wait()

    def __call__(self, maker: BatchMaker, value: Any, batch: Batch) -> tuple[Any, Batch]:
        """Put pixels in the place of the undecoded images of a batch.

        Args:
            maker: Made the batch.
            value: The batch as its consumer knows it, but for undecoded images.
            batch: Where it comes from.

        Returns:
            The same with uint8 [samples, 3, height, width] in channels_last memory; and where it comes from, without
            the samples that are left out because they cannot be decoded.

        Raises:
            CorruptRecord: An image cannot be decoded, and damaged records are not to be left out.
        """
        places = [place for place, each in enumerate(value) if isinstance(each, UndecodedImages)]
        if not places:
            return value, batch
        (place,) = places
        images = value[place].images
        pixels, refused, damaged = self._pixels(maker, images, batch)
        kept = {number: each for number, each in enumerate(pixels) if each is not None}
        skipped = (*batch.made.skipped, *damaged)
        made = batch.made._replace(size=len(kept), skipped=skipped, undecoded=(), refused=refused)
        batch = batch._replace(made=made)
        if not kept:
            return None, batch
        found = resampled([*kept.values()], [images[number].plan for number in kept])
        values = list(value)
        if damaged:
            positions = batch.value["position"][list(kept)]
            batch = batch._replace(value={**batch.value, "position": positions})
            values = [each if isinstance(each, UndecodedImages) else _chosen(each, list(kept)) for each in values]
        values[place] = found.permute(0, 3, 1, 2)
        return type(value)(*values) if is_sample(value) else type(value)(values), batch

    def _pixels(
        self, maker: BatchMaker, images: Sequence[Undecoded], batch: Batch
    ) -> tuple[list[torch.Tensor | None], list[str], list[str]]:
        """Return pixels or None for each image, and messages: which ones the CPU decoded, and which are damaged."""
        pixels = self.decode([image.data for image in images])
        refused, damaged = [], []
        for number, image in enumerate(images):
            given = pixels[number]
            if given is not None and image.fits(given.shape[1], given.shape[0]):
                continue
            row = _row(batch, number)
            try:
                decoded = np.require(maker.samples.pixels(row, image), requirements="W")
            except CorruptRecord as error:
                if not maker.skip:
                    raise
                pixels[number] = None
                damaged.append(str(error))
            else:
                pixels[number] = torch.from_numpy(decoded).to(self._device)
                refused.append(f"the GPU refused an image, so the CPU decoded it: {maker.samples.describe(row)}")
        return pixels, refused, damaged


def _row(batch: Batch, number: int) -> int:
    """The row of a sample of a batch from which others may have been left out."""
    position = batch.value["position"][number]
    return int(batch.job.rows[batch.job.positions == position][0])


def _chosen(value: Any, numbers: list[int]) -> Any:
    """Some samples of a field."""
    if isinstance(value, torch.Tensor):
        return value[torch.tensor(numbers, device=value.device)]
    if isinstance(value, Ragged):
        arrays = [value[number] for number in numbers]
        ends = torch.tensor([0, *(len(array) for array in arrays)], device=value.offsets.device).cumsum(0)
        return Ragged(torch.cat(arrays), ends)
    if isinstance(value, list):
        return [value[number] for number in numbers]
    # Views, or which samples have an optional field.
    chosen = [_chosen(each, numbers) for each in value]
    return type(value)(*chosen) if is_sample(value) else tuple(chosen)
