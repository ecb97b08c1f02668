"""Padding as a transform of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from typing_extensions import override

from packtrain._codec.geometry import Operation
from packtrain._codec.geometry import Pad as PadOperation

from . import arguments
from .geometric import GeometricTransform


class Pad(GeometricTransform):
    """Adds pixels on the sides of the image.

    Args:
        padding: Pixels on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
        fill: Value of the pixels added by the padding mode ``"constant"``: one for all channels or one for each.
        padding_mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws: Final = 0

    def __init__(
        self,
        padding: int | Sequence[int],
        fill: float | Sequence[float] | None = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.padding: Final = tuple(padding) if isinstance(padding, Iterable) else padding
        self.fill: Final = fill
        self.padding_mode: Final = arguments.pad_mode(padding_mode)
        left, top, right, bottom = (arguments.integers("padding", padding, (1, 2, 4), least=0) * 4)[:4]
        self._operation: Final = PadOperation(left, top, right, bottom, arguments.fill(fill), self.padding_mode)

    @override
    def operations(self, width: int, height: int, random: Sequence[float] = ()) -> tuple[Operation, ...]:
        return (self._operation,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(padding={self.padding}, fill={self.fill}, padding_mode={self.padding_mode})"
