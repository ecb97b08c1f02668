"""Crops of many images at once: what `Compose.steps` says for each, where that is a crop and a flip at most."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .transforms import CenterCrop, Compose, RandomCrop, RandomHorizontalFlip

_KNOWN: Final = {RandomCrop, CenterCrop, RandomHorizontalFlip}

Numbers = npt.NDArray[np.int64]


class Crops(NamedTuple):
    """A rectangle of each of some images.

    Attributes:
        left: Pixels, int64 [images].
        top: Likewise.
        mirrored: Whether left and right are to be exchanged, bool [images].
    """

    left: Numbers
    top: Numbers
    mirrored: npt.NDArray[np.bool_]


def crops_of(
    compose: Compose, size: tuple[int, int], widths: Numbers, heights: Numbers, random: npt.NDArray[np.float64]
) -> Crops | None:
    """The crops that a transform comes down to.

    Args:
        compose: The transform.
        size: (height, width) of the result.
        widths: Pixels of the images, int64 [images].
        heights: Likewise.
        random: Uniform in [0, 1), float64 [images, `compose.draws` or more].

    Returns:
        None if the transform is of another kind, or its results are of another size, or one of the images is smaller.
    """
    parts = _parted(compose)
    if parts is None:
        return None
    crop, flip = parts
    height, width = size
    if crop is None:
        left = top = np.zeros(len(widths), np.int64)
        fits = (widths == width).all() and (heights == height).all()
    elif crop.size != size:
        return None
    else:
        right, bottom = widths - width, heights - height
        fits = (right >= 0).all() and (bottom >= 0).all()
        if isinstance(crop, CenterCrop):
            # To even numbers, as Python rounds.
            left, top = np.rint(right / 2).astype(np.int64), np.rint(bottom / 2).astype(np.int64)
        else:
            left = (random[:, 0] * (right + 1)).astype(np.int64)
            top = (random[:, 1] * (bottom + 1)).astype(np.int64)
    mirrored = np.zeros(len(widths), np.bool_) if flip is None else random[:, compose.draws - 1] < flip.p
    return Crops(left, top, mirrored) if fits else None


def _parted(compose: Compose) -> tuple[RandomCrop | CenterCrop | None, RandomHorizontalFlip | None] | None:
    """The crop and the flip that a transform consists of."""
    # Who derives from a transform may have changed what it does.
    if compose.rest or not {type(transform) for transform in compose.fused} <= _KNOWN:
        return None
    match compose.fused:
        case ():
            return None, None
        case (RandomHorizontalFlip() as flip,):
            return None, flip
        case (RandomCrop(pads=False) | CenterCrop() as crop,):
            return crop, None
        case (RandomCrop(pads=False) | CenterCrop() as crop, RandomHorizontalFlip() as flip):
            return crop, flip
    return None
