"""Plans for many images at once, for transforms that crop, resize and mirror."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._codec import resizing
from packtrain._core.errors import UsageError

from .compose import Compose
from .geometric import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

if TYPE_CHECKING:
    from typing_extensions import Buffer

_COPIES: Final = {RandomCrop, CenterCrop, RandomHorizontalFlip}
_RESIZES: Final = _COPIES | {RandomResizedCrop, Resize}

Numbers = npt.NDArray[np.int64]


class BatchPlan(NamedTuple):
    """Plans for several images whose results have the same size.

    Attributes:
        boxes: int64 [images, 9]: left, top, width and height of the rectangle in pixels; width and height to which it
            is resized, left and top of what is kept of that; 1 if this is mirrored.
        resample: Filter of the resize, a value of `PIL.Image.Resampling`; -1 if nothing is resized.
        style: Whose arithmetic the filter follows, see `packtrain._codec.resizing`.
    """

    boxes: Numbers
    resample: int = -1
    style: int = 0


class Destination(NamedTuple):
    """The part of a batch that samples are written to, with the random numbers to make them.

    Attributes:
        images: uint8 [batch, height, width, channels].
        labels: [batch, ...].
        rows: Rows of all samples of the batch, as the caller numbers them, int64 [batch].
        random: Random numbers of each sample, uniform in [0, 1), float64 [batch, draws].
        at: Which samples of the batch to make, int64 [samples].
        current: int64 [1]; the row that is being read is written here.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[Any]
    rows: npt.NDArray[np.int64]
    random: npt.NDArray[np.float64]
    at: npt.NDArray[np.int64]
    current: Buffer


def plan_batch(
    compose: Compose, size: tuple[int, int], widths: Numbers, heights: Numbers, random: npt.NDArray[np.float64]
) -> BatchPlan | None:
    """Plans a transform for several images.

    Args:
        compose: The transform.
        size: (height, width) of the results in pixels.
        widths: Widths of the images in pixels, int64 [images].
        heights: Heights of the images in pixels, int64 [images].
        random: Uniform in [0, 1), float64 [images, `compose.draws` or more].

    Returns:
        The plans; None if the transform is of another kind, if the results would have another size, or if one of the
        images is too small.
    """
    # By type, not by isinstance: a derived class may do something else.
    kinds = {type(transform) for transform in compose.fused}
    if compose.foreign or not kinds <= _RESIZES:
        return None
    if kinds <= _COPIES:
        return _plan_copies(compose, size, widths, heights, random)
    style = resizing.style()
    return None if style is None else _plan_one_by_one(compose, size, widths, heights, random, style)


def _plan_copies(
    compose: Compose, size: tuple[int, int], widths: Numbers, heights: Numbers, random: npt.NDArray[np.float64]
) -> BatchPlan | None:
    crop: RandomCrop | CenterCrop | None = None
    flip: RandomHorizontalFlip | None = None
    for transform in compose.fused:
        if isinstance(transform, RandomHorizontalFlip) and flip is None:
            flip = transform
        elif isinstance(transform, RandomCrop | CenterCrop) and crop is None and flip is None:
            crop = transform
        else:
            return None
    if isinstance(crop, RandomCrop) and crop.pads:
        return None
    height, width = size
    right, bottom = widths - width, heights - height
    least, most = min(right.min(), bottom.min()), max(right.max(), bottom.max())
    if least < 0 or (crop is None and most > 0) or (crop is not None and crop.size != size):
        return None
    boxes = np.zeros((len(widths), 9), np.int64)
    if isinstance(crop, RandomCrop):
        boxes[:, 0], boxes[:, 1] = random[:, 0] * (right + 1), random[:, 1] * (bottom + 1)
    else:
        # Halves are rounded to even numbers, as by Python's `round`.
        boxes[:, 0], boxes[:, 1] = np.rint(right / 2), np.rint(bottom / 2)
    boxes[:, 2:6] = width, height, width, height
    boxes[:, 8] = 0 if flip is None else random[:, compose.planned - 1] < flip.p
    return BatchPlan(boxes)


def _plan_one_by_one(
    compose: Compose,
    size: tuple[int, int],
    widths: Numbers,
    heights: Numbers,
    random: npt.NDArray[np.float64],
    style: int,
) -> BatchPlan | None:
    """Calls `Compose.plan` for each image: numpy's exponential function may differ from Python's in the last digit."""
    boxes, resamples = [], set[int]()
    wanted = size[::-1]
    for width, height, numbers in zip(widths.tolist(), heights.tolist(), random.tolist(), strict=True):
        try:
            plan = compose.plan(width, height, numbers)
        except UsageError:
            return None
        box, resize, window, mirrored, rest = plan
        if rest or plan.size != wanted:
            return None
        if resize is not None:
            resamples.add(resize.resample)
        left, top = (0, 0) if window is None else window[:2]
        boxes.append((*box, *(box[2:] if resize is None else resize[:2]), left, top, mirrored))
    if len(resamples) > 1 or not resamples <= resizing.RESAMPLES:
        return None
    return BatchPlan(np.array(boxes, np.int64), next(iter(resamples), -1), style)
