"""Coefficient records: the coefficients of a JPEG without Huffman codes (docs/format-records.md).

The C extension reads them. Whatever reads only JPEGs gets one with the same coefficients, and so the same pixels.
"""

from __future__ import annotations

import struct
from typing import Final

from .jpeg_markers import FrameHeader, frame_header
from .native import require_extension

MAGIC: Final = b"\x89PTC\r\n\x1a\n"
EXTENSION: Final = "ptc"
"""The usual file extension, without the dot."""
_PURPOSE: Final = "Store mode coefficients"
_OTHERWISE: Final = "pack the dataset again, with --store verbatim, on a machine that has it"
_HEADER: Final = struct.Struct("<8s5I")
_START: Final = b"\xff\xd8"
# A scan of no components, where a reader of headers stops.
_SCAN: Final = b"\xff\xda\x00\x06\x00\x00\x3f\x00\xff\xd9"


def is_coefficients(data: bytes | bytearray | memoryview) -> bool:
    """Return True if `data` begins as a coefficient record does."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def to_jpeg(record: bytes | bytearray | memoryview) -> bytes:
    """Return a JPEG with the coefficients of a record: it is crop-ready, and keeps EXIF and ICC profile.

    Raises:
        ValueError: The record is damaged.
        MissingDependency: There is no C extension.
    """
    return require_extension(_PURPOSE, _OTHERWISE).transcode(record)


def as_image_file(data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    """Return a file that any decoder of its format reads: of a coefficient record a JPEG, of all else what it is.

    Raises:
        ValueError: The record is damaged.
        MissingDependency: There is no C extension.
    """
    return to_jpeg(data) if is_coefficients(data) else data


def header_file(data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    """Return the beginning of the JPEG of a record, up to its first scan; of all else what it is."""
    if not is_coefficients(data) or len(data) < _HEADER.size:
        return data
    _, _, head, ends, *_ = _HEADER.unpack_from(data)
    return _START + bytes(data[_HEADER.size : head]) + bytes(data[head:ends]) + _SCAN


def record_frame(data: bytes | bytearray | memoryview) -> FrameHeader | None:
    """Return the frame header of a JPEG or a record; None if there is none where one should be."""
    return frame_header(header_file(data))
