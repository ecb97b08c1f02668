"""Turns what a list says about a sample into the records that are stored, or says why the sample is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from packtrain._core.npy import npy_header
from packtrain._core.options import StoreOptions
from packtrain._core.schema import Field, Schema

from .arrays import store_array
from .images import encoder, store_image
from .listing import Cell
from .masks import Frame, png_writer, rewrites_masks, store_mask
from .sources import Refused, read_source

_MAY_BE_EMPTY: Final = ("text", "bytes")


class Encoded(NamedTuple):
    """A record before it has a place in a shard.

    Attributes:
        payload: Bytes of the record; of arrays, raw masks and raw images, the values alone.
        extension: File extension that names the encoding, without the dot.
        shape: Shape of the values, or height, width and channels of the image; () where it means nothing.
        dtype: numpy type string of bare values, which most containers hold as `.npy` files; None for all else.
        frame: Width, height and orientation, as far as the field has columns for them.
        remarks: What the user should know about this record.
    """

    payload: bytes
    extension: str
    shape: tuple[int, ...] = ()
    dtype: str | None = None
    frame: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()

    def stored(self, *, bare: bool) -> bytes:
        """The bytes in a container that holds values `bare`, or as `.npy` files."""
        if bare or self.dtype is None:
            return self.payload
        return npy_header(self.dtype, self.shape) + self.payload


def record_encoder(schema: Schema) -> str | None:
    """Names the libraries that, apart from the source files, decide the stored bytes; None if no library does.

    Raises:
        MissingDependency: A package that is needed is not installed, or does not work.
    """
    stores = [field.store for field in schema.fields if field.store is not None]
    names = [name for store in stores[:1] if (name := encoder(store)) is not None]
    masks = [field for field in schema.fields if field.kind == "mask" and field.encoding == "png"]
    if masks and schema.image is not None and rewrites_masks(_store(schema.image)):
        names.append(f"PNG by {png_writer()}")
    return "; ".join(names) or None
