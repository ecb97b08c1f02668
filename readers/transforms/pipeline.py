"""A transform over the encoded images of a dataset: plans it, has the plan run, and finishes the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from packtrain._codec.decode import EncodedImage, RecordDecoder
from packtrain._codec.image_plan import COLOURED, ImagePlan
from packtrain._codec.stages import OnStage, untimed

from .compose import Compose
from .executors import ArrayExecutor, Continuation, Executor, ForeignArrayExecutor, PillowExecutor
from .finisher import Finisher
from .recognition.albumentations import OnArray


class Pipeline:
    """A transform over the encoded images of a dataset.

    Attributes:
        draws: Number of random numbers that `plan` and `finished` take.

    Args:
        compose: The transform; without packtrain's transforms at its beginning, images are decoded whole.
        records: Decodes images.
        scaled: Let the decoder shrink JPEGs by 2, 4 or 8 if they are then resized to less than that. Much faster for
            large photographs, with slightly different pixels (`docs/benchmarks.md` has figures).
        executors: Run the plans; empty for those that are the fastest for this transform.
    """

    several: Final = False

    def __init__(
        self, compose: Compose, records: RecordDecoder, *, scaled: bool = False, executors: Sequence[Executor] = ()
    ) -> None:
        self.compose: Final = compose
        self.draws: Final = compose.draws
        self._finisher = Finisher(compose.finishing, compose.planned)
        self._executors: Final = tuple(executors) or _executors_of(compose, records, scaled=scaled)
        self._in_colour: Final = records.store.channels == 3

    def plan(self, width: int, height: int, random: Sequence[float] | None = None) -> ImagePlan:
        """What the transform makes of an image of `width` x `height` pixels.

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
    """What runs the plans of a transform, the fastest first."""
    if not compose.foreign:
        return ArrayExecutor(records, scaled=scaled), PillowExecutor(records, scaled=scaled)
    if isinstance(compose.foreign[0], OnArray):
        return (ForeignArrayExecutor(records, compose.foreign, scaled=scaled),)
    return (PillowExecutor(records, compose.foreign, scaled=scaled),)
