"""A transform over the encoded images of a dataset: planned, decoded once for all views that pay, run and finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch

from packtrain._codec import resizing
from packtrain._codec.decode import DecodedPart, EncodedImage, RecordDecoder
from packtrain._codec.geometry import Box
from packtrain._codec.image_plan import COLOURED, ImagePlan
from packtrain._codec.stages import RESIZE, OnStage, untimed

from .compose import Compose
from .executors import (
    CUT_PIXELS,
    ArrayExecutor,
    Continuation,
    Executor,
    ForeignArrayExecutor,
    Into,
    PillowExecutor,
    decoding_scale,
)
from .finisher import Finisher
from .recognition.albumentations import OnArray
from .views import Views


class Pipeline:
    """A transform over the encoded images of a dataset.

    Attributes:
        draws: Number of random numbers that `plan` and `finished` take.

    Args:
        compose: The transform; without packtrain's transforms at its beginning, images are decoded whole.
        records: Decodes images.
        scaled: Let the decoder shrink JPEGs by 2, 4 or 8 if they are then resized to less than that. Much faster for
            large photographs, with slightly different pixels (`docs/benchmarks-loading.md` has figures).
        executors: Run the plans; empty for those that are the fastest for this transform.
    """

    several: Final = False
    """True if the result is a tuple of views."""

    def __init__(
        self, compose: Compose, records: RecordDecoder, *, scaled: bool = False, executors: Sequence[Executor] = ()
    ) -> None:
        self.compose: Final = compose
        self.draws: Final = compose.draws
        self._finisher = Finisher(compose.finishing, compose.planned)
        self._executors: Final = tuple(executors) or _executors_of(compose, records, scaled=scaled)
        self._in_colour: Final = records.store.channels == 3

    def plan(self, width: int, height: int, random: Sequence[float] | None = None) -> ImagePlan:
        """Plan the transform of an image of `width` x `height` pixels.

        Args:
            width: Width of the image in pixels.
            height: Height of the image in pixels.
            random: Uniform in [0, 1), `compose.draws` of them; None draws them from torch's default generator.

        Raises:
            UsageError: The transform cannot be applied to an image of this size.
        """
        return self.compose.plan(width, height, drawn(self.compose.draws) if random is None else random)

    def decode(self, image: EncodedImage, plan: ImagePlan, on_stage: OnStage = untimed) -> Continuation:
        """Decodes what `plan` needs of `image`.

        Raises:
            ValueError: The record does not hold an image of this size.
            Exception: Whatever Pillow raises on an encoded record that it refuses.
        """
        if self._in_colour and plan.rest and plan.rest[0] is COLOURED:
            plan = plan._replace(rest=plan.rest[1:])
        for executor in self._executors:
            finish = executor.decode(image, plan, on_stage)
            if finish is not None:
                return finish
        raise AssertionError("the executor over Pillow runs every plan")

    @property
    def finishes(self) -> bool:
        """True if `finished` changes anything."""
        return bool(self._finisher)

    def finished(self, image: torch.Tensor, random: Sequence[float]) -> torch.Tensor:
        """The image after the steps on tensors that the transform ends with.

        Args:
            image: uint8 [channels, height, width], in channels_last memory; may be overwritten.
            random: The same as for `plan`.

        Raises:
            UsageError: A step cannot be applied to it.
        """
        return self._finisher.image(image, random)


def drawn(count: int) -> Sequence[float]:
    """Random numbers from torch's default generator, uniform in [0, 1)."""
    return torch.rand(count, dtype=torch.float64).tolist() if count else ()


def _executors_of(compose: Compose, records: RecordDecoder, *, scaled: bool) -> tuple[Executor, ...]:
    """Return what runs the plans of a transform, the fastest first."""
    if not compose.foreign:
        return ArrayExecutor(records, scaled=scaled), PillowExecutor(records, scaled=scaled)
    if isinstance(compose.foreign[0], OnArray):
        return (ForeignArrayExecutor(records, compose.foreign, scaled=scaled),)
    return (PillowExecutor(records, compose.foreign, scaled=scaled),)


