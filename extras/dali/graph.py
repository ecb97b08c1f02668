"""The DALI pipeline: decodes a rectangle of each image; on a GPU, it also resizes and flips it.

On a CPU, packtrain does that: DALI's resize takes ten times as long as its own, which also has Pillow's pixels.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from packtrain._codec.geometry import FILTERS, Box
from packtrain._codec.image_plan import ImagePlan
from packtrain._codec.jpeg_markers import frame_header
from packtrain._core.errors import UsageError
from packtrain._readers.transforms.undecoded import Undecoded

Inputs = tuple[Any, ...]
"""Arguments of the pipeline for a batch: encoded images; start and shape of the region that is decoded of each. On a
GPU, also start and end of the part that is resized; filters; whether to mirror, and to turn upside down."""
_REGIONS, _RESIZES = 3, 5

# DALI's names of filters. With antialiasing, they are Pillow's.
_INTERPOLATIONS: Final = {
    "nearest": "INTERP_NN",
    "bilinear": "INTERP_TRIANGULAR",
    "bicubic": "INTERP_CUBIC",
    "lanczos": "INTERP_LANCZOS3",
}
_BILINEAR: Final = FILTERS["bilinear"]

# A black pixel in place of an image that DALI is not to decode, as PPM.
STAND_IN: Final = Undecoded(b"P6\n1 1\n255\n\0\0\0", ImagePlan(Box(0, 0, 1, 1), None, None, False, ()))

_JPEG: Final = b"\xff\xd8\xff"
_PNG: Final = b"\x89PNG\r\n\x1a\n"
# Where a PNG says how many bits a sample has.
_PNG_BITS: Final = 24


@dataclass(frozen=True)
class DaliOptions:
    """Resources of a pipeline.

    Attributes:
        threads: Number of threads that decode.
        depth: Number of batches that the pipeline works on ahead of its consumer.
        device: Number of the GPU that decodes and resizes; None: the CPU decodes.
        hints: Further arguments of DALI's decoder, about memory.
    """

    threads: int
    depth: int
    device: int | None = None
    hints: Mapping[str, int] = field(default_factory=dict)


class DaliPipeline:
    """A DALI pipeline that works on batches ahead of its consumer.

    Outputs stay valid after the pipeline is gone. After any error the pipeline cannot be used any more: whatever is
    called then may wait for ever.

    Args:
        size: Width and height of the results, in pixels.
        batch_size: Largest number of images in a batch.
        options: Resources of the pipeline.
    """

    def __init__(self, size: tuple[int, int], batch_size: int, options: DaliOptions) -> None:
        from nvidia.dali import Pipeline, fn, types

        self._fed: deque[Inputs] = deque()
        fed, device = self._fed, options.device

        def source() -> Inputs:
            if not fed:
                raise StopIteration
            return fed.popleft()

        decoding = {
            "output_type": types.RGB,
            # packtrain turns no image by its EXIF orientation, as torchvision does.
            "adjust_orientation": False,
            "jpeg_fancy_upsampling": True,
            **options.hints,
        }
        inputs = _REGIONS if device is None else _REGIONS + _RESIZES
        self._pipeline = Pipeline(
            batch_size, options.threads, device, prefetch_queue_depth=options.depth, exec_dynamic=True
        )
        with self._pipeline:
            data, start, shape, *resize = fn.external_source(source=source, num_outputs=inputs, no_copy=True)
            rectangle = {"start": start, "shape": shape, "axes": [0, 1]}
            if device is None:
                images = fn.decoders.image_slice(data, device="cpu", **rectangle, **decoding)
            else:
                images = resized(fn.decoders.image(data, device="mixed", **decoding), rectangle, resize, size)
            self._pipeline.set_outputs(images)
        self._pipeline.build()
        _pipelines.add(self._pipeline)

    def begin(self, batches: Sequence[Inputs]) -> None:
        """Begin to work on batches. The memory of their images must stay as it is until they are done.

        The first call, and the first one after `rewind`, must have `depth` batches, or all there are.
        """
        self._fed.extend(batches)
        while left := len(self._fed):
            self._pipeline.schedule_run()
            assert len(self._fed) < left

    def next(self) -> Any:
        """Wait for the next batch: a TensorList, uint8 [batch][height, width, 3], on a CPU each of its own size.

        Raises:
            Exception: Whatever DALI raises.
        """
        (images,) = self._pipeline.share_outputs()
        self._pipeline.release_outputs()
        return images

    def rewind(self) -> None:
        """Prepare for other batches, once all that were begun are done."""
        self._pipeline.reset()


# DALI's threads do not live on in a forked process, where ending a pipeline would wait for them for ever.
_pipelines: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def _abandon_after_fork() -> None:
    for pipeline in _pipelines:
        # A reference that nobody gives back: the pipeline is not ended at the end of the process either.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipeline._pipe))
        pipeline._pipe = None
    _pipelines.clear()


os.register_at_fork(after_in_child=_abandon_after_fork)


def resized(images: Any, rectangle: Mapping[str, Any], resize: Sequence[Any], size: tuple[int, int]) -> Any:
    """Add the part of the graph that a GPU runs after it has decoded whole images.

    On several GPUs, decoding only a region fails or crashes (NVIDIA/nvImageCodec#55).

    Args:
        images: The decoded images.
        rectangle: The region of each that is taken, as arguments of ``fn.slice``.
        resize: Start and end of the part of it that is resized; filters; whether to mirror, and to turn upside down.
        size: Width and height of the results, in pixels.
    """
    from nvidia.dali import fn, types

    roi_start, roi_end, filters, mirrored, flipped = resize
    images = fn.resize(
        fn.slice(images, **rectangle),
        size=size[::-1],
        interp_type=fn.reinterpret(filters, dtype=types.INTERP_TYPE),
        roi_start=roi_start,
        roi_end=roi_end,
        antialias=True,
    )
    return fn.flip(images, horizontal=mirrored, vertical=flipped)


def decodes(image: Undecoded) -> bool:
    """Return True if DALI makes the pixels of an image that Pillow makes, by its header alone.

    DALI does so for JPEGs of all kinds, and for PNGs of up to 8 bits. It refuses GIFs, spreads 16 bits in another way,
    turns TIFFs, and reads some of their palettes differently.
    """
    data = image.data
    if bytes(data[:3]) == _JPEG:
        frame = frame_header(data)
        return frame is not None and not frame.is_lossless and image.fits(frame.width, frame.height)
    return bytes(data[:8]) == _PNG and len(data) > _PNG_BITS and data[_PNG_BITS] <= 8


def inputs_of(images: Sequence[Undecoded], *, resizes: bool) -> Inputs:
    """Return the arguments of the pipeline for a batch.

    Args:
        images: The images.
        resizes: True if the pipeline resizes and flips them, too.

    Raises:
        UsageError: DALI does not have the filter of a resize.
    """
    sources = np.array([image.plan.source for image in images], np.int32)
    data = [np.frombuffer(image.data, np.uint8) for image in images]
    regions = data, np.ascontiguousarray(sources[:, 1::-1]), np.ascontiguousarray(sources[:, :1:-1])
    return (*regions, *_resizes_of(images)) if resizes else regions


def _resizes_of(images: Sequence[Undecoded]) -> Inputs:
    from nvidia.dali import types

    rows = []
    for image in images:
        plan = image.plan
        left, top, _, _ = plan.source
        # The rectangle of the source that becomes the result, within the region that is decoded.
        x, y, wide, high = (0, 0, *plan.size) if plan.window is None else plan.window
        resample = _BILINEAR if plan.resize is None else plan.resize.resample
        across, down = (1.0, 1.0) if plan.resize is None else np.divide(plan.box[2:], plan.resize[:2])
        roi_left, roi_top = plan.box.left - left + x * across, plan.box.top - top + y * down
        rows.append(
            (
                (roi_top, roi_left),
                (roi_top + high * down, roi_left + wide * across),
                int(getattr(types, _filter(resample))),
                plan.mirrored,
                bool(plan.rest),
            )
        )
    kinds = (np.float32, np.float32, np.int32, np.int32, np.int32)
    return tuple(np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True))


def _filter(resample: int) -> str:
    name = next(name for name, value in FILTERS.items() if value == resample)
    if name not in _INTERPOLATIONS:
        known = ", ".join(_INTERPOLATIONS)
        raise UsageError(f"DALI cannot resize with {name} on a GPU: use one of {known}, or decode='cpu'")
    return _INTERPOLATIONS[name]
