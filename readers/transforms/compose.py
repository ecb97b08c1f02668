"""Transforms one after the other, in three parts: planned before decoding, foreign, and the steps to a float tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from packtrain._codec.geometry import Operation
from packtrain._codec.image_plan import ImagePlan, plan_image
from packtrain._core.arguments import checks_names, items, unexpected
from packtrain._core.errors import UsageError

from .base import Transform
from .choices import joined
from .recognition import recognised
from .recognition.albumentations import OnArray, adapted
from .tensor_steps import FinishingStep, check_statistics

# What may become of a transform.
FUSED: Final = "fused"
ON_TENSORS: Final = "on tensors"
ON_ARRAYS: Final = "on arrays"
THROUGH_PIL: Final = "through PIL"


class Compose:
    """Transforms one after the other, in one flat list.

    Attributes:
        given: All of them, in one flat list.
        fused: packtrain's transforms at the beginning; their operations are known before the image is decoded.
            Transforms of torchvision and timm that are known count as packtrain's.
        finishing: The steps on tensors that follow, if nothing foreign follows these.
        foreign: All other callables, from the first one on; those of albumentations as callables on an image.
        planned: Number of random numbers that `fused` takes.
        draws: Number of random numbers that `fused` and `finishing` take, in this order.

    Args:
        transforms: Transforms, any callables, and lists or `Compose` of them, torchvision's `Compose` included.

    Raises:
        UsageError: One of the transforms is none of these, or images in [0, 1] are normalised with the mean of bytes.
    """

    def __init__(self, transforms: Iterable[Any]) -> None:
        self.given: Final = tuple(_flat(items("transforms", transforms, "a list of transforms")))
        known = [recognised(each) for each in self.given]
        check_statistics(part for parts in known for part in ((None,) if parts is None else parts))
        count = _leading(known, Transform)
        self.fused: Final[tuple[Transform, ...]] = _joined(known[:count])
        # Whatever follows steps on tensors wants what the given ones make of a PIL image.
        finishes = _leading(known[count:], FinishingStep) == len(known) - count
        self.finishing: Final[tuple[FinishingStep, ...]] = _joined(known[count:]) if finishes else ()
        self.foreign: Final[tuple[Callable[[Any], Any], ...]] = (
            () if finishes else tuple(map(adapted, self.given[count:]))
        )
        # What is known is read now: what its owner changes in it later has no effect, and is not shown.
        self._read: Final = tuple(map(repr, self.given if finishes else self.given[:count]))
        self._later: Final = tuple(
            known[at] is not None and all(isinstance(part, Transform) for part in known[at] or ())
            for at in range(count, len(known))
        )
        """For each of the others, whether it would be fused if nothing foreign came before it."""
        self._planned: Final = joined(self.fused)
        self.planned: Final = self._planned.draws
        self.draws: Final = self.planned + sum(step.draws for step in self.finishing)

    def __reduce__(self) -> tuple[type[Compose], tuple[tuple[Any, ...]]]:
        # Without the objects that others stand for: a worker need not import torchvision, which takes seconds.
        return type(self), ((*self.fused, *self.finishing, *self.foreign),)

    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        """The operations of `fused` for one image; takes and raises what `Transform.operations` does."""
        return self._planned.operations(width, height, random[: self.planned])

    def plan(self, width: int, height: int, random: Sequence[float]) -> ImagePlan:
        """The plan of `fused` for one image; takes and raises what `operations` does."""
        return plan_image(self.operations(width, height, random), width, height)

    def __call__(self, image: Any) -> Any:
        """Transforms a PIL image; without `fused`, whatever the first of `finishing` or `foreign` takes.

        Raises:
            TypeError: `image` is something else.
            UsageError: A transform cannot be applied to an image of this size.
        """
        if self.fused:
            image = self._planned(image)
        # Steps on tensors draw numbers of their own when they are called.
        later: tuple[Callable[[Any], Any], ...] = (*self.finishing, *self.foreign)
        for transform in later:
            image = transform(image)
        return image

    @property
    def displaced(self) -> tuple[Callable[[Any], Any], ...]:
        """Those of `foreign` that would be fused if they came before the first one that cannot be."""
        return tuple(each for each, later in zip(self.foreign, self._later, strict=False) if later)

    def __repr__(self) -> str:
        lines = "".join(f"\n    {shown}" for shown in self._shown())
        return f"{type(self).__name__}({lines}\n)"

    def __str__(self) -> str:
        """A line for each transform, with what becomes of it."""
        width = max(map(len, (FUSED, ON_TENSORS, ON_ARRAYS, THROUGH_PIL)))
        each = zip(self._fates(), self._shown(), strict=True)
        lines = (f"\n    {fate:<{width}}  {' '.join(shown.split())}{why}" for (fate, why), shown in each)
        return f"{type(self).__name__}({''.join(lines)}\n)"

    def _shown(self) -> Iterator[str]:
        """Each of `given` as it is shown."""
        yield from self._read
        yield from map(repr, self.given[len(self._read) :])

    def _fates(self) -> Iterator[tuple[str, str]]:
        """Yield for each of `given` how it is run, and why."""
        yield from [(FUSED, "")] * (len(self.given) - len(self._later))
        foreign = ON_ARRAYS if self.foreign and isinstance(self.foreign[0], OnArray) else THROUGH_PIL
        for number, later in enumerate(self._later):
            why = f", because it follows {name_of(self.foreign[0])}" if self.foreign and later and number else ""
            yield foreign if self.foreign else ON_TENSORS, why


class ColoursOnly:
    """A callable on an image that changes values, but moves no pixels: a blur or a lookup table, for example.

    A callable that packtrain does not know gets the image of a sample alone. Beside masks or further images it has to
    be wrapped in this, so that none is left behind by a callable that moves pixels. A transform that packtrain knows,
    and that moves no pixels, is the same without it.

    Args:
        transform: The callable. It gets a PIL image, or what the transform before it makes.

    Raises:
        UsageError: `transform` is not callable, or is a class.
    """

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        if not callable(transform):
            raise unexpected("transform", transform, "a callable on an image; wrap each of several by itself")
        if isinstance(transform, type):
            raise UsageError(
                f"{transform.__name__} is a class: give an object of it, ColoursOnly({transform.__name__}(...))"
            )
        self.transform: Final = adapted(transform)
        self.__name__: Final = str(getattr(self.transform, "__name__", type(transform).__name__))

    def __call__(self, image: Any) -> Any:
        """Whatever the callable makes of an image."""
        return self.transform(image)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transform!r})"


def compose(transform: Any) -> Compose:
    """One transform, any callable, or a list of them, as a `Compose`.

    Raises:
        UsageError: `transform` is none of these.
    """
    return transform if isinstance(transform, Compose) else Compose([transform])


def name_of(transform: object) -> str:
    """Return the name of a function, or of the class of any other transform."""
    return str(getattr(transform, "__name__", type(transform).__name__))


@checks_names()
def from_timm(transform: Any) -> Compose:
    """Turns the result of ``timm.data.create_transform`` into a transform of packtrain.

    Its known steps are taken apart, in the same order and with the same pixels, and the others are called as they are.
    `Compose` and `open_dataset` do the same with timm's transforms wherever they find them.

    Args:
        transform: A transform of timm, a ``Compose`` of them, or the three parts that ``separate=True`` gives.

    Raises:
        UsageError: It is no transform.
    """
    return compose(transform)


def _leading(known: Sequence[Sequence[Any] | None], kind: type[Any]) -> int:
    """Count those at the beginning that consist of this kind only."""
    for count, parts in enumerate(known):
        if parts is None or not all(isinstance(part, kind) for part in parts):
            return count
    return len(known)


def _joined(known: Sequence[Sequence[Any] | None]) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(filter(None, known)))


def _flat(transforms: Iterable[Any]) -> Iterator[Any]:
    for transform in transforms:
        if isinstance(transform, Compose):
            yield from transform.given
        elif isinstance(transform, list | tuple):
            yield from _flat(transform)
        elif type(transform).__name__ == "Compose" and type(transform).__module__.startswith("torchvision."):
            yield from _flat(transform.transforms)
        elif isinstance(transform, type) and issubclass(transform, Transform):
            # Being a class, it can be called, but that would only make a transform out of the image.
            raise UsageError(f"{transform.__name__} is a class of transforms: give {transform.__name__}(...)")
        elif isinstance(transform, ColoursOnly) and _is_known_to_stay(transform.transform):
            yield transform.transform
        elif callable(transform):
            yield transform
        else:
            raise UsageError(f"{transform!r} is not a transform: expected a callable or a list of callables")


def _is_known_to_stay(transform: Any) -> bool:
    """True for a transform that is known to move no pixels."""
    known = recognised(transform)
    return known is not None and not any(isinstance(each, Transform) and each.geometric for each in known)