class ViewsPipeline:
    """Several transforms over each of the encoded images of a dataset.

    Attributes:
        draws: Number of random numbers that `plan` and `finished` take: those of the first view, those of the second,
            and so on; for views that are `alike`, those of one.

    Args:
        views: The transforms.
        records: Decodes images.
        scaled: See `Pipeline`.
    """

    several: Final = True

    def __init__(self, views: Views, records: RecordDecoder, *, scaled: bool = False) -> None:
        self._pipelines = tuple(Pipeline(view, records, scaled=scaled) for view in views.views)
        self._records = records
        self._scaled = scaled
        self._alike = views.alike
        self._style = resizing.style() if records.store.channels == 3 else None
        self.draws: Final = views.draws

    def plan(self, width: int, height: int, random: Sequence[float] | None = None) -> tuple[ImagePlan, ...]:
        """Plan each transform of an image; takes and raises what `Pipeline.plan` does."""
        random = drawn(self.draws) if random is None else random
        each = zip(self._pipelines, self._parts(random), strict=True)
        return tuple(pipeline.plan(width, height, part) for pipeline, part in each)

    def decode(self, image: EncodedImage, plan: Sequence[ImagePlan], on_stage: OnStage = untimed) -> Continuation:
        """Decodes what all plans need of `image`; raises what `Pipeline.decode` does."""
        image, plan = self._resized(image, plan, on_stage)
        images = self._decoded(image, plan, on_stage)
        each = zip(self._pipelines, images, plan, strict=True)
        return partial(_finish_views, tuple(pipeline.decode(image, plan, on_stage) for pipeline, image, plan in each))

    @property
    def finishes(self) -> bool:
        """True if `finished` changes anything."""
        return any(pipeline.finishes for pipeline in self._pipelines)

    def finished(self, images: Sequence[torch.Tensor], random: Sequence[float]) -> tuple[torch.Tensor, ...]:
        """The views after the steps on tensors that each transform ends with; see `Pipeline.finished`."""
        each = zip(self._pipelines, images, self._parts(random), strict=True)
        return tuple(pipeline.finished(image, part) for pipeline, image, part in each)

    def _parts(self, random: Sequence[float]) -> Iterator[Sequence[float]]:
        """The random numbers of each view."""
        start = 0
        for pipeline in self._pipelines:
            yield random[start : start + pipeline.draws]
            start += 0 if self._alike else pipeline.draws

    def _resized(
        self, image: EncodedImage, plans: Sequence[ImagePlan], on_stage: OnStage
    ) -> tuple[EncodedImage, Sequence[ImagePlan]]:
        """The image resized, and plans for this one, where all plans resize alike and keep overlapping windows."""
        box, resize = plans[0].box, plans[0].resize
        if len(plans) < 2 or resize is None or any(plan.box != box or plan.resize != resize for plan in plans):
            return image, plans
        if self._style is None or resize.resample not in resizing.RESAMPLES:
            return image, plans
        windows = [Box(0, 0, *resize[:2]) if plan.window is None else plan.window for plan in plans]
        window = _union(windows)
        if window.width * window.height >= sum(each.width * each.height for each in windows):
            return image, plans
        if self._scaled and decoding_scale(self._records, plans[0]) > 1:
            return image, plans
        source = plans[0]._replace(window=window).source
        pixels = self._records.rgb(image, source, on_stage)
        if pixels is None:
            return image, plans
        part = (box.width, box.height, source.left - box.left, source.top - box.top)
        pixels = resizing.array_resized(pixels, resize, self._style, part=part, window=window)
        on_stage(RESIZE)
        made = EncodedImage(image.data, *resize[:2], DecodedPart(pixels, 1, *window[:2]))
        return made, [
            plan._replace(box=kept, resize=None, window=None) for plan, kept in zip(plans, windows, strict=True)
        ]

    def _decoded(self, image: EncodedImage, plans: Sequence[ImagePlan], on_stage: OnStage) -> list[EncodedImage]:
        """The image as each plan is to take it, with what it shares with other plans decoded."""
        if self._records.raw or image.part is not None:
            return [image] * len(plans)
        scales = [decoding_scale(self._records, plan) if self._scaled else 1 for plan in plans]
        found = {}
        for scale in dict.fromkeys(scales):
            # Shrunken decoding takes all that is resized, whatever is kept of it.
            boxes = [
                plan.source if scale == 1 else plan.box for plan, its in zip(plans, scales, strict=True) if its == scale
            ]
            box = shared_box(boxes, cuts=self._records.cuts)
            if scale > 1 and self._records.store.mode == "L":
                # Where shrunken colours become grey, the pixels may depend on the rectangle.
                box = None
            found[scale] = image if box is None else self._records.with_part(image, box, scale, on_stage)
        return [found[scale] for scale in scales]


AnyPipeline = Pipeline | ViewsPipeline


def _finish_views(views: tuple[Continuation, ...], into: Into, on_stage: OnStage) -> tuple[Any, ...]:
    if not isinstance(into, tuple) or len(into) != len(views):
        into = (None,) * len(views)
    return tuple(finish(target, on_stage) for finish, target in zip(views, into, strict=True))


def pipeline_of(transform: Compose | Views, records: RecordDecoder, *, scaled: bool = False) -> AnyPipeline:
    """The pipeline of a transform; see `Pipeline`."""
    if isinstance(transform, Views):
        return ViewsPipeline(transform, records, scaled=scaled)
    return Pipeline(transform, records, scaled=scaled)


def finishers_of(transform: Compose | Views | None) -> tuple[Finisher, ...]:
    """Return the finisher of the image, or of each view; none if there is nothing to do."""
    found, first = [], 0
    for view in transform.views if isinstance(transform, Views) else (transform,) if transform is not None else ():
        found.append(Finisher(view.finishing, first + view.planned))
        first += 0 if isinstance(transform, Views) and transform.alike else view.draws
    return tuple(found) if any(found) else ()


def shared_box(boxes: Sequence[Box], *, cuts: bool) -> Box | None:
    """The rectangle to decode for all of `boxes` at once; None if decoding each by itself takes less time.

    Args:
        boxes: Rectangles of one image, in pixels.
        cuts: True if each can be cut out of the record. Otherwise all of the record above its lower edge would be read
            again for each rectangle.

    >>> shared_box([Box(0, 0, 300, 300), Box(100, 100, 300, 300)], cuts=True)
    Box(left=0, top=0, width=400, height=400)
    >>> shared_box([Box(0, 0, 100, 100), Box(400, 300, 100, 100)], cuts=True) is None
    True
    """
    if len(boxes) < 2:
        return None
    together = _union(boxes)
    apart = sum(box.width * box.height + CUT_PIXELS for box in boxes)
    return together if not cuts or together.width * together.height + CUT_PIXELS < apart else None


def _union(boxes: Sequence[Box]) -> Box:
    """The smallest rectangle that holds all of `boxes`."""
    left, top = min(box.left for box in boxes), min(box.top for box in boxes)
    right, bottom = max(box.left + box.width for box in boxes), max(box.top + box.height for box in boxes)
    return Box(left, top, right - left, bottom - top)
