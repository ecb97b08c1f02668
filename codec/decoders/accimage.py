"""accimage, a library on top of Intel's IPP that torchvision can use in place of Pillow.

Its version must be at least 0.2.0: earlier versions only read files.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Final

import accimage

from packtrain._core.errors import MissingDependency
from packtrain._core.overriding import override

from ..jpeg_markers import too_many_scans
from ..pillow import require_pillow
from .base import BackEnd, frame_size

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..pixels import Box
    from .base import Encoded

_END_OF_IMAGE: Final = b"\xff\xd9"


class AccimageDecoder(BackEnd):
    """Decodes to three planes, which Pillow merges.

    Deviation and speed have not been measured, since accimage is not available where packtrain is tested; ``"auto"``
    never uses it. It decodes with libjpeg-turbo's exact integer DCT, as Pillow does. It does not report damaged data,
    but fills it with grey, so a JPEG without an end marker is handed to Pillow.
    """

    name: Final = "accimage"

    @property
    @override
    def version(self) -> str:
        try:
            return f"accimage {metadata.version('accimage')}"
        except metadata.PackageNotFoundError:
            return "accimage"

    @override
    def attempt(self, data: Encoded, mode: str, box: Box | None, scale: int) -> Image:
        if scale > 1:
            raise ValueError("accimage cannot scale while decoding")
        if data[-2:] != _END_OF_IMAGE:
            raise ValueError("the JPEG has no end marker and may be truncated")
        if too_many_scans(data, *frame_size(data)):
            raise ValueError("too many scans")
        try:
            decoded = accimage.Image(bytes(data))
        except TypeError as error:
            raise MissingDependency(
                "accimage only reads files before version 0.2.0; install a newer version"
            ) from error
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
