"""Crop, antialiased resize and flips of a batch of images of different sizes, in few kernels for the whole batch.

Each pass of a resize is a multiplication with a matrix of weights. The weights are those of `precompute_coeffs` in
Pillow's src/libImaging/Resample.c; a window, a mirrored or an upside-down image takes the same weights in other places.
Pixels are rounded to bytes after each of the two passes. All of it is done so that the pixels are Pillow's.

Pillow rounds weights to 22 bits after the binary point and adds up integers. Here each weight is the sum of two numbers
of 11 bits, so that the products with bytes are exact in float32, even if torch multiplies in TF32. So are their sums,
but for those of a thousand products or so, where an image is made hundreds of times smaller. They would not be exact in
bfloat16, in which torch may multiply on a CPU: there it is given float64 then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from packtrain._codec.geometry import FILTERS
from packtrain._codec.image_plan import ImagePlan

MEMORY: Final = 2**28
"""Bytes that are needed at most, next to the images and the results, unless a single image needs more."""
# Images are put together with larger ones only until that many times their pixels are computed.
_PADDING: Final = 2.0
_NEAREST: Final = FILTERS["nearest"]
_CHANNELS: Final = 3
# Bits of a weight after the binary point, and how many of these are in its lower part.
_BITS: Final = 22
_LOWER: Final = 12


class Filter(NamedTuple):
    """One of Pillow's filters.

    Attributes:
        support: How far it reaches to either side, in source pixels at scale 1.
        weight: Weights at some distances from the centre, in pixels at scale 1; may change its argument.
    """

    support: float
    weight: Callable[[torch.Tensor], torch.Tensor]


def _box(x: torch.Tensor) -> torch.Tensor:
    return ((x > -0.5) & (x <= 0.5)).double()


def _triangle(x: torch.Tensor) -> torch.Tensor:
    return x.abs_().neg_().add_(1).clamp_(min=0)


def _hamming(x: torch.Tensor) -> torch.Tensor:
    near = x.clamp_(-1, 1)
    return torch.sinc(near).mul_(near.mul_(torch.pi).cos_().mul_(0.46).add_(0.54))


def _cubic(x: torch.Tensor) -> torch.Tensor:
    far = x.abs_()
    inner = far.mul(1.5).sub_(2.5).mul_(far).mul_(far).add_(1)
    outer = far.sub(5).mul_(far).add_(8).mul_(far).sub_(4).mul_(-0.5)
    return torch.where(far < 1, inner, outer.masked_fill_(far >= 2, 0))


def _lanczos(x: torch.Tensor) -> torch.Tensor:
    return torch.sinc(x).mul_(torch.sinc(x / 3))


_FILTERS: Final = {
    FILTERS["bilinear"]: Filter(1, _triangle),
    FILTERS["bicubic"]: Filter(2, _cubic),
    FILTERS["box"]: Filter(0.5, _box),
    FILTERS["hamming"]: Filter(1, _hamming),
    FILTERS["lanczos"]: Filter(3, _lanczos),
}


def resampled(images: Sequence[torch.Tensor], plans: Sequence[ImagePlan]) -> torch.Tensor:
    """Crops, resizes and flips each image as its plan says.

    Images are worked on in groups of similar size, each of which needs at most `MEMORY` bytes. The number of kernels
    depends on the number of groups, not of images.

    Args:
        images: uint8 [height, width, 3], each of its own size, all on one device.
        plans: What becomes of each. All results have one size; the `source` of a plan lies inside its image.

    Returns:
        uint8 [images, height, width, 3].
    """
    width, height = plans[0].size
    out = images[0].new_empty((len(images), height, width, _CHANNELS))
    # Under autocast, matrices would be multiplied in half precision.
    with torch.autocast(out.device.type, enabled=False):
        for numbers in _groups(images, plans):
            part = _resampled([images[number] for number in numbers], [plans[number] for number in numbers])
            out[torch.tensor(numbers, device=out.device)] = part
    return out


def _groups(images: Sequence[torch.Tensor], plans: Sequence[ImagePlan]) -> Iterator[list[int]]:
    """The numbers of the images that are worked on together: with one filter, and of similar size."""
    sources = [plan.source for plan in plans]

    def order(number: int) -> tuple[int, int]:
        _, _, width, height = sources[number]
        return _filter_of(plans[number]), width * height

    for resample, same in groupby(sorted(range(len(plans)), key=order), lambda number: _filter_of(plans[number])):
        group: list[int] = []
        wide = high = pixels = copied = 0
        for number in same:
            _, _, width, height = sources[number]
            count, most = len(group) + 1, (max(wide, width), max(high, height))
            copied += height * images[number].shape[1] * _CHANNELS
            pixels += width * height
            need = copied + count * _bytes(*most, *plans[number].size, gathers=resample == _NEAREST)
            padded = resample != _NEAREST and count * most[0] * most[1] > _PADDING * pixels
            if group and (need > MEMORY or padded):
                yield group
                group, most, pixels = [], (width, height), width * height
                copied = height * images[number].shape[1] * _CHANNELS
            group.append(number)
            wide, high = most
        yield group


def _bytes(source_width: int, source_height: int, width: int, height: int, *, gathers: bool) -> int:
    """Bytes that an image needs while its group is worked on, at most."""
    if gathers:
        # Places, pixels.
        return (16 + _CHANNELS) * width * height
    between, weights = width * source_height, width * source_width + height * source_height
    # Places, bytes and float32; float32 four times, after each pass; weights and what they are made from in float64.
    pixels = (16 + 5 * _CHANNELS) * source_width * source_height
    return pixels + 16 * _CHANNELS * between + 48 * weights + 17 * _CHANNELS * width * height


def _filter_of(plan: ImagePlan) -> int:
    """The plan's filter. A plan that resizes nothing takes the nearest pixels, at scale 1."""
    return _NEAREST if plan.resize is None else plan.resize.resample


