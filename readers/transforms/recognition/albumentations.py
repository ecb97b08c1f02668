"""Transforms of albumentations: callables on arrays instead of PIL images.

None is taken apart: crops and resizes are OpenCV's, whose pixels differ from Pillow's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_LIBRARY: Final = "albumentations."
_MOVING: Final = "DualTransform"


class OnArray:
    """A transform of albumentations as a callable on one image, or on an image and its masks.

    Args:
        transform: A transform or ``Compose`` of albumentations.
    """

    def __init__(self, transform: Callable[..., dict[str, Any]]) -> None:
        self.transform: Final = transform
        self.__name__: Final = f"albumentations' {type(transform).__name__}"

    def __call__(self, image: Any) -> Any:
        """Run the transform on an image.

        Args:
            image: uint8 [height, width, channels], a PIL image, or what another transform made of one.

        Returns:
            An array, or a tensor if the transform makes one.
        """
        return self.transform(image=image_array(image))["image"]

    def with_masks(self, image: Any, masks: Sequence[npt.NDArray[Any]]) -> tuple[Any, list[Any]]:
        """The same for an image and masks, [height, width] each, which are moved alike."""
        if len(masks) == 1:
            made = self.transform(image=image_array(image), mask=masks[0])
            return made["image"], [made["mask"]]
        made = self.transform(image=image_array(image), masks=list(masks))
        return made["image"], list(made["masks"])

    @property
    def moves(self) -> bool:
        """True if it moves pixels, so that masks and further images have to follow."""
        return _moves(self.transform)

    def __repr__(self) -> str:
        return repr(self.transform)


def adapted(transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A callable on one image, for any callable that is not packtrain's."""
    return OnArray(transform) if _is_of_library(transform) else transform


def image_array(image: Any) -> Any:
    """An image as albumentations takes it: an array, of grey values without an axis for channels."""
    pixels = np.array(image) if hasattr(image, "getbands") else image
    return pixels[..., 0] if isinstance(pixels, np.ndarray) and pixels.shape[2:] == (1,) else pixels


def _is_of_library(transform: object) -> bool:
    """True for albumentations' own classes and those derived from them."""
    return any(base.__module__.startswith(_LIBRARY) for base in type(transform).__mro__)


def _moves(transform: Any) -> bool:
    if any(base.__name__ == _MOVING for base in type(transform).__mro__):
        return True
    return any(map(_moves, getattr(transform, "transforms", ())))
