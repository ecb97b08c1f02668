"""Samples that a program gives become records, or are refused with a reason."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.pillow import is_picture
from packtrain._core.kinds import KINDS
from packtrain._core.schema import IMAGE, LABEL, Field, Schema
from packtrain._formats.writing import NewSample

from .arrays import fits
from .encoding import Files, as_it_is, encode, encoded_image, naming, store_of
from .facts import fits_shape, in_words
from .images import StoredImage, store_image, store_picture, store_pixels
from .index_values import encoded_value, number_of
from .listing import Encoded, EncodedSample
from .masks import Frame, store_indices
from .options import Columns
from .sample_values import (
    PIXEL_MODES,
    Sample,
    array_of,
    class_of,
    json_of,
    numbered,
    pixels_of,
    require_image,
    stored_label,
    values_of,
)
from .sources import LARGEST_FILE, Refused


class SampleEncoder:
    """Encodes samples of one schema.

    Args:
        schema: The schema.
        bare: True if values of arrays are stored alone.
        most: The most bytes of a sample; larger samples are refused.
        columns: Which keys of a sample hold what; None if each has the name of its field.
        root: Folder that relative paths start from.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        bare: bool = False,
        most: int = LARGEST_FILE,
        columns: Columns | None = None,
        root: str = "",
    ) -> None:
        self.schema: Final = schema
        self._bare: Final = bare
        self._most: Final = min(most, LARGEST_FILE)
        self._known: Final = frozenset((*schema.names, LABEL))
        self._numbers: Final = None if schema.classes is None else numbered(schema.classes)
        self._columns: Final = columns
        self._by_path: Final = {column.name for column in columns.fields if column.by_path} if columns else set()
        self._files: Final = Files(root)

    def encode(self, sample: Sample) -> NewSample:
        """Return a sample as a writer takes it, with the number 0.

        Records may be views of what the source has yielded, so write them at once.

        Raises:
            Refused: The sample is not a mapping, or does not fit the schema; the message names the field.
            MissingDependency: A package that an image needs is not installed.
        """
        try:
            label, found = self.records(sample)
        except MemoryError as error:
            raise Refused("there is not enough memory to encode it") from error
        encoded = NewSample(0, label, tuple(None if each is None else each.record(bare=self._bare) for each in found))
        if encoded.size > self._most:
            raise self._too_large(encoded.size)
        return encoded

    def records(self, sample: Sample) -> EncodedSample:
        """Return the label and the records of a sample, which have no place in a shard yet.

        Raises:
            Refused: As `encode`.
            MissingDependency: As `encode`.
            MemoryError: There is not enough memory for this sample.
            OSError: A file that it names cannot be read, for a reason other than its content.
        """
        values = values_of(sample, self._columns)
        for name in values:
            if name not in self._known:
                raise Refused(f"it has a field {name}, and samples here have {self._held()}")
        label = values.get(LABEL)
        label = stored_label(label, self.schema.labels) if self._numbers is None else class_of(label, self._numbers)
        records: list[Encoded | None] = []
        frame = Frame()
        for field in self.schema.fields:
            value = values.get(field.name)
            if value is None:
                if not field.optional:
                    raise Refused(f"it has no {field.name}, and samples here have {self._held()}")
                records.append(None)
            elif isinstance(value, Encoded):
                records.append(value)
            elif field.kind == "image":
                with naming(field, os.fspath(value) if isinstance(value, str | os.PathLike) else None):
                    stored = self._image(field, value)
                records.append(encoded_image(stored, store_of(field)))
                if field.name == IMAGE:
                    frame = Frame.of(stored, store_of(field))
            else:
                records.append(self._encoded(field, value, frame))
        if (size := sum(len(record.payload) for record in records if record is not None)) > self._most:
            raise self._too_large(size)
        return EncodedSample(label, tuple(records))

    def _image(self, field: Field, value: Any) -> StoredImage:
        store = store_of(field)
        require_image(field.name, value, store)
        if isinstance(value, str | os.PathLike):
            value = self._read(field, value)
        if isinstance(value, bytes | bytearray | memoryview):
            return store_image(bytes(value), store)
        if is_picture(value):
            return store_picture(value, store)
        pixels = pixels_of(field.name, value)
        height, width = pixels.shape[:2]
        return store_pixels(pixels.tobytes(), (width, height), 1, PIXEL_MODES[pixels.ndim], store)

    def _encoded(self, field: Field, value: Any, frame: Frame) -> Encoded:
        """Encode a value of any kind but an image."""
        is_path = isinstance(value, str | os.PathLike) and (field.name in self._by_path or KINDS[field.kind].by_path)
        if field.kind == "array" and not is_path:
            return self._array(field, value)
        if field.kind == "number":
            with naming(field):
                return encoded_value(field, number_of(value))
        with naming(field, os.fspath(value) if is_path else None):
            if is_path:
                return encode(field, self._read(field, value), frame=frame)
            if field.kind == "mask" and not isinstance(value, bytes | bytearray | memoryview):
                return store_indices(_indices(field, value), field, frame)
            return _of_kind(field, value, frame)

    def _read(self, field: Field, path: str | os.PathLike[str]) -> bytes:
        return self._files.read(os.fspath(path), may_be_empty=KINDS[field.kind].may_be_empty)

    def _array(self, field: Field, value: Any) -> Encoded:
        if self._columns is not None and isinstance(value, list | tuple):
            with naming(field):
                return encode(field, json_of(value), by_path=False)
        array, wanted = array_of(field.name, value), np.dtype(field.dtype)
        assert field.shape is not None
        sound = array.dtype.newbyteorder("<") == wanted or (self._columns is not None and fits(array.dtype, wanted))
        if not (sound and fits_shape(array.shape, field.shape)):
            found = in_words(array.dtype.newbyteorder("="), array.shape)
            raise Refused(f"{field.name} is {found}, and samples here have {in_words(wanted, field.shape)}")
        if array.nbytes > self._most:
            raise self._too_large(array.nbytes)
        flat = np.ascontiguousarray(array, wanted).reshape(-1)
        return Encoded(flat.view(np.uint8).data, "npy", array.shape, field.dtype)

    def _held(self) -> str:
        labels = () if self.schema.labels.kind == "none" else (LABEL,)
        return f"{', '.join((*self.schema.names, *labels))}. Other fields need a folder of their own"

    def _too_large(self, size: int) -> Refused:
        return Refused(f"it has {size:,} bytes, and a shard {self._most:,}: give a larger shard_size, or smaller parts")


