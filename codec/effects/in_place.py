"""Operations that overwrite the pixels and keep the size of the image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from typing_extensions import override

from ..native import Extension, extension
from .operation import PixelOperation, Pixels


class InPlace(PixelOperation):
    """An operation that the extension does in place. Subclasses with parameters have `examples` of their own."""

    @abstractmethod
    def overwrite(self, extension: Extension, pixels: Pixels, style: int) -> None:
        """Changes `pixels` in one of the `styles`."""

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        assert extension is not None
        self.overwrite(extension, pixels, style)
        return pixels

    @classmethod
    @override
    def examples(cls) -> Sequence[PixelOperation]:
        return [cls()]
