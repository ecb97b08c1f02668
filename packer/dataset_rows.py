"""The rows of a dataset, to be packed once more: what there is, and the records as they become in the new dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.record_forms import FORMS, as_image_file
from packtrain._codec.values import parse_npy
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, UsageError
from packtrain._core.manifest import INDEX, MANIFEST
from packtrain._core.opening import read_regular
from packtrain._core.options import StoreOptions
from packtrain._core.problems import reading
from packtrain._core.schema import IMAGE, LABEL, Field, Schema
from packtrain._core.version_files import has_versions
from packtrain._core.versions import Segment, load_version
from packtrain._readers.dataset.records import FieldRecords
from packtrain._readers.dataset.store import RecordStore
from packtrain._readers.dataset.stored_rows import StoredRows
from packtrain._storage.location import Location, real

from .encoding import encode, encoded_image, naming, record_encoder
from .images import StoredImage, extension_of, store_image, store_pixels
from .index_values import encoded_value
from .listing import Encoded, EncodedSample, ListedSample, Reject, Source, dataset_name
from .lists.labels import stored_labels
from .masks import Frame, encoded_mask, store_indices, store_mask
from .options import PackOptions
from .probe import ImageHeader
from .rejects import read_rejects

_OF_LISTS: Final = ("columns", "labels", "label_names", "classes", "root", "allow_empty")
"""Options that say what a dataset itself says."""


@contextmanager
def dataset_rows(source: Path, out: Path, options: PackOptions) -> Iterator[tuple[DatasetRows, PackOptions]]:
    """Gives the rows of a dataset to be packed once more in `out`, and the options with the container that it is for.

    Raises:
        UsageError: `out` lies in the dataset, or the options do not fit it.
        DatasetError: It is no sound dataset.
    """
    require_outside(source, out)
    require_own_columns(source, options)
    version = load_version(source) if has_versions(source) else None
    opened = StoredRows.open(source, "pread") if version is None else StoredRows.of_version(source, version, "pread")
    with opened as rows:
        manifest = rows.stores[0].manifest
        if version is not None:
            found = DatasetRows(rows, version.schema, digest_of(version.segments), options.store)
        else:
            with reading(source / MANIFEST):
                data = read_regular(source / MANIFEST, MOST_BYTES)
            found = DatasetRows(rows, manifest.schema, hashlib.sha256(data).hexdigest(), options.store)
            found.rejects = read_rejects(source, manifest)
            found.lines, found.duplicates = manifest.lines, manifest.duplicates
        if options.where is not None:
            found.choose(options.where)
        yield found, replace(options, format=options.format or manifest.format)


def digest_of(segments: Sequence[Segment]) -> str:
    """Names the rows that a version has of some segments, for a plan."""
    return hashlib.sha256(repr(tuple(segments)).encode()).hexdigest()


def require_outside(source: Location, out: Location) -> None:
    """Refuses to write into the dataset that is read.

    Raises:
        UsageError: `out` is the folder or the address of the dataset, or inside it.
    """
    if f"{real(out)}/".startswith(f"{real(source)}/"):
        raise UsageError(f"{out} is the dataset that is to be read, or inside it: choose another folder")


def require_own_columns(source: Path, options: PackOptions) -> None:
    """Refuses options that say what a dataset itself says.

    Raises:
        UsageError: There is one.
    """
    usual = PackOptions()
    for name in _OF_LISTS:
        if getattr(options, name) != getattr(usual, name):
            raise UsageError(f"{source} is a dataset, which says what its rows are: leave out `{name}`")


class DatasetRows:
    """The rows of a dataset, as a `Listing`. Lines, paths and labels stay what they are; of several parts, rows count.

    Args:
        rows: The rows.
        schema: What they hold.
        sha256: Names their content, for the plan.
        options: How images are to be stored; None: as they are.

    Attributes:
        source: Their records.

    Raises:
        UsageError: The images are pixels, and are to be stored as files.
        DatasetError: An index is damaged.
    """

    def __init__(self, rows: StoredRows, schema: Schema, sha256: str, options: StoreOptions | None = None) -> None:
        self.labels, self.classes = schema.labels, schema.classes
        self.fields: tuple[Field, ...] | None = tuple(stored_by(field, options) for field in schema.fields)
        self.name = dataset_name(rows.stores[0].manifest.name)
        self.rejects: list[Reject] = []
        self.lines, self.duplicates = len(rows), 0
        self.sha256 = sha256
        self.advice = "Choose another store mode or another size"
        self.source = StoredRecords(rows)
        self._rows = rows
        self._chosen = np.arange(len(rows))
        for store in rows.stores:
            store.index.check_all()
            if (np.diff(store.index["line"]) <= 0).any():
                raise CorruptFile(f"{store.path / INDEX / 'line.npy'} is damaged: its lines do not ascend", file=INDEX)

    def choose(self, where: str) -> None:
        """Leaves only the rows that a condition holds for.

        Raises:
            UsageError: It holds for none, or is no condition.
        """
        self._chosen = self._rows.where(where)
        if not len(self._chosen):
            raise UsageError(f"where={where!r}: no row of {self._rows.name} is like this, and a dataset needs one")
        self.lines, self.duplicates, self.rejects = len(self._chosen), 0, []
        self.sha256 = hashlib.sha256(f"{self.sha256} {where}".encode()).hexdigest()

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._chosen)

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedSample, ...]:
        """Returns the rows with these numbers."""
        wanted = self._chosen[ordinals]
        found: dict[int, ListedSample] = {}
        for store, rows, numbers in self._rows.located(np.sort(wanted)):
            values = np.empty(0) if self.labels.kind == "none" else store.column(LABEL, rows)
            labels = stored_labels(self.labels, values, np.arange(len(rows)))
            lines = self.source.lines(store, rows, numbers).tolist()
            # Not `filenames`: what is no text must stay as it is.
            paths = map(store.filename, rows.tolist())
            found |= dict(zip(numbers.tolist(), map(ListedSample, lines, paths, labels), strict=True))
        return tuple(found[number] for number in wanted.tolist())

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the lines, int64 [n], of these rows [n]."""
        wanted = self._chosen[ordinals]
        order = np.argsort(wanted, kind="stable")
        lines = np.empty_like(wanted)
        start = 0
        for store, rows, numbers in self._rows.located(wanted[order]):
            lines[order[start : start + len(rows)]] = self.source.lines(store, rows, numbers)
            start += len(rows)
        return lines


