"""Transforms one after the other, split into those that are planned before decoding and those that need pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from packtrain._codec.geometry import Operation, size_after
from packtrain._codec.image_plan import ImagePlan, plan_image
from packtrain._core.arguments import items
from packtrain._core.errors import UsageError

from .base import Transform, transform_image


class Compose:
    """Transforms one after the other, in one flat list.

    Attributes:
        fused: packtrain's transforms at the beginning; their operations are known before the image is decoded.
        foreign: All callables from the first one that is not packtrain's.
        draws: Number of random numbers that `fused` takes.

    Args:
        transforms: Transforms, any callables, lists or `Compose` of them; torchvision's `Compose` is taken apart too.

    Raises:
        UsageError: One of the transforms is none of these.
    """

    def __init__(self, transforms: Iterable[Any]) -> None:
        flat = list(_flat(items("transforms", transforms, "a list of transforms")))
        ours = next((i for i, transform in enumerate(flat) if not isinstance(transform, Transform)), len(flat))
        self.fused: Final[tuple[Transform, ...]] = tuple(flat[:ours])
        self.foreign: Final[tuple[Callable[[Any], Any], ...]] = tuple(flat[ours:])
        self.draws: Final = sum(transform.draws for transform in self.fused)

    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        """The operations of `fused` for one image; takes and raises what `Transform.operations` does."""
        if len(self.fused) == 1:
            return self.fused[0].operations(width, height, random)
        done: tuple[Operation, ...] = ()
        for transform in self.fused:
            operations = transform.operations(width, height, random[: transform.draws])
            if transform.geometric:
                width, height = size_after(operations, width, height)
            random = random[transform.draws :]
            done += operations
        return done

    def plan(self, width: int, height: int, random: Sequence[float]) -> ImagePlan:
        """The plan of `fused` for one image; takes and raises what `operations` does."""
        return plan_image(self.operations(width, height, random), width, height)

    def __call__(self, image: Any) -> Any:
        """Transforms a PIL image; without `fused`, whatever the first of `foreign` takes.

        Raises:
            TypeError: `image` is something else.
            UsageError: A transform cannot be applied to an image of this size.
        """
        if self.fused:
            image = transform_image(self, image)
        for transform in self.foreign:
            image = transform(image)
        return image

    def __repr__(self) -> str:
        lines = "".join(f"\n    {transform}" for transform in (*self.fused, *self.foreign))
        return f"{type(self).__name__}({lines}\n)"


def compose(transform: Any) -> Compose:
    """One transform, any callable, or a list of them, as a `Compose`.

    Raises:
        UsageError: `transform` is none of these.
    """
    return transform if isinstance(transform, Compose) else Compose([transform])


def _flat(transforms: Iterable[Any]) -> Iterator[Any]:
    for transform in transforms:
        if isinstance(transform, Compose):
            yield from transform.fused
            yield from transform.foreign
        elif isinstance(transform, list | tuple):
            yield from _flat(transform)
        elif type(transform).__name__ == "Compose" and type(transform).__module__.startswith("torchvision."):
            yield from _flat(transform.transforms)
        elif isinstance(transform, type) and issubclass(transform, Transform):
            # Being a class, it can be called, but that would only make a transform out of the image.
            raise UsageError(f"{transform.__name__} is a class of transforms: give {transform.__name__}(...)")
        elif callable(transform):
            yield transform
        else:
            raise UsageError(f"{transform!r} is not a transform: expected a callable or a list of callables")
