"""Turns what a list says about a sample into the records that are stored, or says why the sample is refused.

Workers import this, so what masks, arrays and JSON need is only imported where there are some.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packtrain._codec.pillow import pillow_version
from packtrain._core.kinds import KINDS
from packtrain._core.options import StoreOptions
from packtrain._core.paths import is_address
from packtrain._core.schema import Field, Schema

from .images import StoredImage, encoder, store_image
from .index_values import encoded_value, number_in
from .listing import Encoded, EncodedSample, ListedSample
from .options import FieldColumn
from .sources import Refused, read_source

if TYPE_CHECKING:
    from .fetching import ObjectsAhead
    from .masks import Frame


@dataclass(frozen=True)
class Files:
    """The files and values that a list names, as a `Source`.

    Attributes:
        root: Folder that relative paths start from, or the address of one in an object store.
        objects: Reads those that are in an object store; None as long as nothing is read.
    """

    root: str
    objects: ObjectsAhead | None = None

    def resolve(self, path: str) -> str:
        """Returns the path or the address under which the file that the list calls `path` is found."""
        return path if is_address(path) else os.path.join(self.root, path)

    @contextmanager
    def reading(self, samples: Sequence[ListedSample], *, content: bool = True) -> Iterator[Files]:
        """See `Source`."""
        paths = [self.resolve(path) for sample in samples for path in _paths(sample)]
        addresses = [path for path in paths if is_address(path)]
        if not addresses:
            yield self
            return
        # Only now, because of what it imports.
        from .fetching import ObjectsAhead

        with ObjectsAhead(addresses if content else ()) as objects:
            yield replace(self, objects=objects)

    def encoder(self, schema: Schema) -> str | None:
        """See `Source`."""
        return record_encoder(schema)

    def encode(self, schema: Schema, sample: ListedSample) -> EncodedSample:
        """See `Source`."""
        records: list[Encoded | None] = []
        frame = None
        image, others = schema.image, schema.others
        if image is not None:
            store = store_of(image)
            stored = store_image(self.read(sample.path), store)
            records.append(encoded_image(stored, store))
            if others:
                from .masks import Frame

                frame = Frame.of(stored, store)
        for field, cell in zip(others, sample.cells, strict=True):
            if cell is None:
                if not field.optional:
                    raise Refused(f"{field.kind} {field.name}: the sample is without it, and it is not optional")
                records.append(None)
                continue
            with naming(field, os.fsdecode(cell.content) if cell.by_path else None):
                data = cell.content
                if cell.by_path:
                    data = self.read(os.fsdecode(data), may_be_empty=KINDS[field.kind].may_be_empty)
                records.append(encode(field, data, by_path=cell.by_path, frame=frame))
        return EncodedSample(sample.label, tuple(records))

    def keeps_sizes(self, schema: Schema) -> bool:
        """See `Source`."""
        return all_kept(schema)

    def size(self, schema: Schema, sample: ListedSample) -> int:
        """See `Source`."""
        size = self._size(sample.path) if schema.image is not None else 0
        for cell in sample.cells:
            if cell is not None:
                content = cell.content
                size += self._size(os.fsdecode(content)) if cell.by_path else len(content)
        return size

    def where(self, sample: ListedSample) -> str:
        """See `Source`."""
        return f"{self.resolve(sample.path)} (line {sample.line})"

    def read(self, path: str, *, may_be_empty: bool = False) -> bytes:
        """Reads the file that the list calls `path`; raises as `encode`."""
        path = self.resolve(path)
        read = read_source if self.objects is None or not is_address(path) else self.objects.read
        return read(path, may_be_empty=may_be_empty)

    def _size(self, path: str) -> int:
        path = self.resolve(path)
        return os.stat(path).st_size if self.objects is None or not is_address(path) else self.objects.size(path)


def all_kept(schema: Schema) -> bool:
    """True if all records are about as large as the files or values that they are made of."""
    return all(field.encoding != "raw" and (field.store is None or field.store.keeps_pixels) for field in schema.fields)


def _paths(sample: ListedSample) -> Iterator[str]:
    """The paths of the files of a sample, in the order in which they are read."""
    by_path = [os.fsdecode(cell.content) for cell in sample.cells if cell is not None and cell.by_path]
    if sample.path and sample.path not in by_path:
        yield sample.path
    yield from by_path


def record_encoder(schema: Schema, *, of_arrays: bool = False) -> str | None:
    """Names the libraries that, apart from the source files, decide the stored bytes; None if there are none.

    Args:
        schema: What samples consist of.
        of_arrays: True if masks may be arrays, which become files.

    Raises:
        MissingDependency: A package that is needed is not installed, or does not work.
    """
    store = next((field.store for field in schema.fields if field.store is not None), None)
    names = (store and encoder(store)) or ""
    if any(field.encoding == "png" for field in schema.fields) and (of_arrays or store is not None):
        from .masks import png_writer, rewrites_masks

        if of_arrays and pillow_version() not in names:
            names = ", ".join(filter(None, (names, pillow_version())))
        if of_arrays or (store is not None and rewrites_masks(store)):
            names = f"{names}, {png_writer()}"
    return names or None


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
            return encoded_image(store_image(data, store_of(field)), store_of(field))
        case "mask":
            from .masks import Frame, store_mask

            return store_mask(data, field, frame or Frame())
        case "array":
            from .arrays import store_array

            payload, shape = store_array(data, field, by_path=by_path)
            return Encoded(payload, "npy", shape, field.dtype)
        case "text":
            _require_text(data)
        case "json":
            _require_json(data)
        case "number":
            return encoded_value(field, number_in(data))
        case "string":
            _require_text(data)
            return encoded_value(field, data.decode())
    return as_it_is(field, data)


def as_it_is(field: Field, data: bytes) -> Encoded:
    """The record of a value that is stored as it is."""
    extension = KINDS[field.kind].extension
    assert extension is not None, f"records of kind {field.kind} have an extension of their own"
    return Encoded(data, extension)


@contextmanager
def naming(field: Field | FieldColumn, path: str | None = None) -> Iterator[None]:
    """Puts the name of a field in front of the reason why it is refused, and the path of its file behind it."""
    try:
        yield
    except Refused as refusal:
        where = "" if path is None else f" ({path!r})"
        raise Refused(f"{field.kind} {field.name}: {refusal}{where}") from refusal


def encoded_image(stored: StoredImage, store: StoreOptions) -> Encoded:
    """The record of an image that was stored with these options."""
    header = stored.header
    return Encoded(
        stored.payload,
        header.extension,
        (header.height, header.width, store.channels),
        "|u1" if store.store_mode.is_raw else None,
        (header.width, header.height, header.orientation),
        stored.remarks,
    )


def store_of(field: Field) -> StoreOptions:
    """The options by which the images of a field are stored."""
    assert field.store is not None, "an image has store options"
    return field.store


def _require_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Refused(f"not UTF-8 ({error.reason} at byte {error.start}): convert it with iconv") from error


def _require_json(data: bytes) -> None:
    from packtrain._codec.values import decode_json

    _require_text(data)
    try:
        decode_json(data)
    except ValueError as error:
        raise Refused(f"not JSON that can be read: {error}") from error
