"""Runs plans on encoded images, and decodes only what a plan needs.

An executor decodes what a plan (`packtrain._codec.image_plan`) needs, and returns the `Continuation` that makes the
result; or None if it cannot run the plan. `decode` fails on damaged records, the continuation in the user's transforms.
The pixels equal those of the transform on the whole decoded image, bit for bit, unless decoding is `scaled`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from packtrain._codec import resizing
from packtrain._codec.decode import EncodedImage, RecordDecoder, ordinary, shrunk
from packtrain._codec.effects.operation import PixelOperation, image_of, pixels_of
from packtrain._codec.geometry import Box, Crop, Flip, Operation, Pad, Scale, apply, needed
from packtrain._codec.image_plan import MIRROR, ImagePlan
from packtrain._codec.native import extension
from packtrain._codec.pillow import has_pillow, require_pillow
from packtrain._codec.pixels import array_from_image, array_from_pixels
from packtrain._codec.stages import EFFECTS, RESIZE, TRANSFORM, WRITE, OnStage
from packtrain._core.overriding import override

from .compose import name_of

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]
Into = Pixels | tuple[Pixels | None, ...] | None
"""Memory for the result of a transform, uint8 [height, width, channels]; for `Views`, that of each view."""

_SCALES: Final = (8, 4, 2)
# A cut costs about as much as decoding this many pixels, whatever its size: between 5,000 and 25,000 in photographs.
CUT_PIXELS: Final = 16_000
# If a plan reads less of the image than this, decoding only that part saves more than putting it in place costs.
_WORTHWHILE: Final = 0.8


Continuation = Callable[[Any, OnStage], Any]
"""Runs what is left of a plan once its part of the image is decoded.

It takes memory for the result, and the callback at the end of each stage. The memory, uint8 [height, width, channels]
and contiguous, is used if the pixels have its shape and no foreign callable follows; for `Views` it is a tuple. The
result is that memory, or a tensor, uint8 [channels, height, width], in channels_last; with foreign callables, what the
last of them returns.
"""


class Executor(Protocol):
    """One way of running plans."""

    def decode(self, image: EncodedImage, plan: ImagePlan, on_stage: OnStage) -> Continuation | None:
        """Decode what `plan` needs of `image`; return None if this executor cannot run it.

        Raises:
            ValueError: The record does not hold an image of this size.
            Exception: Whatever Pillow raises on an encoded record that it refuses.
        """


class ArrayExecutor(Executor):
    """Runs plans that need no PIL image: pixels that are copied, and what the C extension resizes and mirrors.

    Args:
        records: Decodes images.
        scaled: See `packtrain._readers.transforms.pipeline.Pipeline`.
    """

    def __init__(self, records: RecordDecoder, *, scaled: bool) -> None:
        self._records = records
        self._scaled = scaled
        self._raw = records.raw
        self._style = resizing.style() if records.store.channels == 3 else None

    @override
    def decode(self, image: EncodedImage, plan: ImagePlan, on_stage: OnStage) -> Continuation | None:
        if plan.rest and (extension is None or not self._moves(plan.rest)):
            return None
        if plan.resize is None:
            # Without the extension, Pillow mirrors faster than numpy.
            if plan.mirrored and extension is None:
                return None
            ready = None if image.part is None else image.part.cropped(plan.box, 1)
            if ready is None and self._raw:
                ready = self._records.raw_pixels(image, plan.box)
            elif ready is None and not has_pillow():
                ready = self._records.rgb(image, plan.box, on_stage)
            return None if ready is None else partial(_finish_array, ready, plan, plan.box, 0)
        if self._style is None or plan.resize.resample not in resizing.RESAMPLES:
            return None
        if self._scaled and decoding_scale(self._records, plan) > 1:
            return None
        source = self._source(image, plan)
        pixels = self._records.rgb(image, source, on_stage)
        return None if pixels is None else partial(_finish_array, pixels, plan, source, self._style)

    def _moves(self, operations: Sequence[Operation]) -> bool:
        """True if arrays are moved by `operations` as fast as PIL images are, or have to be."""
        return not has_pillow() or all(isinstance(each, Flip) for each in _parted(operations)[0])

    def _source(self, image: EncodedImage, plan: ImagePlan) -> Box:
        """The rectangle to decode: what the plan needs, or the whole image if that takes less time."""
        source = plan.source
        if plan.window is None or image.part is not None or plan.box != image.box or not self._records.cuts:
            return source
        saved = image.width * image.height - source.width * source.height
        return source if saved > CUT_PIXELS else image.box


def _finish_array(
    pixels: Pixels, plan: ImagePlan, source: Box, style: int, into: Pixels | None, on_stage: OnStage
) -> Any:
    """Finish a plan on pixels, uint8 [height, width, channels], of the rectangle `source` of the image.

    The rectangle holds what the plan needs. There may be other bytes between the rows.
    """
    box, resize, window, mirrored, rest = plan
    unfinished = bool(rest)
    if resize is None:
        made = array_from_pixels(pixels, mirrored=mirrored, into=into, unfinished=unfinished)
    else:
        part = (box.width, box.height, source.left - box.left, source.top - box.top)
        made = resizing.array_resized(
            pixels, resize, style, part=part, window=window, mirrored=mirrored, into=into, unfinished=unfinished
        )
        on_stage(RESIZE)
    if rest:
        made = _changed(made, rest, into, on_stage)
    on_stage(WRITE)
    return _delivered(made, into)


class PillowExecutor(Executor):
    """Runs every plan, on PIL images.

    Args:
        records: Decodes images.
        foreign: Callables that are applied to the PIL image after the plan.
        scaled: See `packtrain._readers.transforms.pipeline.Pipeline`.
    """

    def __init__(self, records: RecordDecoder, foreign: Sequence[Callable[[Any], Any]] = (), *, scaled: bool) -> None:
        self._records = records
        self._foreign = tuple(foreign)
        self._scaled = scaled

    @override
    def decode(self, image: EncodedImage, plan: ImagePlan, on_stage: OnStage) -> Continuation:
        picture, operations = self._decode_box(image, plan, on_stage)
        if self._foreign:
            return partial(_call_foreign, self._records.with_info(picture, image), operations, self._foreign)
        return partial(_finish_picture, picture, operations)

    def _decode_box(self, image: EncodedImage, plan: ImagePlan, on_stage: OnStage) -> tuple[Image, Sequence[Operation]]:
        """Decodes what the operations on the plan's box need. Returns the image and the operations that are left."""
        box, operations = plan.box, plan.operations
        scale = decoding_scale(self._records, plan) if self._scaled else 1
        if scale > 1:
            picture = self._records.region(image, box, scale, on_stage)
            assert plan.resize is not None
            return _resize_exactly(picture, box, scale, plan.resize), operations[1:]
        # A single operation after the crop needs all of it.
        part = needed(operations, box.width, box.height) if len(operations) > 1 else Box(0, 0, box.width, box.height)
        if image.part is None and part.width * part.height >= _WORTHWHILE * box.width * box.height:
            return self._records.region(image, box, on_stage=on_stage), operations
        inner = Box(box.left + part.left, box.top + part.top, part.width, part.height)
        picture = self._records.region(image, inner, on_stage=on_stage)
        # A resize weights pixels by where they are in the whole image. The pixels that it does not need stay undefined.
        canvas = require_pillow().new(picture.mode, (box.width, box.height), None)
        canvas.paste(picture, (part.left, part.top))
        return canvas, operations