def _resampled(images: Sequence[torch.Tensor], plans: Sequence[ImagePlan]) -> torch.Tensor:
    """The results for images with one filter, uint8 [images, height, width, 3]."""
    sources = [plan.source for plan in plans]
    # Only the rows that are needed, but these whole, because they lie in one piece.
    parts = [image[box.top : box.top + box.height] for image, box in zip(images, sources, strict=True)]
    pixels = torch.cat([part.reshape(-1, _CHANNELS) for part in parts])
    strides = np.array([image.shape[1] for image in images])
    starts = np.cumsum([0, *(len(part) * part.shape[1] for part in parts[:-1])])
    # Where box and source begin and how large they are, along each axis: int64 [images, 4].
    boxes = np.array([(*plan.box, *source) for plan, source in zip(plans, sources, strict=True)])
    along = [boxes[:, axis::2] for axis in (0, 1)]
    wanted = [_wanted(plans, axis) for axis in (0, 1)]
    sizes = [_size(plans, axis) for axis in (0, 1)]
    resample = _filter_of(plans[0])
    if resample == _NEAREST:
        x, y = (_nearest(*each) for each in zip(wanted, along, sizes, strict=True))
        return _gathered(pixels, along[0][:, 2, None] + x, starts[:, None] + y * strides[:, None])
    # Beyond an image, its last pixels stand for padding: the weights there are 0.
    wide, high = (int(each[:, 3].max()) for each in along)
    columns = along[0][:, 2, None] + np.minimum(np.arange(wide), along[0][:, 3, None] - 1)
    rows = starts[:, None] + strides[:, None] * np.minimum(np.arange(high), along[1][:, 3, None] - 1)
    # Left and right are exchanged with top and bottom for the first pass.
    (count, width), height = wanted[0].shape, wanted[1].shape[1]
    across, down = (
        _weights(_FILTERS[resample], *each, pixels.device) for each in zip(wanted, along, sizes, strict=True)
    )
    values = _multiplied(across, _gathered(pixels, rows, columns).view(count, wide, high * _CHANNELS).float())
    values = values.view(count, width, high, _CHANNELS).transpose(1, 2).reshape(count, high, width * _CHANNELS)
    return _multiplied(down, values).to(torch.uint8).view(count, height, width, _CHANNELS)


def _wanted(plans: Sequence[ImagePlan], axis: int) -> npt.NDArray[np.int64]:
    """Return the coordinates in the resized images that are wanted along an axis, int64 [images, size]."""
    size = plans[0].size[axis]
    firsts = np.array([0 if plan.window is None else plan.window[axis] for plan in plans])
    turned = np.array([bool(plan.rest) if axis else plan.mirrored for plan in plans])
    places = np.arange(size)
    return firsts[:, None] + np.where(turned[:, None], places[::-1], places)


