"""What happens to a whole batch once it is made: cast, normalisation, and the user's batch transform."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

import torch

from packtrain._core.arguments import function
from packtrain._core.errors import UsageError

from .arena import Layout
from .engine import Batch, Job
from .generators import Seeder
from .randomness import mixed, preserved

# Mixed into the key, so that a batch transform draws neither the numbers of a sample nor those of `collate_fn`.
_TRANSFORM: Final = 0x7472616E73666F72

BatchTransform = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Postprocess:
    """Casts and normalises the images of a batch, then calls the batch transform.

    Args:
        mean: Mean of each channel, or one mean for all channels, of images in [0, 1].
        std: Standard deviation of each channel, or one for all channels. Give both `mean` and `std`, or neither.
        dtype: Dtype of the images; None: float32 with `mean` and `std`, otherwise unchanged.
        batch_transform: Called with images and labels, returns both.

    Raises:
        UsageError: An argument is of the wrong type or out of its range.
    """

    def __init__(
        self,
        mean: float | Iterable[float] | None = None,
        std: float | Iterable[float] | None = None,
        dtype: torch.dtype | None = None,
        batch_transform: BatchTransform | None = None,
    ) -> None:
        if (mean is None) != (std is None):
            raise UsageError("give both mean and std, or neither")
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise UsageError(f"dtype={dtype!r}: expected a torch.dtype")
        function("batch_transform", batch_transform)
        self._statistics = None
        if mean is not None and std is not None:
            self._statistics = _statistics(mean, std)
            dtype = torch.float32 if dtype is None else dtype
            if not dtype.is_floating_point:
                raise UsageError(f"dtype={dtype}: normalised images need a floating point dtype")
        self._dtype = dtype
        self._batch_transform = batch_transform
        self._seeder = Seeder(batch_transform)
        self._made: tuple[Any, tuple[torch.Tensor, torch.Tensor]] | None = None

    def __bool__(self) -> bool:
        """True if there is anything to do."""
        return self._dtype is not None or self._batch_transform is not None

    def __call__(self, batch: Any, job: Job) -> Any:
        """The postprocessed batch. The random numbers of its transform depend on its first position.

        Raises:
            UsageError: The batch is not (images, labels, ...), or its images cannot be normalised.
        """
        if not self:
            return batch
        if not isinstance(batch, (tuple, list)) or len(batch) < 2 or not isinstance(batch[0], torch.Tensor):
            raise UsageError(
                "mean, std, dtype and batch_transform need batches (images, labels, ...) with a tensor of images: let "
                "collate_fn return such batches, or do this work in collate_fn"
            )
        images, labels = batch[0], batch[1]
        if self._statistics is not None:
            images = self._normalised(images)
        elif self._dtype is not None:
            images = images.to(self._dtype)
        if self._batch_transform is not None:
            with preserved():
                self._seeder.seed(mixed(job.key, _TRANSFORM), int(job.positions[0]))
                changed = self._batch_transform(images, labels)
            images, labels = _both(changed)
        return _rebuilt(batch, [images, labels, *batch[2:]])

    def _normalised(self, images: torch.Tensor) -> torch.Tensor:
        """images * (1 / (255 std)) + (-mean / std), computed in float32 or better and cast once."""
        assert self._statistics is not None and self._dtype is not None
        channels = len(self._statistics)
        if images.dtype != torch.uint8 or images.ndim != 4 or channels not in (1, images.shape[1]):
            raise UsageError(
                "mean and std need uint8 images [batch, channels, height, width] with as many channels; these are "
                f"{images.dtype} {list(images.shape)}: normalise in the transforms or in the loader, not in both"
            )
        pixels = images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        # A row of pixels at a time: an inner loop over only three channels would take a CPU three times as long.
        rows = pixels.flatten(2)
        scale, shift = self._factors(rows, torch.promote_types(self._dtype, torch.float32))
        values = rows.to(scale.dtype)
        out = values if self._dtype == values.dtype else torch.empty_like(values, dtype=self._dtype)
        torch.addcmul(shift, values, scale, out=out)
        return out.view(pixels.shape).permute(0, 3, 1, 2)

    def _factors(self, rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The factors that a row of pixels is multiplied by, and the summands that are added to it."""
        wanted = rows.shape[-1], rows.device, dtype
        if self._made is None or self._made[0] != wanted:
            assert self._statistics is not None
            repeats = rows.shape[-1] // len(self._statistics)
            scale = torch.tensor([1 / (255 * std) for _, std in self._statistics] * repeats, dtype=dtype)
            shift = torch.tensor([-mean / std for mean, std in self._statistics] * repeats, dtype=dtype)
            self._made = wanted, (scale.to(rows.device), shift.to(rows.device))
        return self._made[1]


def tensors_of(batch: Batch, layout: Layout, fields: Sequence[str]) -> Any:
    """The tensors of a batch from an engine: views of its arrays, or what `collate_fn` returned."""
    made, arrays = batch.made, batch.value
    if "image" not in layout.fields:
        return made.collated
    images = torch.from_numpy(arrays["image"][: made.size])
    if layout.fields["image"].channels_last:
        images = images.permute(0, 3, 1, 2)
    labels = torch.from_numpy(arrays["label"][: made.size])
    return images, labels, *_columns(fields, made.extras)


def mapped(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """The batch with `function` applied to every tensor in tuples, named tuples, lists and mappings."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        found = {name: mapped(function, value) for name, value in batch.items()}
        if type(batch) is dict or not isinstance(batch, MutableMapping):
            return found
        # Only a copy keeps what a subclass adds, for example the factory of a defaultdict.
        changed = copy.copy(batch)
        changed.update(found)
        return changed
    if isinstance(batch, (tuple, list)):
        return _rebuilt(batch, [mapped(function, value) for value in batch])
    return batch


def _both(changed: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(changed, (tuple, list)) or len(changed) != 2:
        raise UsageError(
            f"batch_transform returned an object of type {type(changed).__name__}: expected images and labels"
        )
    return changed[0], changed[1]


def _rebuilt(batch: Any, values: list[Any]) -> Any:
    """A tuple or list of the same type with new values."""
    return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)


def _columns(fields: Sequence[str], extras: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    for name, column in zip(fields, zip(*extras, strict=True), strict=True):
        yield list(column) if name == "path" else torch.tensor(column, dtype=torch.int64, device="cpu")


def _statistics(mean: float | Iterable[float], std: float | Iterable[float]) -> tuple[tuple[float, float], ...]:
    """Mean and standard deviation of each channel, or of all of them."""
    try:
        means = [float(value) for value in (mean if isinstance(mean, Iterable) else [mean])]
        deviations = [float(value) for value in (std if isinstance(std, Iterable) else [std])]
    except (TypeError, ValueError):
        raise UsageError(f"mean={mean!r}, std={std!r}: expected numbers, one for each channel") from None
    if not means or len(means) != len(deviations):
        raise UsageError(f"mean={mean!r}, std={std!r}: expected equally many of both")
    if not all(map(math.isfinite, means + deviations)) or min(deviations) <= 0:
        raise UsageError(f"mean={mean!r}, std={std!r}: expected finite numbers, and std greater than 0")
    return tuple(zip(means, deviations, strict=True))