def _finish_picture(image: Image, operations: Sequence[Operation], into: Pixels | None, on_stage: OnStage) -> Any:
    moving, changing = _parted(operations)
    # A mirroring at the end is done while the pixels are written.
    mirrored = bool(moving) and moving[-1] == MIRROR
    image = apply(image, moving[:-1] if mirrored else moving)
    on_stage(RESIZE)
    made = array_from_image(image, mirrored=mirrored, into=into)
    if changing:
        made = _changed(made, changing, into, on_stage)
    on_stage(WRITE)
    return _delivered(made, into)


def _call_foreign(
    image: Image,
    operations: Sequence[Operation],
    foreign: Sequence[Callable[[Any], Any]],
    into: Pixels | None,
    on_stage: OnStage,
) -> Any:
    """Run the operations that are left on a PIL image, and then the callables."""
    moving, changing = _parted(operations)
    image = apply(image, moving)
    on_stage(RESIZE)
    result: Any = image_of(_change_pixels(array_from_image(image), changing)) if changing else ordinary(image)
    if changing:
        on_stage(EFFECTS)
    for transform in foreign:
        result = called(transform, result)
    on_stage(TRANSFORM)
    return result


class ForeignArrayExecutor(Executor):
    """Runs every plan, and then callables of which the first takes an array.

    Args:
        records: Decodes images.
        foreign: The callables.
        scaled: See `packtrain._readers.transforms.pipeline.Pipeline`.
    """

    def __init__(self, records: RecordDecoder, foreign: Sequence[Callable[[Any], Any]], *, scaled: bool) -> None:
        self._records = records
        self._foreign = tuple(foreign)
        self._on_arrays = ArrayExecutor(records, scaled=scaled)
        self._through_pillow = PillowExecutor(records, scaled=scaled)

    @override
    def decode(self, image: EncodedImage, plan: ImagePlan, on_stage: OnStage) -> Continuation:
        decoded = self._on_arrays.decode(image, plan, on_stage)
        if decoded is None and plan.resize is None and not plan.rest:
            pixels = self._records.rgb(image, plan.box, on_stage)
            decoded = None if pixels is None else partial(_finish_array, pixels, plan, plan.box, 0)
        if decoded is None:
            decoded = self._through_pillow.decode(image, plan, on_stage)
        return partial(self._call, decoded)

    def _call(self, decoded: Continuation, into: Pixels | None, on_stage: OnStage) -> Any:
        result: Any = decoded(None, on_stage).permute(1, 2, 0).numpy()
        for transform in self._foreign:
            result = transform(result)
        on_stage(TRANSFORM)
        return result


