"""From stored bytes to a PIL image."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from packtrain.core.npy import HEADER_BYTES, npy_header
from packtrain.core.options import StoreOptions

from .pillow import require_pillow

if TYPE_CHECKING:
    from PIL.Image import Image


def decode(record: memoryview, store: StoreOptions, width: int, height: int) -> Image:
    """Decodes a record.

    Args:
        record: Its stored bytes.
        store: How the dataset stores pixels.
        width: Pixels, from the index; of meaning for raw records alone.
        height: Likewise.

    Returns:
        An image in the dataset's pixel mode.

    Raises:
        ValueError: A raw record does not have the size that width and height ask for.
        Exception: Whatever Pillow raises on an encoded record it refuses.
    """
    pillow = require_pillow()
    if store.store == "raw":
        return pillow.frombytes(store.mode, (width, height), raw_pixels(record, height, width, store.channels))  # type: ignore[no-any-return]
    image = pillow.open(io.BytesIO(record))
    if image.mode == store.mode:
        # convert() would copy the pixels once more.
        image.load()
        return image  # type: ignore[no-any-return]
    return image.convert(store.mode)  # type: ignore[no-any-return]


def raw_pixels(record: memoryview, height: int, width: int, channels: int) -> memoryview:
    """The pixels of a raw record, uint8 [height * width * channels], without the `.npy` header if it has one.

    Raises:
        ValueError: The record has another size or header.
    """
    size = height * width * channels
    if len(record) == size:
        return record
    if len(record) != size + HEADER_BYTES or record[:HEADER_BYTES] != npy_header("|u1", (height, width, channels)):
        raise ValueError(f"a raw record of {len(record)} bytes does not hold {height} x {width} x {channels} pixels")
    return record[HEADER_BYTES:]
