"""Rectangles of many images at once: what `Compose.steps` says for each, where that is a crop, a resize and a flip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._codec import resizing
from packtrain._codec.geometry import Flip, Scale, first_crop
from packtrain._core.errors import UsageError

from .geometric import CenterCrop, Compose, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

if TYPE_CHECKING:
    from typing_extensions import Buffer

_COPIES: Final = {RandomCrop, CenterCrop, RandomHorizontalFlip}
_RESIZES: Final = _COPIES | {RandomResizedCrop, Resize}
_MIRROR: Final = Flip(horizontal=True)

Numbers = npt.NDArray[np.int64]


class Crops(NamedTuple):
    """A rectangle of each of some images, to be resized to the size of the result, if it is of another one.

    Attributes:
        boxes: int64 [images, 5]: left, top, width and height in pixels, and whether left and right are to be exchanged.
        resample: The filter, as in `PIL.Image.Resampling`; -1 if none is needed.
        style: Whose filter it is, see `packtrain._codec.resizing`.
    """

    boxes: Numbers
    resample: int = -1
    style: int = 0


class Destination(NamedTuple):
    """Where in a batch `ImageDataset.copy_rows` writes samples, and what it needs to know of them.

    Attributes:
        images: uint8 [batch, height, width, channels].
        labels: [batch, ...].
        rows: Of the samples, as the caller calls them, int64 [batch].
        random: Uniform in [0, 1), `draws` for each sample, float64 [batch, draws].
        at: The samples of the batch that are meant, int64 [samples].
        current: int64 [1]: gets the one of `rows` that is being read.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[Any]
    rows: npt.NDArray[np.int64]
    random: npt.NDArray[np.float64]
    at: npt.NDArray[np.int64]
    current: Buffer


def crops_of(
    compose: Compose, size: tuple[int, int], widths: Numbers, heights: Numbers, random: npt.NDArray[np.float64]
) -> Crops | None:
    """The rectangles that a transform comes down to.

    Args:
        compose: The transform.
        size: (height, width) of the result.
        widths: Pixels of the images, int64 [images].
        heights: Likewise.
        random: Uniform in [0, 1), float64 [images, `compose.draws` or more].

    Returns:
        None if the transform is of another kind, or results are of another size, or one of the images is too small.
    """
    # Who derives from a transform may have changed what it does.
    kinds = {type(transform) for transform in compose.fused}
    if compose.rest or not kinds <= _RESIZES:
        return None
    if kinds <= _COPIES:
        return _copies(compose, size, widths, heights, random)
    style = resizing.style()
    return None if style is None else _one_by_one(compose, size, widths, heights, random, style)


def _copies(
    compose: Compose, size: tuple[int, int], widths: Numbers, heights: Numbers, random: npt.NDArray[np.float64]
) -> Crops | None:
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
    boxes = np.empty((len(widths), 5), np.int64)
    if isinstance(crop, RandomCrop):
        boxes[:, 0], boxes[:, 1] = random[:, 0] * (right + 1), random[:, 1] * (bottom + 1)
    else:
        # To even numbers, as Python rounds.
        boxes[:, 0], boxes[:, 1] = np.rint(right / 2), np.rint(bottom / 2)
    boxes[:, 2], boxes[:, 3] = width, height
    boxes[:, 4] = 0 if flip is None else random[:, compose.draws - 1] < flip.p
    return Crops(boxes)


def _one_by_one(
    compose: Compose,
    size: tuple[int, int],
    widths: Numbers,
    heights: Numbers,
    random: npt.NDArray[np.float64],
    style: int,
) -> Crops | None:
    """With the very arithmetic of `Compose.steps`: numpy's exponential function may differ in the last digit."""
    boxes, resamples = [], set[int]()
    for width, height, numbers in zip(widths.tolist(), heights.tolist(), random.tolist(), strict=True):
        try:
            box, steps = first_crop(compose.steps(width, height, numbers), width, height)
        except UsageError:
            return None
        after = (box.width, box.height)
        if steps and type(steps[0]) is Scale:
            resamples.add(steps[0].resample)
            after, steps = steps[0][:2], steps[1:]
        if after != size[::-1] or steps not in ((), (_MIRROR,)):
            return None
        boxes.append((*box, bool(steps)))
    if len(resamples) > 1 or not resamples <= resizing.RESAMPLES:
        return None
    return Crops(np.array(boxes, np.int64), next(iter(resamples), -1), style)