def called(transform: Callable[[Any], Any], image: Any) -> Any:
    """The result of a callable that is not packtrain's; its error says so if it may not take PIL images."""
    try:
        return transform(image)
    except (AttributeError, TypeError, ValueError) as error:
        if hasattr(image, "getbands"):
            error.add_note(
                f"{name_of(transform)} was called with a PIL image. If it takes a tensor or an array, as MONAI's "
                "transforms do, put packtrain.transforms.PILToTensor() before it, for uint8 [channels, height, width], "
                "or numpy.array, for [height, width, channels]"
            )
        raise


def _parted(operations: Sequence[Operation]) -> tuple[Sequence[Operation], Sequence[Operation]]:
    """Those before the first operation that changes pixels, and all from it on."""
    first = next((at for at, each in enumerate(operations) if isinstance(each, PixelOperation)), len(operations))
    return operations[:first], operations[first:]


def _changed(pixels: Pixels, operations: Sequence[Operation], into: Pixels | None, on_stage: OnStage) -> Pixels:
    """The result of operations of which the first changes pixels; it ends up in `into` if it fits."""
    made = _change_pixels(pixels, operations)
    on_stage(EFFECTS)
    return made if into is None or made is into or made.shape != into.shape else array_from_pixels(made, into=into)


def _delivered(pixels: Pixels, into: Pixels | None) -> Any:
    return into if pixels is into else torch.from_numpy(pixels).permute(2, 0, 1)


def _change_pixels(pixels: Pixels, operations: Sequence[Operation]) -> Pixels:
    """Return the result of `operations` on contiguous pixels, which may be overwritten; `apply` gives the same."""
    for operation in operations:
        pixels = operation.on_pixels(pixels) if isinstance(operation, PixelOperation) else _moved(pixels, operation)
    return pixels


def _moved(pixels: Pixels, operation: Crop | Scale | Flip | Pad) -> Pixels:
    height, width, channels = pixels.shape
    match operation:
        case Crop((left, top, wide, high)):
            # No other view of all pixels: whoever asked for them in a certain place has to see that they are there.
            if operation.box == (0, 0, width, height):
                return pixels
            # Pixels outside are black.
            x, y = max(left, 0), max(top, 0)
            inside = pixels[y : max(y, top + high), x : max(x, left + wide)]
            if inside.shape[:2] == (high, wide):
                return np.ascontiguousarray(inside)
            made = np.zeros((high, wide, channels), np.uint8)
            made[y - top :, x - left :][: inside.shape[0], : inside.shape[1]] = inside
            return made
        case Pad(left, top, right, bottom, fill, "constant"):
            made = np.empty((top + height + bottom, left + width + right, channels), np.uint8)
            made[:] = fill
            made[top : top + height, left : left + width] = pixels
            return made
        case Pad(left, top, right, bottom, _, mode):
            return np.pad(pixels, [(top, bottom), (left, right), (0, 0)], mode)
        case Flip(horizontal):
            # A copy even of a single row, whose strides would be negative.
            return array_from_pixels(pixels, mirrored=True) if horizontal else pixels[::-1].copy()
        case Scale(_, _, resample) if channels == 3 and resample in resizing.RESAMPLES:
            style = resizing.style()
            if style is not None:
                return resizing.array_resized(pixels, operation, style)
    return pixels_of(operation.apply(image_of(pixels)))


def decoding_scale(records: RecordDecoder, plan: ImagePlan) -> int:
    """The factor by which a JPEG may be shrunk while decoding: 8, 4, 2 or 1; the plan shrinks it at least as much."""
    if plan.resize is None or records.raw:
        return 1
    wide, high = plan.box.width // plan.resize.width, plan.box.height // plan.resize.height
    return next((scale for scale in _SCALES if scale <= min(wide, high)), 1)


def _resize_exactly(image: Image, box: Box, scale: int, resize: Scale) -> Image:
    """Resizes an image that shows `box` `scale` times smaller, extended to whole pixels."""
    covered = shrunk(box, scale)
    left, top = box.left / scale - covered.left, box.top / scale - covered.top
    right, bottom = left + box.width / scale, top + box.height / scale
    return image.resize((resize.width, resize.height), resize.resample, (left, top, right, bottom))
