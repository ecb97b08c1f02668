"""Transforms that change the values of pixels: colours, tones, and blur."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from packtrain._codec.effects import colour, filters, tones
from packtrain._codec.effects.operation import PixelOperation
from packtrain._codec.geometry import Operation
from packtrain._codec.image_plan import COLOURED
from packtrain._core.arguments import number, unexpected, whole
from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from . import arguments
from .base import Transform, uniform
from .choices import permutation

# Standard deviations whose weights float32 can hold.
_SIGMAS: Final = (1e-9, 1e9)


class ColourTransform(Transform):
    """A transform that leaves every pixel in its place."""

    geometric = False


class ColorJitter(ColourTransform):
    """Changes brightness, contrast, saturation and hue by random factors, in a random order.

    Args:
        brightness: Greatest distance of the factor from 1, or (least, greatest) factor; 0 to leave it.
        contrast: The same.
        saturation: The same.
        hue: Greatest turn of the hues, of a whole turn, or (least, greatest), from -0.5 to 0.5.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 8

    def __init__(
        self,
        brightness: float | Sequence[float] | None = 0,
        contrast: float | Sequence[float] | None = 0,
        saturation: float | Sequence[float] | None = 0,
        hue: float | Sequence[float] | None = 0,
    ) -> None:
        self.brightness: Final = arguments.jitter("brightness", brightness, 1, arguments.FLOAT32)
        self.contrast: Final = arguments.jitter("contrast", contrast, 1, arguments.FLOAT32)
        self.saturation: Final = arguments.jitter("saturation", saturation, 1, arguments.FLOAT32)
        self.hue: Final = arguments.jitter("hue", hue, 0, 0.5)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        return tuple(
            _JITTERS[part](uniform(bounds, random[4 + part]))
            for part in permutation(random[:4])
            if (bounds := ranges[part]) is not None
        )


_JITTERS: Final = (colour.Brightness, colour.Contrast, colour.Saturation, colour.Hue)


class Grayscale(ColourTransform):
    """Makes the image grey.

    Args:
        num_output_channels: 1 or 3 equal ones.

    Raises:
        UsageError: `num_output_channels` is something else.
    """

    draws = 0

    def __init__(self, num_output_channels: int = 1) -> None:
        self.num_output_channels: Final = whole("num_output_channels", num_output_channels)
        if num_output_channels not in (1, 3):
            raise unexpected("num_output_channels", num_output_channels, "1 or 3")
        self._operations: Final = (colour.Grey(), colour.Channels(self.num_output_channels))

    @override
    def operations(self, width: int, height: int, random: Sequence[float] = ()) -> tuple[Operation, ...]:
        return self._operations


class RGB(ColourTransform):
    """Makes a grey image one of three equal channels, and changes no other one."""

    draws = 0

    @override
    def operations(self, width: int, height: int, random: Sequence[float] = ()) -> tuple[Operation, ...]:
        return (COLOURED,)


class GaussianBlur(ColourTransform):
    """Blurs the image. The values are within one of torchvision's, which computes them with torch in float32.

    The image is mirrored at its edges, so that half the kernel has to be smaller than the image.

    Args:
        kernel_size: Width and height of the kernel in pixels, odd; or one number for both.
        sigma: (least, greatest) standard deviation in pixels, or a fixed one.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 1

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        sides = arguments.integers("kernel_size", kernel_size, (1, 2), least=1)
        if not all(side % 2 for side in sides):
            raise unexpected("kernel_size", kernel_size, "odd numbers of pixels")
        self.kernel_size: Final = (sides[0], sides[-1])
        both = sigma if isinstance(sigma, Sequence) else (sigma, sigma)
        self.sigma: Final = arguments.bounds("sigma", both, zero=False)
        if not (_SIGMAS[0] <= self.sigma[0] and self.sigma[1] <= _SIGMAS[1]):
            raise unexpected("sigma", sigma, f"pixels, from {_SIGMAS[0]:g} to {_SIGMAS[1]:g}")

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        wide, high = self.kernel_size
        if wide // 2 >= width or high // 2 >= height:
            raise UsageError(
                f"GaussianBlur with a kernel of {wide} x {high} pixels (width x height), but an image of {width} x "
                f"{height}: take a smaller kernel_size, or put a Resize before it"
            )
        sigma = uniform(self.sigma, random[0])
        return (filters.GaussianBlur(self.kernel_size, (sigma, sigma)),)


class _Sometimes(ColourTransform):
    """Runs one effect with probability `p`."""

    draws = 1

    def __init__(self, p: float, effect: PixelOperation) -> None:
        self.p: Final = arguments.probability("p", p)
        self._effect: Final = effect

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        return (self._effect,) if random[0] < self.p else ()


class RandomGrayscale(_Sometimes):
    """Makes the image grey with probability `p`; the number of its channels stays.

    Raises:
        UsageError: `p` is not a probability.
    """

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p, colour.Grey())


class RandomInvert(_Sometimes):
    """Replaces each value by 255 minus it, with probability `p`.

    Raises:
        UsageError: `p` is not a probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p, tones.Invert())


class RandomPosterize(_Sometimes):
    """Keeps the highest `bits` bits of each value, from 1 to 8, with probability `p`.

    Raises:
        UsageError: A parameter is out of its range.
    """

    def __init__(self, bits: int, p: float = 0.5) -> None:
        self.bits: Final = whole("bits", bits, 1, 8)
        super().__init__(p, tones.Posterize(self.bits))


class RandomSolarize(_Sometimes):
    """Inverts all values from `threshold` on, with probability `p`.

    Raises:
        UsageError: A parameter is out of its range.
    """

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        self.threshold: Final = number("threshold", threshold, -1e300, 1e300, "a number")
        super().__init__(p, tones.Solarize(self.threshold))


class RandomAdjustSharpness(_Sometimes):
    """Blends the image with a smoothed one, with probability `p`.

    Args:
        sharpness_factor: 0 gives the smoothed image, 1 the image itself, 2 twice the sharpness.
        p: The probability.

    Raises:
        UsageError: A parameter is out of its range.
    """

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        expected = f"a number from 0 to {arguments.FLOAT32:g}"
        self.sharpness_factor: Final = number("sharpness_factor", sharpness_factor, 0, arguments.FLOAT32, expected)
        super().__init__(p, filters.Sharpness(self.sharpness_factor))


class RandomAutocontrast(_Sometimes):
    """Stretches the values of each channel so that they reach from 0 to 255, with probability `p`.

    Raises:
        UsageError: `p` is not a probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p, tones.AutoContrast())


class RandomEqualize(_Sometimes):
    """Equalises the histogram of each channel with probability `p`.

    Raises:
        UsageError: `p` is not a probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p, tones.Equalize())
