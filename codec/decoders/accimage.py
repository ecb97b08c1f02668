"""accimage, the library over Intel's IPP that torchvision can take in place of Pillow.

Its version must be 0.2.0 at least: those before read nothing but files.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Final

import accimage

from packtrain._core.errors import MissingDependency

from ..pillow import require_pillow
from .fallback import BackEnd

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..geometry import Box
    from .pillow import Encoded

_END_OF_IMAGE: Final = b"\xff\xd9"


class AccimageDecoder(BackEnd):
    """Decodes to three planes, which Pillow puts together.

    Deviation: not measured, nor the speed, since accimage could not be had where packtrain is tested; ``"auto"`` never
    takes it. It decodes by libjpeg-turbo's exact integer DCT, as Pillow does, but says nothing of damaged data, which
    it fills with grey: a JPEG that does not end as one goes to Pillow.
    """

    name: Final = "accimage"

    @property
    def version(self) -> str:
        """As ``"accimage 0.2.0"``."""
        try:
            return f"accimage {metadata.version('accimage')}"
        except metadata.PackageNotFoundError:
            return "accimage"

    def attempt(self, data: Encoded, mode: str, box: Box | None, scale: int) -> Image:
        """Decodes without Pillow's help."""
        if scale > 1:
            raise ValueError("accimage does not scale while it decodes")
        if data[-2:] != _END_OF_IMAGE:
            raise ValueError("truncated, perhaps")
        try:
            decoded = accimage.Image(bytes(data))
        except TypeError as error:
            raise MissingDependency("accimage reads nothing but files before 0.2.0: install a newer one") from error
        if box is not None:
            decoded.crop((box.left, box.top, box.left + box.width, box.top + box.height))
        width, height = decoded.width, decoded.height
        planes = bytearray(decoded.channels * width * height)
        decoded.copyto(planes)
        pillow = require_pillow()
        view = memoryview(planes)
        bands = [
            pillow.frombuffer("L", (width, height), view[start : start + width * height], "raw", "L", 0, 1)
            for start in range(0, len(planes), width * height)
        ]
        image: Image = pillow.merge("RGB", bands)
        return image if mode == "RGB" else image.convert(mode)


DECODER: Final = AccimageDecoder()
