"""The augmentations that draw operations from a list: TrivialAugment, RandAugment and AutoAugment."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from packtrain._codec.effects import colour, filters, tones
from packtrain._codec.effects.operation import PixelOperation
from packtrain._codec.effects.warps import Affine, Rotate
from packtrain._codec.geometry import Operation
from packtrain._core.arguments import choice, whole
from packtrain._core.overriding import override

from . import arguments
from .autoaugment_policies import POLICIES
from .warps import WarpTransform, inverse_matrix

# In torchvision's order.
_OPERATIONS: Final = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast"),
    *("Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
_FACTORS: Final[Mapping[str, Callable[[float], PixelOperation]]] = {
    "Brightness": colour.Brightness,
    "Color": colour.Saturation,
    "Contrast": colour.Contrast,
    "Sharpness": filters.Sharpness,
}
_SIGNED: Final = frozenset({"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", *_FACTORS})
_FIXED: Final = {
    "AutoContrast": tones.AutoContrast(),
    "Equalize": tones.Equalize(),
    "Invert": tones.Invert(),
}
# The greatest magnitudes of RandAugment and AutoAugment. Those of translations depend on the image.
_NARROW: Final = {
    **dict.fromkeys(("ShearX", "ShearY"), 0.3),
    **dict.fromkeys(_FACTORS, 0.9),
    "Rotate": 30.0,
    "Posterize": 4,
}
_TRANSLATION: Final = 150.0 / 331.0
_WIDE: Final = {
    **dict.fromkeys(("ShearX", "ShearY"), 0.99),
    **dict.fromkeys(("TranslateX", "TranslateY"), 32.0),
    **dict.fromkeys(_FACTORS, 0.99),
    "Rotate": 135.0,
    "Posterize": 6,
}


class _Policy(WarpTransform):
    """Base of the augmentations.

    Their warps move masks with the nearest pixel, and put `fill` around them.
    """

    def __init__(self, interpolation: Any, fill: float | Sequence[float] | None, version: arguments.Version) -> None:
        super().__init__(interpolation, fill)
        self.version: Final = arguments.version(version)

    def _operation(self, name: str, magnitude: float, negative: bool) -> tuple[Operation, ...]:
        if name in _SIGNED and negative:
            magnitude = -magnitude
        return operation(name, magnitude, self._resample, self._fill)


class TrivialAugmentWide(_Policy):
    """One operation of fourteen, with a random magnitude.

    Args:
        num_magnitude_bins: The number of different magnitudes.
        interpolation: Of the warps: ``"nearest"``, ``"bilinear"`` or ``"bicubic"``, torchvision's
            ``InterpolationMode``, or a value of `PIL.Image.Resampling`.
        fill: Colour outside a warped image, from 0 to 255: one value for all channels or one for each; None is 0.
        version: Whose magnitudes: those of torchvision.transforms (1), or of its v2 (2). The thresholds of Solarize
            differ in their rounding.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 3

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
        *,
        version: arguments.Version = 1,
    ) -> None:
        super().__init__(interpolation, fill, version)
        self.num_magnitude_bins: Final = whole("num_magnitude_bins", num_magnitude_bins, 2)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        name, bins = _OPERATIONS[int(random[0] * len(_OPERATIONS))], self.num_magnitude_bins
        magnitude = _magnitudes(name, _WIDE.get(name, 0), bins, self.version)[int(random[1] * bins)]
        return self._operation(name, magnitude, random[2] >= 0.5)


