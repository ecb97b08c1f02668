"""Several views of one image: what a transform gives, several times over, and torchvision's crops for evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from packtrain._codec.geometry import Box, Crop, Flip, Operation
from packtrain._core.arguments import checks_names, flag, items
from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from . import arguments
from .base import Transform, shown
from .compose import Compose, compose, name_of
from .geometric import GeometricTransform
from .recognition import class_of
from .recognition.torchvision import V1, V2

_CORNERS: Final = ("top left", "top right", "bottom left", "bottom right")
_PLACES: Final = (*_CORNERS, "centre")


@checks_names()
class Views:
    """Several transforms of the same image, each with random numbers of its own.

    As the transform of a dataset it makes the image of a sample a tuple of views, in the order of `transforms`, and the
    images of a batch a tuple of tensors. The record is read and checked once per sample. What the views need of it is
    decoded once for all of them or once for each, whichever takes less time; the pixels are those of each transform
    alone. To get eight views from one transform, give it eight times: ``Views([transform] * 8)``.

    Attributes:
        views: The transform of each view.
        alike: True if all of them get the same random numbers.
        draws: Number of random numbers that all of them take.
        foreign: All callables in them that are not packtrain's.

    Args:
        transforms: One transform per view: each a transform, a callable, or a list or `Compose` of them.

    Raises:
        UsageError: There are none, or one of them is no transform.
    """

    alike: ClassVar[bool] = False

    def __init__(self, transforms: Iterable[Any]) -> None:
        self.views: Final[tuple[Compose, ...]] = tuple(
            map(compose, items("transforms", transforms, "a list with a transform for each view"))
        )
        if not self.views:
            raise UsageError("Views needs at least one transform")
        self.draws: Final = self.views[0].draws if self.alike else sum(view.draws for view in self.views)
        self.foreign: Final = tuple(each for view in self.views for each in view.foreign)
        if any(isinstance(each, Views) for each in self.foreign):
            raise UsageError("Views inside of Views: give all transforms in one list")

    def __call__(self, image: Any) -> tuple[Any, ...]:
        """All views of a PIL image; takes and raises what each transform does."""
        return tuple(view(image) for view in self.views)

    def __repr__(self) -> str:
        views = "".join(f"\n    {' '.join(repr(view).split())}," for view in self.views)
        return f"{type(self).__name__}([{views}\n])"

    def __str__(self) -> str:
        """The transforms of each view, with what becomes of them."""
        lines = [f"    {line}" for view in self.views for line in str(view).splitlines()]
        return "\n".join([f"{type(self).__name__}([", *lines, "])"])


class CropAt(GeometricTransform):
    """Crops a corner or the middle of an image, perhaps of the flipped image.

    Args:
        size: (height, width) in pixels.
        place: ``"top left"``, ``"top right"``, ``"bottom left"``, ``"bottom right"`` or ``"centre"``.
        flip: Flip the image first; None does not.
    """

    draws = 0

    def __init__(self, size: tuple[int, int], place: str, flip: Flip | None = None) -> None:
        self.size: Final = size
        self.place: Final = place
        self.flip: Final = flip

    @override
    def operations(self, width: int, height: int, random: Sequence[float] = ()) -> tuple[Operation, ...]:
        crop_height, crop_width = self.size
        right, bottom = width - crop_width, height - crop_height
        if min(right, bottom) < 0:
            raise UsageError(
                f"crops of {crop_width} x {crop_height} pixels (width x height) from an image of {width} x {height}: "
                "put a Resize before them"
            )
        if self.place in _CORNERS:
            left, top = right if "right" in self.place else 0, bottom if "bottom" in self.place else 0
        else:
            left, top = round(right / 2), round(bottom / 2)
        box = Box(left, top, crop_width, crop_height)
        if self.flip is None:
            return (Crop(box),)
        # The crop comes first, so that no more than its pixels is computed.
        return Crop(self.flip.source(box, width, height)), self.flip


class SeveralCrops(Views):
    """Crops of what the same transforms make of an image.

    Args:
        crops: The crops; they take no random numbers.
        before: The transforms before them, with the same random numbers for all crops.
    """

    alike = True

    def __init__(self, crops: Sequence[CropAt], before: Sequence[Transform] = ()) -> None:
        super().__init__([[*before, crop] for crop in crops])
        self._crops = tuple(crops)
        self._before = tuple(before)

    def behind(self, transforms: Sequence[Transform]) -> SeveralCrops:
        """The same crops of what `transforms` make of an image."""
        return SeveralCrops(self._crops, (*transforms, *self._before)) if transforms else self

    @override
    def __call__(self, image: Any) -> tuple[Any, ...]:
        image = Compose(self._before)(image)
        return tuple(crop(image) for crop in self._crops)


class FiveCrop(SeveralCrops):
    """Crops the four corners and the middle: top left, top right, bottom left, bottom right, centre.

    As the last transform of a dataset it makes the image of a sample a tuple of views, as `Views` does. The image is
    decoded once for all of them, and resized once if a `Resize` comes before. Called with a PIL image, it returns a
    tuple of images.

    Args:
        size: Pixels of each side, or (height, width).

    Raises:
        UsageError: `size` is out of its range.
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size: Final = arguments.size(size)
        super().__init__([CropAt(self.size, place) for place in _PLACES])

    def __repr__(self) -> str:
        return shown(self)


