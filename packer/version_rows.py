"""The rows of segments that follow each other, to be packed once more: of a whole version, or of those to be joined."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import UsageError
from packtrain._core.options import StoreOptions
from packtrain._core.schema import LABEL, Field, Schema
from packtrain._core.version_schema import MergedSchema, part_schema
from packtrain._core.versions import Segment, load_version, segment_manifest
from packtrain._readers.dataset.kept import KeptRows
from packtrain._readers.dataset.stored_rows import StoredRows
from packtrain._readers.dataset.versioned import SegmentStore, VersionLease

from .dataset_rows import StoredRecords, require_outside, require_own_columns, stored_by
from .listing import EncodedSample, ListedSample, Reject, dataset_name
from .lists.labels import stored_labels
from .options import Columns, PackOptions


class _Part(NamedTuple):
    """A segment: its records, and which rows of it there are; None: all."""

    store: SegmentStore
    kept: KeptRows | None


@contextmanager
def version_rows(source: Path, out: Path, options: PackOptions) -> Iterator[tuple[JoinedRows, PackOptions]]:
    """Gives the rows of the newest version of a dataset to be packed once more in `out`; see `dataset_rows`.

    Raises:
        UsageError: `out` lies in the dataset, the options do not fit it, or no row is as they say.
        DatasetError: The dataset is damaged.
    """
    require_outside(source, out)
    require_own_columns(source, options)
    version = load_version(source)
    chosen = None if options.where is None else StoredRows(source).where(options.where)
    if chosen is not None and not len(chosen):
        raise UsageError(f"where={options.where!r}: no row of {source} is like this, and a dataset needs one")
    lease = VersionLease(source, version.number)
    try:
        rows = JoinedRows(source, version.segments, lease, options.store, chosen)
        usual = segment_manifest(source, version.segments[0]).format
        yield rows, replace(options, format=options.format or usual)
    finally:
        lease.close()


class JoinedRows:
    """The rows of segments that follow each other, as a `Listing`. Lines of a single one stay; others are counted.

    Args:
        folder: The dataset.
        run: The segments.
        lease: A lease on a version that names them; None in a dry run.
        store: How images are to be stored; None: as they are.
        chosen: Which of the rows there are, ascending, int64 [rows]; None: all.

    Raises:
        UsageError: The images are pixels, and are to be stored as files.
        DatasetError: A segment is damaged.
    """

    def __init__(
        self,
        folder: Path,
        run: Sequence[Segment],
        lease: VersionLease | None,
        store: StoreOptions | None = None,
        chosen: npt.NDArray[np.int64] | None = None,
    ) -> None:
        merged = MergedSchema.of([part_schema(folder, segment) for segment in run])
        names = Field.__dataclass_fields__
        fields = tuple(Field(**{name: getattr(field, name) for name in names}) for field in merged.fields)
        schema = Schema(fields, merged.labels, merged.classes)
        parts = [
            _Part(
                SegmentStore(folder, schema, segment, lease, "pread", True),
                None if segment.dropped is None else KeptRows(folder, segment),
            )
            for segment in run
        ]
        self.labels, self.classes = merged.labels, merged.classes
        self.columns: Columns | None = None
        self.fields: tuple[Field, ...] | None = tuple(stored_by(field, store) for field in fields)
        self.name = dataset_name(parts[0].store.manifest.name)
        self.rejects: list[Reject] = []
        self._chosen = chosen
        self.lines, self.duplicates = sum(segment.rows for segment in run) if chosen is None else len(chosen), 0
        self.advice = "Choose another store mode or another size"
        digest = repr(run) if chosen is None else f"{run!r} {hashlib.sha256(chosen.tobytes()).hexdigest()}"
        self.sha256 = hashlib.sha256(digest.encode()).hexdigest()
        self.source = JoinedRecords(parts, [segment.rows for segment in run])
        for part in parts:
            part.store.index.check_all()

    def __len__(self) -> int:
        """Number of rows."""
        return self.source.starts[-1] if self._chosen is None else len(self._chosen)

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedSample, ...]:
        """Returns the rows with these numbers."""
        ordinals = self._of_all(ordinals)
        numbers = np.searchsorted(self.source.starts, ordinals, side="right") - 1
        samples = dict[int, ListedSample]()
        for number in np.unique(numbers).tolist():
            chosen = ordinals[numbers == number]
            store, rows = self.source.located(number, chosen)
            values = np.empty(0) if self.labels.kind == "none" else store.column(LABEL, rows)
            labels = stored_labels(self.labels, values, np.arange(len(rows)))
            lines = self.source.line_numbers(chosen).tolist()
            found = map(ListedSample, lines, store.filenames(rows), labels)
            samples |= dict(zip(chosen.tolist(), found, strict=True))
        return tuple(samples[ordinal] for ordinal in ordinals.tolist())

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the lines, int64 [n], of these rows [n]."""
        return self.source.line_numbers(self._of_all(ordinals))

    def _of_all(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return ordinals if self._chosen is None else self._chosen[ordinals]


class JoinedRecords:
    """The records of segments that follow each other, as a `Source`; see `StoredRecords`.

    Args:
        parts: The segments.
        lengths: How many rows there are of each.

    Attributes:
        starts: Number of the first row of each segment, and behind them the number of all rows.
    """

    def __init__(self, parts: Sequence[_Part], lengths: Sequence[int]) -> None:
        self._parts: Final = parts
        self._records: Final = [StoredRecords(part.store) for part in parts]
        self.starts: Final = [0, *accumulate(lengths)]

    def located(self, number: int, ordinals: npt.NDArray[np.int64]) -> tuple[SegmentStore, npt.NDArray[np.int64]]:
        """The records of segment `number`, and which of its rows these are."""
        store, kept = self._parts[number]
        inner = ordinals - self.starts[number]
        return store, inner if kept is None else kept[inner]

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the lines, int64 [n], of these rows [n]."""
        if len(self._parts) > 1:
            return ordinals
        store, rows = self.located(0, ordinals)
        return store.lines(rows)

    def _place(self, sample: ListedSample) -> tuple[int, int]:
        """The segment of a sample, and its row there."""
        if len(self._parts) == 1:
            return 0, int(np.searchsorted(self._parts[0].store.index["line"], sample.line))
        number = int(np.searchsorted(self.starts, sample.line, side="right")) - 1
        return number, int(self.located(number, np.array([sample.line]))[1][0])

    def encoder(self, schema: Schema) -> str | None:
        """See `Source`."""
        return next(filter(None, (records.encoder(schema) for records in self._records)), None)

    def reading(
        self, samples: Sequence[ListedSample], *, content: bool = True
    ) -> AbstractContextManager[JoinedRecords]:
        """See `Source`."""
        return nullcontext(self)

    def keeps_sizes(self, schema: Schema) -> bool:
        """See `Source`."""
        return all(records.keeps_sizes(schema) for records in self._records)

    def size(self, schema: Schema, sample: ListedSample) -> int:
        """See `Source`."""
        number, row = self._place(sample)
        store = self._parts[number].store
        return sum(max(0, store.field(name).length(row)) for name in schema.names)

    def where(self, sample: ListedSample) -> str:
        """See `Source`."""
        number, row = self._place(sample)
        store = self._parts[number].store
        return f"{store.path}: {store.describe(row)}"

    def resolve(self, path: str) -> str:
        """Returns the path as it is: the file is not needed."""
        return path

    def encode(self, schema: Schema, sample: ListedSample) -> EncodedSample:
        """See `Source`."""
        number, row = self._place(sample)
        return EncodedSample(sample.label, self._records[number].row(schema, row))
