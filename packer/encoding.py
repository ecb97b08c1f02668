"""Turns what a list says about a sample into the records that are stored, or says why the sample is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from packtrain._codec.values import require_shallow
from packtrain._core.npy import npy_header
from packtrain._core.options import StoreOptions
from packtrain._core.schema import Field, Schema

from .arrays import store_array
from .images import StoredImage, encoder, store_image
from .listing import ListedSample
from .masks import Frame, png_writer, rewrites_masks, store_mask
from .sources import Refused, read_source

_MAY_BE_EMPTY: Final = ("text", "bytes")


class Encoded(NamedTuple):
    """A record that has no place in a shard yet.

    Attributes:
        payload: Bytes of the record; of arrays, raw masks and raw images the values alone.
        extension: File extension that names the encoding, without the dot.
        shape: Shape of the values, or height, width and channels of the image; () where it means nothing.
        dtype: numpy type string of values, which most containers hold as `.npy` files; None for all else.
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
        """The bytes in a container that holds `bare` values, or `.npy` files."""
        if bare or self.dtype is None:
            return self.payload
        return npy_header(self.dtype, self.shape) + self.payload


def record_encoder(schema: Schema) -> str | None:
    """Names the libraries that, apart from the source files, decide the stored bytes; None if there are none.

    Raises:
        MissingDependency: A package that is needed is not installed, or does not work.
    """
    store = next((field.store for field in schema.fields if field.store is not None), None)
    if store is None:
        return None
    names = [encoder(store)]
    if rewrites_masks(store) and any(field.encoding == "png" for field in schema.fields):
        names.append(png_writer())
    return ", ".join(name for name in names if name is not None) or None


def encode_sample(schema: Schema, sample: ListedSample, resolve: Callable[[str], str]) -> tuple[Encoded | None, ...]:
    """Reads and converts all that belongs to a sample.

    Args:
        schema: What samples consist of.
        sample: What the list says about this one.
        resolve: Returns the path under which the file that the list calls so is found.

    Returns:
        The records in the order of the schema; None for a field that the sample is without.

    Raises:
        Refused: One of the fields cannot become a record; the message names it.
        OSError: A file cannot be read, for a reason other than its content; the error names the file.
        MemoryError: There is not enough memory for this sample.
        MissingDependency: A package that a store mode needs is not installed.
    """
    records: list[Encoded | None] = []
    frame = None
    image, others = schema.image, schema.others
    if image is not None:
        store = _store(image)
        stored = store_image(read_source(resolve(sample.path)), store)
        records.append(_image(stored, store))
        frame = Frame.of(stored, store) if others else None
    for field, cell in zip(others, sample.cells, strict=True):
        if cell is None:
            if not field.optional:
                raise Refused(f"{field.kind} {field.name}: the sample is without it, and it is not optional")
            records.append(None)
            continue
        try:
            data = cell.content
            if cell.by_path:
                data = read_source(resolve(os.fsdecode(data)), may_be_empty=field.kind in _MAY_BE_EMPTY)
            records.append(encode(field, data, by_path=cell.by_path, frame=frame))
        except Refused as refusal:
            raise Refused(f"{field.kind} {field.name}: {refusal}") from refusal
    return tuple(records)


def encode(field: Field, data: bytes, *, by_path: bool = True, frame: Frame | None = None) -> Encoded:
    """Converts one value of a sample to its record.

    Args:
        field: The field it belongs to.
        data: The value: content of a file, or of the list.
        by_path: True if it comes from a file of its own.
        frame: What became of the image of the same sample; None if it has none.

    Raises:
        Refused: It cannot become a record of this field.
        MemoryError: There is not enough memory.
    """
    match field.kind:
        case "image":
            return _image(store_image(data, _store(field)), _store(field))
        case "mask":
            payload, width, height = store_mask(data, field, frame or Frame())
            if field.encoding == "png":
                return Encoded(payload, "png", (height, width), frame=(width, height))
            return Encoded(payload, "npy", (height, width), field.dtype, (width, height))
        case "array":
            payload, shape = store_array(data, field, by_path=by_path)
            return Encoded(payload, "npy", shape, field.dtype)
        case "text":
            _require_text(data)
            return Encoded(data, "txt")
        case "json":
            _require_json(data)
            return Encoded(data, "json")
        case _:
            return Encoded(data, "bin")


def _image(stored: StoredImage, store: StoreOptions) -> Encoded:
    header = stored.header
    return Encoded(
        stored.payload,
        header.extension,
        (header.height, header.width, store.channels),
        "|u1" if store.store == "raw" else None,
        (header.width, header.height, header.orientation),
        stored.remarks,
    )


def _store(field: Field) -> StoreOptions:
    assert field.store is not None, "an image has store options"
    return field.store


def _require_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Refused(f"not UTF-8 ({error.reason} at byte {error.start}): convert it with iconv") from error


def _require_json(data: bytes) -> None:
    try:
        require_shallow(text := _require_text(data))
    except ValueError as error:
        raise Refused(f"JSON that cannot be read: {error}") from error
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise Refused(f"not JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise Refused(f"not JSON: {name} is not a value of JSON. Write null, or store the numbers as an array")