class RandAugment(_Policy):
    """Several operations of fourteen, one after the other, all with the same magnitude.

    Args:
        num_ops: How many operations.
        magnitude: Number of the magnitude, from 0 to `num_magnitude_bins` - 1.
        num_magnitude_bins: The number of different magnitudes.
        interpolation: As for `TrivialAugmentWide`.
        fill: As for `TrivialAugmentWide`.
        version: As for `TrivialAugmentWide`.

    Raises:
        UsageError: A parameter is out of its range.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
        *,
        version: arguments.Version = 1,
    ) -> None:
        super().__init__(interpolation, fill, version)
        self.num_ops: Final = whole("num_ops", num_ops, 0)
        self.num_magnitude_bins: Final = whole("num_magnitude_bins", num_magnitude_bins, 2)
        self.magnitude: Final = whole("magnitude", magnitude, 0, self.num_magnitude_bins - 1)
        self.draws = 2 * self.num_ops

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        done: tuple[Operation, ...] = ()
        for at in range(0, 2 * self.num_ops, 2):
            name = _OPERATIONS[int(random[at] * len(_OPERATIONS))]
            greatest = _greatest(name, width, height)
            magnitude = _magnitudes(name, greatest, self.num_magnitude_bins, self.version)[self.magnitude]
            done += self._operation(name, magnitude, random[at + 1] >= 0.5)
        return done


class AutoAugment(_Policy):
    """One pair of operations of 25 that were found for a data set; each has a magnitude and a probability.

    Args:
        policy: ``"imagenet"``, ``"cifar10"`` or ``"svhn"``, or torchvision's ``AutoAugmentPolicy``.
        interpolation: As for `TrivialAugmentWide`.
        fill: As for `TrivialAugmentWide`.
        version: As for `TrivialAugmentWide`.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 5

    def __init__(
        self,
        policy: Any = "imagenet",
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
        *,
        version: arguments.Version = 1,
    ) -> None:
        super().__init__(interpolation, fill, version)
        self.policy: Final = choice("policy", getattr(policy, "value", policy), POLICIES)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        pairs = POLICIES[self.policy]
        done: tuple[Operation, ...] = ()
        for at, (name, probability, number) in enumerate(pairs[int(random[0] * len(pairs))]):
            if random[1 + at] < probability:
                magnitudes = _magnitudes(name, _greatest(name, width, height), 10, self.version)
                done += self._operation(name, magnitudes[number or 0], random[3 + at] < 0.5)
        return done


def operation(name: str, magnitude: float, resample: int, fill: tuple[int, ...]) -> tuple[Operation, ...]:
    """An operation of torchvision's augmentations; empty for ``"Identity"``.

    Args:
        name: torchvision's name.
        magnitude: Its magnitude, with its sign.
        resample: Of a warp, see `Affine`.
        fill: Colour outside a warped image.
    """
    made: PixelOperation
    if name in _FACTORS:
        made = _FACTORS[name](1.0 + magnitude)
    elif name in _FIXED:
        made = _FIXED[name]
    elif name == "Rotate":
        made = Rotate(magnitude, resample, fill=fill)
    elif name == "Posterize":
        made = tones.Posterize(int(magnitude))
    elif name == "Solarize":
        made = tones.Solarize(magnitude)
    elif name in ("ShearX", "ShearY"):
        angle = math.degrees(math.atan(magnitude))
        shear = (angle, 0.0) if name == "ShearX" else (0.0, angle)
        made = Affine(inverse_matrix((0, 0), 0.0, (0, 0), 1.0, shear), resample, fill)
    elif name in ("TranslateX", "TranslateY"):
        shift = (int(magnitude), 0) if name == "TranslateX" else (0, int(magnitude))
        # Whatever the centre is, it goes in and out exactly.
        made = Affine(inverse_matrix((0, 0), 0.0, shift, 1.0, (0.0, 0.0)), resample, fill)
    else:
        return ()
    return (made,)


def _greatest(name: str, width: int, height: int) -> float:
    if name == "TranslateX":
        return _TRANSLATION * width
    if name == "TranslateY":
        return _TRANSLATION * height
    return _NARROW.get(name, 0)


# Translations have a line of their own for every width and height; a pass over a data set of many sizes needs few.
@functools.lru_cache(1024)
def _magnitudes(name: str, greatest: float, bins: int, version: arguments.Version) -> tuple[float, ...]:
    """All magnitudes of an operation, in torchvision's float32: another rounding would move whole pixels."""
    import torch

    if name == "Posterize":
        steps = torch.arange(bins) / ((bins - 1) / greatest)
        bits = 8 - steps.round().int() if version == 1 else (8 - steps).round().int()
        return tuple(bits.tolist())
    if name == "Solarize":
        if version == 1:
            return tuple(torch.linspace(255.0, 0.0, bins).tolist())
        return tuple(255.0 * share for share in torch.linspace(1.0, 0.0, bins).tolist())
    return tuple(torch.linspace(0.0, greatest, bins).tolist())
