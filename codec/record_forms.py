"""The forms of records that are no image files, and what is asked of a record whatever its form.

Coefficient records have the coefficients of a JPEG without Huffman codes (docs/format-records.md). The C extension
reads them. Whatever reads only JPEGs gets one with the same coefficients, and so the same pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from .native import require_extension

_PURPOSE: Final = "Store mode coefficients"
_OTHERWISE: Final = "pack the dataset again, with --store verbatim, on a machine that has it"
_HEADER: Final = struct.Struct("<8s5I")
_START: Final = b"\xff\xd8"
# A scan of no components, where a reader of headers stops.
_SCAN: Final = b"\xff\xda\x00\x06\x00\x00\x3f\x00\xff\xd9"
_Data = bytes | bytearray | memoryview


class RecordForm(NamedTuple):
    """A form of records that are no image files.

    Attributes:
        magic: The first eight bytes of each.
        extension: Its usual file extension, without the dot.
        read_by: Name of the decoder that decodes a rectangle of a record. The others are given an image file.
        image_file: Makes an image file of a record; raises as `as_image_file`.
        header_file: Makes the beginning of that file, up to the pixels. It gets damaged records, too.
    """

    magic: bytes
    extension: str
    read_by: str
    image_file: Callable[[_Data], bytes]
    header_file: Callable[[_Data], _Data]


def to_jpeg(record: _Data) -> bytes:
    """Return a JPEG with the coefficients of a record: it is crop-ready, and keeps EXIF and ICC profile.

    Raises:
        ValueError: The record is damaged.
        MissingDependency: There is no C extension.
    """
    return require_extension(_PURPOSE, _OTHERWISE).transcode(record)


def _jpeg_header(record: _Data) -> _Data:
    """Return the beginning of the JPEG of a record, up to its first scan."""
    if len(record) < _HEADER.size:
        return record
    _, _, head, ends, *_ = _HEADER.unpack_from(record)
    return _START + bytes(record[_HEADER.size : head]) + bytes(record[head:ends]) + _SCAN


FORMS: Final = {"coefficients": RecordForm(b"\x89PTC\r\n\x1a\n", "ptc", "extension", to_jpeg, _jpeg_header)}
"""By the store mode that makes such records."""
_BY_MAGIC: Final = {form.magic: form for form in FORMS.values()}


def as_image_file(data: _Data) -> _Data:
    """Return a file that any decoder of its format reads: of an image file what it is.

    Raises:
        ValueError: The record is damaged.
        MissingDependency: There is no C extension.
    """
    return form.image_file(data) if (form := _BY_MAGIC.get(bytes(data[:8]))) else data


def header_file(data: _Data) -> _Data:
    """Return the beginning of the image file of a record, up to its pixels; of an image file what it is."""
    return form.header_file(data) if (form := _BY_MAGIC.get(bytes(data[:8]))) else data
