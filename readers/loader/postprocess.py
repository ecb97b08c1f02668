"""Postprocessing of a whole batch: cast, normalisation, and the user's batch transform."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final

import torch

from packtrain._core.arguments import function
from packtrain._core.errors import UsageError
from packtrain._core.keys import mixed
from packtrain._core.schema import IMAGE

from ..dataset.rows import is_sample
from ..transforms.arguments import for_unit_range
from ..transforms.finisher import Finisher
from .engine import Job
from .generators import Seeder
from .ragged import Ragged
from .randomness import preserved

# Mixed into the key, so that a batch transform draws neither the numbers of a sample nor those of `collate_fn`.
_TRANSFORM: Final = 0x7472616E73666F72

BatchTransform = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | Callable[[Any], Any]

# Batch transforms that mix images, and are checked. On bytes, some of them fail with a message about dtypes, and others
# silently mix wrongly: where timm's Mixup draws a share for each image, the share is rounded to 0.
_TIMM: Final = ("timm.data.mixup", "Mixup")
_TORCHVISION: Final = ("torchvision.transforms.v2._augment", "MixUp")

# Images of so many sizes are normalised with factors that are made only once.
_SIZES: Final = 16


class Postprocess:
    """Casts and normalises the images of a batch, then calls the batch transform.

    Args:
        mean: Mean of each channel, or one mean for all channels, of images in [0, 1].
        std: Standard deviation of each channel, or one for all channels. Give both `mean` and `std`, or neither.
        dtype: Dtype of the images; None: float32 with `mean` and `std`, otherwise unchanged.
        batch_transform: Called with images and labels, returns both. Of named fields, called with the whole batch;
            what it returns is handed out.

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
        self._made: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def __bool__(self) -> bool:
        """True if there is anything to do."""
        return self._dtype is not None or self._batch_transform is not None

    def check(self, finishers: Iterable[Finisher]) -> None:
        """Checks that the transforms of the images do not convert them before they are normalised here.

        Raises:
            UsageError: They do.
        """
        for finisher in finishers if self._statistics is not None else ():
            if finisher.converts:
                raise UsageError(
                    f"mean and std need bytes, but the transforms end with {', '.join(map(str, finisher.steps))}: "
                    "normalise in the transforms or in the loader, not in both"
                )

    def __call__(self, batch: Any, job: Job) -> Any:
        """The postprocessed batch. The random numbers of its transform depend on its first position.

        Raises:
            UsageError: The batch is not (images, labels, ...), or its images cannot be normalised.
        """
        if not self:
            return batch
        if is_sample(batch):
            return self._of_fields(batch, job)
        if not isinstance(batch, (tuple, list)) or len(batch) < 2 or not _are_images(batch[0]):
            raise UsageError(
                "mean, std, dtype and batch_transform need batches (images, labels, ...) with a tensor of images: let "
                "collate_fn return such batches, or do this work in collate_fn"
            )
        images, labels = mapped(self._cast, batch[0]), batch[1]
        if self._batch_transform is not None:
            _require_mixable(self._batch_transform, images)
            changed = self._transformed(job, images, labels)
            if not isinstance(changed, (tuple, list)) or len(changed) != 2:
                raise UsageError(
                    f"batch_transform returned an object of type {type(changed).__name__}: expected images and labels"
                )
            images, labels = changed
        return _rebuilt(batch, [images, labels, *batch[2:]])

    def _of_fields(self, batch: Any, job: Job) -> Any:
        """The same for a batch of named fields."""
        if self._dtype is not None:
            if IMAGE not in batch._fields:
                raise UsageError(
                    f"mean, std and dtype are for the field image, but a batch has {', '.join(batch._fields)}: leave "
                    "them out, or add it to open_dataset(fields=...)"
                )
            batch = batch._replace(image=mapped(self._cast, batch.image))
        return batch if self._batch_transform is None else self._transformed(job, batch)

    def _transformed(self, job: Job, *arguments: Any) -> Any:
        """Return the result of the batch transform."""
        assert self._batch_transform is not None
        with preserved():
            self._seeder.seed(mixed(job.key, _TRANSFORM), int(job.positions[0]))
            return self._batch_transform(*arguments)

    def _cast(self, images: torch.Tensor) -> torch.Tensor:
        """Images as they are handed out.

        Normalised are images * (1 / (255 std)) + (-mean / std), computed in float32 or better and cast once.
        """
        if self._dtype is None:
            return images
        if self._statistics is None:
            return images.to(self._dtype)
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
        if wanted not in self._made:
            assert self._statistics is not None
            repeats = rows.shape[-1] // len(self._statistics)
            scale = torch.tensor([1 / (255 * std) for _, std in self._statistics] * repeats, dtype=dtype)
            shift = torch.tensor([-mean / std for mean, std in self._statistics] * repeats, dtype=dtype)
            if len(self._made) == _SIZES:
                self._made.clear()
            self._made[wanted] = scale.to(rows.device), shift.to(rows.device)
        return self._made[wanted]


