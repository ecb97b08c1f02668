"""The records of fields as files that other programs read."""

from __future__ import annotations

import io
import json
from typing import NamedTuple

import numpy as np

from packtrain._codec.decode import raw_pixels
from packtrain._codec.pillow import require_pillow
from packtrain._codec.record_forms import as_image_file
from packtrain._core.kinds import KINDS
from packtrain._core.npy import npy_header
from packtrain._core.schema import Field
from packtrain._readers.dataset.indexed import IndexedValues
from packtrain._readers.dataset.records import FieldRecords

from ..images import extension_of
from ..masks import mask_png
from ..sources import Refused


class FieldFile(NamedTuple):
    """A field of a sample as a file.

    Attributes:
        data: Content of the file.
        extension: Its extension, without the dot.
    """

    data: bytes | memoryview
    extension: str


def field_file(records: FieldRecords | IndexedValues, row: int) -> FieldFile | None:
    """A field of a row as a file; None if the row is without it.

    Images and masks that are stored as files are these files, byte for byte, coefficients become a JPEG, and pixels a
    PNG. Arrays become ``.npy`` files, numbers JSON (with NaN, as Python writes it), and strings texts.

    Raises:
        CorruptRecord: The record is damaged.
        MissingDependency: It takes Pillow, or the C extension.
    """
    field = records.field
    if isinstance(records, IndexedValues):
        found = records.value(row)
        if found is None:
            return None
        if isinstance(found, str):
            return FieldFile(found.encode(), "txt")
        return FieldFile(json.dumps(found).encode(), "json")
    record = records.read(row)
    if record is None:
        return None
    match field.kind:
        case "image":
            return _image(records, row, record)
        case "mask" if field.encoding == "raw":
            values = records.value(row)
            return FieldFile(mask_png(values, field), "png")
        case "mask":
            return FieldFile(record, "png")
        case "array":
            values = records.value(row)
            header = npy_header(values.dtype.str, values.shape)
            return FieldFile(header + np.ascontiguousarray(values).tobytes(), "npy")
    extension = KINDS[field.kind].extension
    assert extension is not None, "texts, JSON and bytes have an extension of their own"
    return FieldFile(record, extension)


def value_in(field: Field, file: FieldFile) -> int | float | bool | str:
    """The value of a number or a string in its file."""
    text = str(file.data, "utf-8")
    value: int | float | bool | str = text if field.kind == "string" else json.loads(text)
    return value


def _image(records: FieldRecords, row: int, record: memoryview) -> FieldFile:
    store = records.field.store
    assert store is not None, "an image has store options"
    try:
        if not store.store_mode.is_raw:
            data = bytes(as_image_file(record))
            return FieldFile(data, extension_of(data))
        width, height = records.size(row)
        pixels = raw_pixels(record, height, width, store.channels)
    except (Refused, ValueError) as error:
        raise records.undecodable(row, error) from error
    encoded = io.BytesIO()
    require_pillow().frombytes(store.mode, (width, height), bytes(pixels)).save(encoded, "PNG")
    return FieldFile(encoded.getvalue(), "png")
