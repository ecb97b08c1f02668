"""The store modes: how the pixels of images can be stored, and what every room has to know about each.

A new mode is an entry here, and how its records are made (`packer/images.py`). If these are no image files, it is also
an entry in `codec/record_forms.py`. Command line, options, plan, containers and readers follow the entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

LARGEST_JPEG_SIDE: Final = 65500
"""The most pixels of a side of a JPEG: a limit of libjpeg, which Pillow shares."""


@dataclass(frozen=True)
class StoreMode:
    """A store mode.

    Attributes:
        name: Its name.
        keeps_pixels: True if the pixels of each file are kept, so that a record is about as large as its file, and
            nothing can be resized or turned. Otherwise Pillow decodes each file.
        transcodes: True if JPEGs become records that can be decoded in part, so that the C extension decides the bytes:
            crop-ready JPEGs, or coefficients.
        is_raw: True if records are uint8 pixels, not encoded images.
        takes_quality: True if `quality` applies.
        largest_side: The most pixels of a side of an image that is stored anew; None for any number.
    """

    name: str
    keeps_pixels: bool = False
    transcodes: bool = False
    is_raw: bool = False
    takes_quality: bool = False
    largest_side: int | None = None


STORE_MODES: Final[Mapping[str, StoreMode]] = MappingProxyType(
    {
        mode.name: mode
        for mode in (
            StoreMode("crop-ready", keeps_pixels=True, transcodes=True),
            StoreMode("coefficients", keeps_pixels=True, transcodes=True),
            StoreMode("verbatim", keeps_pixels=True),
            StoreMode("jpeg", transcodes=True, takes_quality=True, largest_side=LARGEST_JPEG_SIDE),
            StoreMode("raw", is_raw=True),
        )
    }
)
"""By name; the first is the default."""
