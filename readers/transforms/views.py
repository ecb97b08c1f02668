"""Several views of one image: what a transform gives, several times over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from packtrain._core.arguments import items
from packtrain._core.errors import UsageError

from .compose import Compose, compose


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