class TenCrop(SeveralCrops):
    """The crops of `FiveCrop`, and the same ones of the flipped image.

    Args:
        size: Pixels of each side, or (height, width).
        vertical_flip: Swap top and bottom instead of left and right.

    Raises:
        UsageError: A parameter is out of its range.
    """

    def __init__(self, size: int | Sequence[int], vertical_flip: bool = False) -> None:
        self.size: Final = arguments.size(size)
        self.vertical_flip: Final = flag("vertical_flip", vertical_flip)
        flip = Flip(horizontal=not self.vertical_flip)
        super().__init__([CropAt(self.size, place, each) for each in (None, flip) for place in _PLACES])

    def __repr__(self) -> str:
        return shown(self)


def composed(transform: Any) -> Compose | Views:
    """A transform, any callable, or a list of them, as a `Compose`; as `Views` if it ends in these.

    `Views` must stand alone, `SeveralCrops` may follow packtrain's transforms.

    Raises:
        UsageError: `transform` is none of these.
    """
    found = compose(transform)
    last = _known(found.foreign[0]) if len(found.foreign) == 1 else None
    if isinstance(last, SeveralCrops):
        return last.behind(found.fused)
    return last if isinstance(last, Views) and not found.fused else found


def _known(transform: Any) -> Any:
    """The same as one of torchvision's transforms that give several crops; anything else as it is."""
    package, name = class_of(transform)
    if package in (V1, V2) and name == "FiveCrop":
        return FiveCrop(transform.size)
    if package in (V1, V2) and name == "TenCrop":
        return TenCrop(transform.size, transform.vertical_flip)
    return transform


class Unfused(NamedTuple):
    """The steps that are not fused.

    Attributes:
        steps: Names of the steps that are called with PIL images or arrays, each once.
        remedy: What would be faster; empty if nothing is known.
    """

    steps: tuple[str, ...] = ()
    remedy: str = ""


def unfused(transforms: Iterable[Compose | Views]) -> Unfused:
    """Return what is not fused in some transforms.

    Args:
        transforms: The transforms of a dataset, or of several.
    """
    parts = [part for each in transforms for part in (each.views if isinstance(each, Views) else (each,))]
    steps = dict.fromkeys(name_of(step) for part in parts for step in part.foreign)
    remedies = dict.fromkeys(filter(None, map(_remedy, parts)))
    return Unfused(tuple(steps), next(iter(remedies), ""))


def _remedy(transform: Compose) -> str:
    if not transform.foreign:
        return ""
    first = transform.foreign[0]
    if displaced := tuple(dict.fromkeys(name_of(each) for each in transform.displaced if each is not first)):
        return f"{' and '.join(displaced)} in front of {name_of(first)}"
    if name_of(first) in set(_names(Transform)):
        return f"packtrain.transforms.{name_of(first)} in place of {type(first).__module__}'s"
    return f"a faster {name_of(first)}"


def _names(kind: type[Any]) -> Iterator[str]:
    """Names of the transforms that packtrain has."""
    for each in kind.__subclasses__():
        if each.__module__.startswith("packtrain."):
            yield each.__name__
        yield from _names(each)