def _size(plans: Sequence[ImagePlan], axis: int) -> npt.NDArray[np.int64]:
    """The sizes of the resized images along an axis, int64 [images]."""
    return np.array([plan.box[axis + 2] if plan.resize is None else plan.resize[axis] for plan in plans])


def _nearest(
    wanted: npt.NDArray[np.int64], along: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The places in the source from which the nearest filter takes the wanted ones, int64 [images, size]."""
    box_start, box_size, start, size = along.T[:, :, None]
    scale = box_size / sizes[:, None]
    # Added up like this in `ImagingScaleAffine` of Pillow's src/libImaging/Geometry.c: rounding may decide.
    steps = np.broadcast_to(scale, (len(scale), int(wanted.max()) + 1)).copy()
    steps[:, 0] *= 0.5
    centres = np.take_along_axis(np.cumsum(steps, 1), wanted, 1)
    places: npt.NDArray[np.int64] = np.clip(box_start - start + centres.astype(np.int64), 0, size - 1)
    return places


def _gathered(pixels: torch.Tensor, x: npt.NDArray[np.int64], y: npt.NDArray[np.int64]) -> torch.Tensor:
    """The pixels at the places x + y, uint8 [images, len(y), len(x), 3].

    Args:
        pixels: uint8 [pixels, 3].
        x: int64 [images, size].
        y: int64 [images, size].
    """
    places = torch.from_numpy(np.concatenate([x, y], 1)).to(pixels.device)
    width = x.shape[1]
    index = places[:, width:, None] + places[:, None, :width]
    return pixels.index_select(0, index.view(-1)).view(*index.shape, _CHANNELS)


def _weights(
    kind: Filter,
    wanted: npt.NDArray[np.int64],
    along: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    device: torch.device,
) -> torch.Tensor:
    """The weights of the source pixels along an axis, float64 [images, size, source size]."""
    box_start, box_size, start, source = along.T[:, :, None].astype(np.float64)
    scale = box_size / sizes[:, None]
    stretch = np.maximum(scale, 1.0)
    centres = (wanted + 0.5) * scale
    # The pixels that count, as Pillow finds them: exactly, because a box ends abruptly.
    first = np.maximum(np.trunc(centres - kind.support * stretch + 0.5), 0)
    end = np.minimum(np.trunc(centres + kind.support * stretch + 0.5), box_size)
    table = np.concatenate([centres, first, end, start - box_start, 1 / stretch], 1)
    found = torch.from_numpy(table).to(device)
    size = wanted.shape[1]
    centre, low, high = (found[:, part * size : (part + 1) * size, None] for part in range(3))
    shift, shrink = found[:, -2, None, None], found[:, -1, None, None]
    places = torch.arange(int(source.max()), dtype=torch.float64, device=device) + shift
    weights = kind.weight((places - centre).add_(0.5).mul_(shrink))
    weights.masked_fill_((places < low).logical_or_(places >= high), 0)
    return weights.div_(weights.sum(2, keepdim=True))


def _multiplied(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The product, rounded to whole numbers from 0 to 255 as bytes are; `values` are such numbers, too.

    Args:
        weights: float64 [images, size, source size]; changed.
        values: float32 [images, source size, ...].
    """
    whole = weights.mul_(2**_BITS)
    whole = whole.sign().mul_(0.5).add_(whole).trunc_()
    upper = (whole / 2**_LOWER).round_()
    lower = whole.sub_(upper, alpha=2**_LOWER).float().mul_(2**-_BITS)
    product = _bmm(upper.float().mul_(2 ** (_LOWER - _BITS)), values)
    # The sum of both parts has more bits than float32, but not the sum of what follows the binary point.
    floor = product.floor()
    return product.sub_(floor).add_(_bmm(lower, values)).add_(0.5).floor_().add_(floor).clamp_(0, 255)


def _bmm(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The product of float32, never made in bfloat16."""
    if values.device.type == "cpu" and _bfloat16_allowed():
        return torch.bmm(weights.double(), values.double()).float()
    return torch.bmm(weights, values)


def _bfloat16_allowed() -> bool:
    """True if the user has allowed torch to multiply float32 in bfloat16 on a CPU."""
    # Older versions of torch have only the function, which fails where somebody has set the attribute.
    precision = getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", None)
    return precision == "bf16" or (precision is None and torch.get_float32_matmul_precision() == "medium")
