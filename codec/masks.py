"""Label maps: decoded without scaling their indices, and moved by the same operations as the image.

A mask holds class indices, so nothing may mix two of them: a resize takes the nearest value. Crops, resizes, flips and
pads pick rows and columns independently of each other, so a chain of them is one list of indices for each axis and a
single gather at the end. Warps do not; each runs by itself between such chains.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import UsageError

from . import native
from .effects.operation import PixelOperation
from .geometry import Crop, Flip, Operation, Pad, Scale
from .pillow import Encoded, open_image

Mask = npt.NDArray[np.uint8] | npt.NDArray[np.int32]
"""uint8 or int32 [height, width]."""

_HEADER: Final = struct.Struct(">8s4x4sIIBB")
_CHUNK: Final = struct.Struct(">I4s")
_AFTER_HEADER: Final = 33
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_GREY: Final = 0
_PALETTE: Final = 3
# What Pillow multiplies grey values of fewer than 8 bits by. It leaves palette indices as they are.
_SCALED: Final = {2: 85, 4: 17}
_BYTE: Final = 8
_WIDE: Final = 16
_CHECKSUM: Final = struct.Struct(">I")
# The fifth bit of the first letter of a chunk's name, as lower-case letters have it: decoders may ignore the chunk.
_ANCILLARY: Final = 0x20
# Where the header says whether the rows are interlaced.
_INTERLACING: Final = 28
# Pixels beyond which Pillow warns, and which are left to it.
_MOST_PLAIN: Final = 1 << 26


class PngHeader(NamedTuple):
    """Content of the header of a PNG file.

    Attributes:
        width: In pixels.
        height: In pixels.
        depth: Bits of a value: 1, 2, 4, 8 or 16.
        palette: True if the values are indices into a palette, False if they are grey values.
    """

    width: int
    height: int
    depth: int
    palette: bool

    @property
    def dtype(self) -> str:
        """The type of a mask's values that holds these, see `packtrain._core.schema.Field`."""
        return "<u2" if self.depth == _WIDE else "|u1"


def png_header(data: Encoded) -> PngHeader:
    """Reads the header of a label map.

    Raises:
        ValueError: It is no PNG file, or its pixels have several channels.
    """
    try:
        signature, chunk, width, height, depth, color = _HEADER.unpack_from(data)
    except struct.error:
        signature = chunk = b""
    if (signature, chunk) != (_SIGNATURE, b"IHDR"):
        raise ValueError(f"it is no PNG file; it begins with {bytes(data[:16])!r}")
    if color not in (_GREY, _PALETTE):
        raise ValueError("its pixels are colours; a mask has one channel: grey values or indices into a palette")
    return PngHeader(width, height, depth, color == _PALETTE)


def decode_png(data: Encoded) -> Mask:
    """Decodes a label map: the values in the file, never scaled.

    Returns:
        uint8 [height, width], or int32 for values of 16 bits.

    Raises:
        ValueError: It is no PNG file of one channel.
        Exception: Whatever Pillow raises on a damaged file.
    """
    header = png_header(data)
    if (plain := _decoded_plain(data, header)) is not None:
        return plain
    _refuse_second_header(data)
    values = np.asarray(open_image(data))
    if header.depth == _WIDE:
        return values.astype(np.int32)
    if not header.palette and header.depth in _SCALED:
        return values // np.uint8(_SCALED[header.depth])
    return values.astype(np.uint8)


def _decoded_plain(data: Encoded, header: PngHeader) -> Mask | None:
    """The values of a file of the usual form; None for any other, and for a damaged one.

    Pillow takes longer, above all to undo the filters: 480 against 240 us for a grey mask of 500 x 375, and 260 against
    195 us for one with a palette.
    """
    if native.extension is None or header.depth != _BYTE:
        return None
    try:
        size = header.height * (header.width + 1)
        if not 0 < size <= _MOST_PLAIN or data[_INTERLACING]:
            return None
        inflate = zlib.decompressobj()
        # One byte more than there should be shows that there are too many.
        rows = inflate.decompress(_image_data(memoryview(data)), size + 1)
        if len(rows) != size or not inflate.eof:
            return None
        values = np.empty((header.height, header.width), np.uint8)
        native.extension.unfilter(rows, header.width, values)
        return values
    except (ValueError, IndexError, struct.error, zlib.error):
        return None


def _image_data(data: memoryview) -> bytes:
    """The content of the IDAT chunks, one after the other.

    Raises:
        ValueError: The chunks are not those of a usual file, or a checksum is wrong.
    """
    pieces: list[memoryview] = []
    offset, kind = len(_SIGNATURE), b""
    while kind != b"IEND":
        length, kind = _CHUNK.unpack_from(data, offset)
        body = data[offset + _CHUNK.size : offset + _CHUNK.size + length]
        (checksum,) = _CHECKSUM.unpack_from(data, offset + _CHUNK.size + length)
        if zlib.crc32(body, zlib.crc32(kind)) != checksum:
            raise ValueError
        if kind == b"IDAT":
            pieces.append(body)
        elif kind[0] & _ANCILLARY == 0 and kind not in (b"PLTE", b"IEND") and offset != len(_SIGNATURE):
            raise ValueError
        offset += _CHUNK.size + length + _CHECKSUM.size
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)