def mapped(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """The batch with `function` applied to every tensor in tuples, named tuples, lists and mappings."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Ragged):
        return batch.mapped(function)
    if is_sample(batch):
        # The lists in it hold texts, bytes, or JSON values, which may be nested deeply.
        return _rebuilt(batch, [value if isinstance(value, list) else mapped(function, value) for value in batch])
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


def _are_images(images: Any) -> bool:
    """True for a tensor, and for the tensors of several views."""
    views = images if isinstance(images, (tuple, list)) else (images,)
    return bool(views) and all(isinstance(view, torch.Tensor) for view in views)


def _rebuilt(batch: Any, values: list[Any]) -> Any:
    """A tuple or list of the same type with new values."""
    return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)


def _require_mixable(transform: object, images: Any) -> None:
    """Check that a batch transform can mix these images. Nothing is known of most transforms.

    Args:
        transform: The batch transform, or torchvision's choice or list of several.
        images: The images of a batch: a tensor [batch, ...], or a tuple of views.

    Raises:
        UsageError: It cannot.
    """
    for each in (transform, *getattr(transform, "transforms", ())):
        known = {(kind.__module__, kind.__name__) for kind in type(each).__mro__} & {_TIMM, _TORCHVISION}
        if not known:
            continue
        name = f"{'timm' if known == {_TIMM} else 'torchvision'}'s {type(each).__name__}"
        if isinstance(images, (tuple, list)):
            raise UsageError(
                f"batch_transform: {name} mixes one tensor of images, but Views give a tuple: give a function that "
                "calls it with one of them"
            )
        # Pasting rectangles with one share for the whole batch works on bytes, too.
        pastes = _TIMM in known and getattr(each, "mode", "") == "batch" and getattr(each, "mixup_alpha", 1) == 0
        if not images.is_floating_point() and not pastes:
            raise UsageError(
                f"batch_transform: {name} needs images of floating point, but these are {images.dtype}: give mean= and "
                "std=, or dtype=torch.float32, which are applied before it"
            )
        if _TIMM in known and len(images) % 2:
            raise UsageError(
                f"batch_transform: {name} needs an even number of images, but this batch has {len(images)}: give an "
                "even batch_size and drop_last=True"
            )


def _statistics(mean: float | Iterable[float], std: float | Iterable[float]) -> tuple[tuple[float, float], ...]:
    """Mean and standard deviation of each channel, or of all of them."""
    try:
        means = [float(value) for value in (mean if isinstance(mean, Iterable) else [mean])]
        deviations = [float(value) for value in (std if isinstance(std, Iterable) else [std])]
    except (TypeError, ValueError):
        raise UsageError(f"mean={mean!r}, std={std!r}: expected numbers, one for each channel") from None
    given = tuple(means), tuple(deviations)
    # A number is for all channels, also beside one for each.
    if not isinstance(mean, Iterable):
        means *= len(deviations)
    if not isinstance(std, Iterable):
        deviations *= len(means)
    if not means or len(means) != len(deviations):
        raise UsageError(f"mean={mean!r}, std={std!r}: expected equally many of both")
    if not all(map(math.isfinite, means + deviations)) or min(deviations) <= 0:
        raise UsageError(f"mean={mean!r}, std={std!r}: expected finite numbers, and std greater than 0")
    for_unit_range(*given, "images are scaled to [0, 1] before they are normalised")
    return tuple(zip(means, deviations, strict=True))