def stored_by(field: Field, options: StoreOptions | None) -> Field:
    """The field as it becomes."""
    if options is None or field.store is None:
        return field
    if field.store.store_mode.is_raw and options.keeps_pixels:
        raise UsageError(
            f"{field.name} is stored as pixels, and store mode {options.store} keeps files: there are none any more. "
            "Take --store jpeg, which encodes pixels, or --store raw"
        )
    return replace(field, store=options)


class StoredRecords(Source):
    """The records of a dataset, as a `Source`. What is to be stored as it is, is copied; all else is decoded.

    Each record is compared with its checksum.

    Args:
        rows: The dataset. It is to read with system calls, so that a failing disk is an error and not a SIGBUS.
    """

    def __init__(self, rows: StoredRows) -> None:
        self._rows = rows

    def lines(
        self, store: RecordStore, rows: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The lines of some rows of a part, int64 [n]: those of a single part, or else their numbers in all parts."""
        return store.column("line", rows) if len(self._rows.stores) == 1 else numbers

    def _place(self, sample: ListedSample) -> tuple[RecordStore, int]:
        """The part of a sample, and its row there."""
        if len(self._rows.stores) > 1:
            return self._rows.locate(sample.line)
        (store,) = self._rows.stores
        return store, int(np.searchsorted(store.index["line"], sample.line))

    def _copies(self, field: Field) -> bool:
        """True if images of this field are stored as the records that they are."""
        return all(RecordCopier(store).copies(field) for store in self._rows.stores)

    def encoder(self, schema: Schema) -> str | None:
        """See `Source`. Nothing decides the bytes of what is copied."""
        changed = tuple(field for field in schema.fields if field.store is not None and not self._copies(field))
        masks = tuple(field for field in schema.fields if field.kind == "mask") if changed else ()
        return record_encoder(replace(schema, fields=(*changed, *masks))) if changed else None

    def keeps_sizes(self, schema: Schema) -> bool:
        """See `Source`."""
        return all(field.store is None or field.store.keeps_pixels or self._copies(field) for field in schema.fields)

    def size(self, schema: Schema, sample: ListedSample) -> int:
        """See `Source`."""
        store, row = self._place(sample)
        return sum(max(0, store.field(name).length(row)) for name in schema.names)

    def where(self, sample: ListedSample) -> str:
        """See `Source`."""
        store, row = self._place(sample)
        return f"{store.path}: {store.describe(row)}"

    def encode(self, schema: Schema, sample: ListedSample) -> EncodedSample:
        """See `Source`."""
        store, row = self._place(sample)
        return EncodedSample(sample.label, RecordCopier(store).row(schema, row))


class RecordCopier:
    """Makes the records of a row anew, of those that a dataset or a segment has; copies those that stay as they are.

    Args:
        store: What has them.
    """

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._bare = store.manifest.bare

    def copies(self, field: Field) -> bool:
        """True if images of this field are stored as the records that they are."""
        before = self._store.schema[field.name].store
        assert before is not None and field.store is not None, "both are images"
        return _keeps(before, field.store)

    def row(self, schema: Schema, row: int) -> tuple[Encoded | None, ...]:
        """The records of a row, in the order of the schema; raises what `StoredRecords.encode` raises."""
        frame = Frame()
        records: list[Encoded | None] = []
        for field in schema.fields:
            if field.name == IMAGE:
                record, frame = self._image(field, row)
                records.append(record)
                continue
            with naming(field):
                records.append(self._encode(field, row, frame))
        return tuple(records)

    def _encode(self, field: Field, row: int, frame: Frame) -> Encoded | None:
        if field.kind == "image":
            return self._image(field, row)[0]
        if field.indexed:
            found = self._store.field(field.name).value(row)
            return None if found is None else encoded_value(field, found)
        records = self._store.records(field.name)
        if field.kind == "mask":
            return self._mask(field, records, row, frame)
        if field.kind == "array":
            values = records.value(row)
            return None if values is None else Encoded(values.tobytes(), "npy", values.shape, field.dtype)
        record = records.read(row)
        return None if record is None else encode(field, bytes(record))

    def _image(self, field: Field, row: int) -> tuple[Encoded | None, Frame]:
        """The record of an image, and what became of its frame."""
        store, records = field.store, self._store.records(field.name)
        assert store is not None, "an image has store options"
        record = records.read(row)
        if record is None:
            return None, Frame()
        before = self._store.schema[field.name].store
        assert before is not None, "both are images"
        size, orientation = records.size(row), int(records.columns["orientation"][row])
        # The orientation that its pixels have now, and the one that the index is to name.
        turned_by = 1 if before.orientation == "apply" else orientation
        named = orientation if store.orientation == "apply" else turned_by
        raw = before.store_mode.is_raw
        data = self._pixels(records, row, record, before.channels) if raw else bytes(record)
        if _keeps(before, store):
            kept = StoredImage(data, ImageHeader("npy" if raw else extension_of(data), *size, named), size)
            return encoded_image(kept, store), Frame()
        if raw:
            stored = store_pixels(data, size, turned_by, before.mode, store)
        else:
            stored = store_image(bytes(as_image_file(data)), store, orientation=turned_by)
        header = stored.header._replace(orientation=named)
        return encoded_image(stored._replace(header=header), store), Frame.of(stored, store)

    def _pixels(self, records: FieldRecords, row: int, record: memoryview, channels: int) -> bytes:
        """The pixels of a raw record, without the header that most containers have there."""
        width, height = records.size(row)
        try:
            start = 0 if self._bare else parse_npy(record, len(record))[2]
            if len(record) - start != width * height * channels:
                raise ValueError(f"{len(record) - start} bytes are not {width} x {height} pixels")
        except ValueError as error:
            raise records.undecodable(row, error) from error
        return bytes(record[start:])

    def _mask(self, field: Field, records: FieldRecords, row: int, frame: Frame) -> Encoded | None:
        if field.encoding == "raw":
            values = records.value(row)
            if values is None:
                return None
            return store_indices(values, field, Frame() if frame.is_kept else frame)
        record = records.read(row)
        if record is None:
            return None
        if frame.is_kept:
            return encoded_mask(bytes(record), *records.size(row), field)
        return store_mask(bytes(record), field, frame)


def _keeps(before: StoreOptions, after: StoreOptions) -> bool:
    """True if a record that was stored by one set of options need not change for the other."""
    if after.check and not before.check:
        return False
    if after.keeps_pixels and before.store == after.store:
        return True
    # Records of a form of their own are no files that another mode could keep.
    if after.keeps_pixels and not after.store_mode.transcodes and before.store not in FORMS:
        return True
    return replace(before, check=after.check) == after