def _of_kind(field: Field, value: Any, frame: Frame) -> Encoded:
    """Encode a text, a string, JSON, bytes, or the file of a mask."""
    if field.kind in ("text", "string"):
        if not isinstance(value, str):
            raise Refused(f"it is an object of type {type(value).__name__}, not a str")
        if field.kind == "string":
            return encoded_value(field, value)
        try:
            return as_it_is(field, value.encode())
        except UnicodeEncodeError as error:
            raise Refused(f"it cannot be written in UTF-8 ({error.reason} at character {error.start})") from error
    if field.kind == "json":
        return encode(field, json_of(value))
    if not isinstance(value, bytes | bytearray | memoryview):
        raise Refused(f"it is an object of type {type(value).__name__}, not bytes: arrays need a folder of their own")
    return encode(field, bytes(value), frame=frame)


def _indices(field: Field, value: Any) -> npt.NDArray[Any]:
    """Return the class indices of a mask that is no file, [height, width], in the type of the field."""
    if is_picture(value):
        if value.mode not in ("1", "L", "P", "I", "I;16"):
            raise Refused(f"a PIL image of mode {value.mode} has colours, not the index of each pixel's class")
        array = np.asarray(value)
    else:
        array = array_of(field.name, value)
    if array.dtype.kind not in "bui" or array.ndim != 2 or not array.size:
        raise Refused(f"it is {in_words(array.dtype, array.shape)}, not class indices of whole numbers [height, width]")
    low, high, most = int(array.min()), int(array.max()), np.iinfo(np.dtype(field.dtype)).max
    if low < 0 or high > most:
        advice = f'. If all are to have 16 bits, give dtype="uint16" for {field.name}' if low >= 0 else ""
        raise Refused(f"it holds the class index {low if low < 0 else high}, and the field 0 to {most}{advice}")
    return array.astype(field.dtype, copy=False)