def _refuse_second_header(data: Encoded) -> None:
    """Refuses a file with two headers, of which Pillow believes the second: it may say colours, or other bits."""
    offset, kind = _AFTER_HEADER, b""
    while kind != b"IDAT" and offset + _CHUNK.size <= len(data):
        length, kind = _CHUNK.unpack_from(data, offset)
        if kind == b"IHDR":
            raise ValueError("it has two PNG headers")
        offset += _CHUNK.size + length + _CHECKSUM.size


def map_mask(mask: Mask, operations: Sequence[Operation], into: Mask | None = None) -> Mask:
    """Runs geometric operations on a label map, with the values that torchvision gives for a ``tv_tensors.Mask``.

    Args:
        mask: uint8 or int32 [height, width].
        operations: The operations. A `Scale` takes the nearest value, whatever its filter, and so does whatever else
            moves pixels. What only changes their values is left out.
        into: Where to put the result if it has the same shape and dtype: a contiguous array.

    Returns:
        The result, of the dtype of `mask`: `into`, or a new array.

    Raises:
        UsageError: A `Pad` fills with a value that the mask cannot hold, or with several.
    """
    operations = [each for each in operations if not isinstance(each, PixelOperation) or each.moves]
    for at, operation in enumerate(operations):
        if isinstance(operation, PixelOperation):
            return map_mask(operation.on_mask(map_mask(mask, operations[:at])), operations[at + 1 :], into)
    rows, columns = (np.arange(size) for size in mask.shape)
    for step, operation in enumerate(operations):
        # A place outside the source holds -1 minus the number of the operation that made it.
        outside = -1 - step
        if isinstance(operation, Crop):
            left, top, width, height = operation.box
            rows, columns = _cropped(rows, top, height, outside), _cropped(columns, left, width, outside)
        elif isinstance(operation, Scale):
            rows = rows[_nearest(len(rows), operation.height)]
            columns = columns[_nearest(len(columns), operation.width)]
        elif isinstance(operation, Flip):
            rows, columns = (rows, columns[::-1]) if operation.horizontal else (rows[::-1], columns)
        elif isinstance(operation, Pad):
            rows = _padded(rows, operation.top, operation.bottom, outside, operation)
            columns = _padded(columns, operation.left, operation.right, outside, operation)
    if into is None or (into.shape, into.dtype) != ((len(rows), len(columns)), mask.dtype):
        into = np.empty((len(rows), len(columns)), mask.dtype)
    # Places outside are clipped to index 0, and filled below.
    mask.take(rows, axis=0, mode="clip").take(columns, axis=1, mode="clip", out=into)
    for step in sorted({*rows[rows < 0].tolist(), *columns[columns < 0].tolist()}, reverse=True):
        value = _fill(operations[-1 - step], mask.dtype)
        # What a later operation filled lies over what earlier ones did, along both axes.
        into[rows == step] = value
        into[:, columns == step] = value
    return into


def _cropped(indices: npt.NDArray[np.int64], start: int, size: int, outside: int) -> npt.NDArray[np.int64]:
    end = start + size
    if start >= 0 and end <= len(indices):
        return indices[start:end]
    inside = indices[max(start, 0) : max(end, 0)]
    before = min(max(-start, 0), size)
    return np.pad(inside, (before, size - before - len(inside)), constant_values=outside)


def _padded(indices: npt.NDArray[np.int64], before: int, after: int, outside: int, pad: Pad) -> npt.NDArray[np.int64]:
    if pad.mode == "constant":
        return np.pad(indices, (before, after), constant_values=outside)
    return np.pad(indices, (before, after), pad.mode)


def _nearest(source: int, target: int) -> npt.NDArray[np.int64]:
    """The index in the source for each place of the target, in torch's arithmetic."""
    scale = np.float32(source) / np.float32(target)
    indices: npt.NDArray[np.int64] = np.minimum(np.arange(target, dtype=np.float32) * scale, source - 1).astype(
        np.int64
    )
    return indices


def _fill(operation: Operation, dtype: np.dtype[Any]) -> int:
    """Return the value that an operation puts outside the source."""
    fill = operation.fill if isinstance(operation, Pad) else 0
    if isinstance(fill, tuple) and len(fill) == 1:
        (fill,) = fill
    if isinstance(fill, tuple):
        raise UsageError(f"fill={fill} for a mask, which has one channel: give one value")
    if not np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max:
        raise UsageError(f"fill={fill} for a mask of {dtype}, which cannot hold it")
    return fill
