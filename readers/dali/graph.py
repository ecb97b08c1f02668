"""The DALI pipeline: decodes a rectangle of each image, resizes it and flips it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from packtrain._codec.geometry import FILTERS

from ..transforms.undecoded import Undecoded

Inputs = tuple[Any, ...]
"""What the pipeline gets for a batch: encoded images; start and shape of what is decoded of each; start and end of what
is resized in that; filters; whether to mirror, and to turn upside down."""
_INPUTS: Final = 8

# DALI's filters by the values of `PIL.Image.Resampling`; with antialiasing, as Pillow has it.
_FILTERS: Final = {
    FILTERS["nearest"]: "INTERP_NN",
    FILTERS["bilinear"]: "INTERP_TRIANGULAR",
    FILTERS["bicubic"]: "INTERP_CUBIC",
    FILTERS["lanczos"]: "INTERP_LANCZOS3",
}


def built(
    source: Callable[[], Inputs],
    size: tuple[int, int],
    batch_size: int,
    threads: int,
    depth: int,
    device: int | None = None,
    hints: Mapping[str, int] | None = None,
) -> Any:
    """A DALI pipeline with one output: images, uint8 [batch, height, width, 3].

    Args:
        source: Returns the inputs of the next batch, and raises StopIteration after the last one.
        size: Width and height of the results, in pixels.
        batch_size: Largest number of images in a batch.
        threads: Number of threads that decode.
        depth: Number of batches that it may work on.
        device: Number of the GPU that decodes and resizes; None: the CPU does.
        hints: Further arguments of the decoder, about memory.
    """
    from nvidia.dali import Pipeline, fn, types

    pipeline = Pipeline(batch_size, threads, device, prefetch_queue_depth=depth, exec_dynamic=True)
    with pipeline:
        data, start, shape, roi_start, roi_end, filters, mirrored, flipped = fn.external_source(
            source=source, num_outputs=_INPUTS, no_copy=True
        )
        images = fn.decoders.image_slice(
            data,
            start=start,
            shape=shape,
            axes=[0, 1],
            device="cpu" if device is None else "mixed",
            output_type=types.RGB,
            # packtrain turns no image by its EXIF orientation, as torchvision does.
            adjust_orientation=False,
            jpeg_fancy_upsampling=True,
            **(hints or {}),
        )
        filters = fn.reinterpret(filters, dtype=types.INTERP_TYPE)
        images = fn.resize(
            images, size=size[::-1], interp_type=filters, roi_start=roi_start, roi_end=roi_end, antialias=True
        )
        images = fn.flip(images, horizontal=mirrored, vertical=flipped)
        pipeline.set_outputs(images)
    pipeline.build()
    return pipeline


def inputs_of(images: Sequence[Undecoded]) -> Inputs:
    """What the pipeline gets for a batch."""
    from nvidia.dali import types

    starts, shapes, roi_starts, roi_ends, filters, mirrored, flipped = [], [], [], [], [], [], []
    for image in images:
        plan = image.plan
        left, top, width, height = plan.source
        starts.append((top, left))
        shapes.append((height, width))
        # The rectangle of the source that becomes the result, within what is decoded.
        x, y, wide, high = (0, 0, *plan.size) if plan.window is None else plan.window
        across, down = (1.0, 1.0) if plan.resize is None else _scales(plan.box[2:], plan.resize[:2])
        roi_left, roi_top = plan.box.left - left + x * across, plan.box.top - top + y * down
        roi_starts.append((roi_top, roi_left))
        roi_ends.append((roi_top + high * down, roi_left + wide * across))
        filters.append(getattr(types, _FILTERS[2 if plan.resize is None else plan.resize.resample]))
        mirrored.append(plan.mirrored)
        flipped.append(bool(plan.rest))
    return (
        [np.frombuffer(image.data, np.uint8) for image in images],
        np.array(starts, np.int32),
        np.array(shapes, np.int32),
        np.array(roi_starts, np.float32),
        np.array(roi_ends, np.float32),
        np.array(filters, np.int32),
        np.array(mirrored, np.int32),
        np.array(flipped, np.int32),
    )


def _scales(box: Sequence[int], size: Sequence[int]) -> tuple[float, float]:
    return box[0] / size[0], box[1] / size[1]
