"""A promise about a callable that packtrain does not know: it changes colours and moves no pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from packtrain._core.arguments import unexpected
from packtrain._core.errors import UsageError

from .recognition.albumentations import adapted


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
