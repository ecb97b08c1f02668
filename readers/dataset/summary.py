"""Summary of a dataset, from its manifest and index only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import DatasetError
from packtrain._core.index import Columns
from packtrain._core.manifest import Manifest
from packtrain._core.schema import Field
from packtrain._core.versions import SPLIT
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.urls import Url, place_of
from packtrain._storage.staging.without_shards import fetch_without_shards

from .query import Rows
from .records import FieldColumns
from .store import RecordStore
from .stored_rows import StoredRows


@dataclass(frozen=True)
class Spread:
    """Smallest, median and largest value of a quantity."""

    min: int
    median: int
    max: int


@dataclass(frozen=True)
class FieldSummary:
    """Summary of one field.

    Attributes:
        kind: Kind of the field.
        record_bytes: Sizes of the records in bytes; None if all are missing.
        missing: Number of rows without it.
        width: Widths of images or masks in pixels, as stored; None for other kinds, or if all are missing.
        height: Heights of images or masks in pixels, as stored; None as for `width`.
        commonest_sizes: The five most common sizes, each as (width, height, number of rows).
        orientations: Number of rows by EXIF orientation of the source, without 1 (upright or unknown).
        smallest: The smallest number, of a field of these, NaN aside; None if there is none.
        largest: The largest, as `smallest`.
    """

    kind: str
    record_bytes: Spread | None
    missing: int
    width: Spread | None = None
    height: Spread | None = None
    commonest_sizes: tuple[tuple[int, int, int], ...] = ()
    orientations: dict[int, int] = dataclass_field(default_factory=dict)
    smallest: int | float | None = None
    largest: int | float | None = None


@dataclass(frozen=True)
class SideSummary:
    """Summary of a side of a dataset that was split.

    Attributes:
        rows: Number of rows on it.
        label_counts: Number of these rows by label, as in `Summary`.
    """

    rows: int
    label_counts: dict[int, int] | None


@dataclass(frozen=True)
class Summary:
    """Summary of a dataset.

    Attributes:
        dataset: Where it lies.
        manifest: Manifest of the dataset: format, fields, counts, shards, what wrote it.
        index_bytes: Size of the index in bytes.
        label_counts: Number of rows by label for scalar integer labels; None for other labels.
        fields: The fields by name, the image first.
        rows: Number of rows that labels and fields are of: all, or those that were chosen.
        version: Number of the newest version of a dataset that was changed; None if it never was.
        segments: Number of its segments.
        sides: What is on each side that has rows, by its name, if the dataset was split. Rows that were appended since
            are on none.
    """

    dataset: Path | Url
    manifest: Manifest
    index_bytes: int
    label_counts: dict[int, int] | None
    fields: dict[str, FieldSummary]
    rows: int
    version: int | None = None
    segments: int = 1
    sides: dict[str, SideSummary] = dataclass_field(default_factory=dict)

    @property
    def on_no_side(self) -> int:
        """Number of rows that are on no side, of a dataset that was split; else 0."""
        return self.rows - sum(side.rows for side in self.sides.values()) if self.sides else 0


def summarise(path: str | os.PathLike[str], where: str | None = None) -> Summary:
    """Summarises the dataset in `path`, a folder or an address in an object store, of which it reads no shard.

    Args:
        path: The dataset.
        where: Which rows to summarise, as `ImageDataset.where` takes it; None for all.

    Raises:
        UsageError: `where` cannot be read.
        DatasetError: It is not a sound dataset.
        RemoteError: The object store does not answer as it should.
    """
    place = place_of("path", path)
    if not isinstance(place, Url):
        return _summarise(place, where)
    with tempfile.TemporaryDirectory(prefix="packtrain-info-") as folder, closing(ObjectStore()) as objects:
        fetch_without_shards(place, objects, Path(folder))
        try:
            return replace(_summarise(Path(folder), where), dataset=place)
        except DatasetError as error:
            # What is wrong with the copy is wrong with what lies there.
            raise type(error)(str(error).replace(folder, str(place)), file=error.file) from error


def _summarise(folder: Path, where: str | None) -> Summary:
    stored = StoredRows.open(folder, index_only=True)
    return summary_of(stored, None if where is None else stored.where(where))


def summary_of(stored: StoredRows, chosen: Rows | None) -> Summary:
    """Summarises some rows of a dataset, int64 [n], ascending, or all if it is None; raises as `summarise`.

    The manifest of a version is put together of those of its segments.
    """
    found: dict[RecordStore, Rows | slice]
    if chosen is None:
        found = dict(stored.all_located())
    else:
        found = {store: np.empty(0, np.int64) for store in stored.stores}
        found.update((store, rows) for store, rows, _ in stored.located(chosen))
    stores, kept = stored.stores, list(found.values())
    manifests, version = [store.manifest for store in stores], stored.version
    together = manifests[0]
    if version is not None:
        together = replace(
            together,
            fields=version.fields,
            labels=version.labels,
            classes=version.classes,
            records=version.records,
            lines=sum(each.lines for each in manifests),
            rejects=sum(each.rejects for each in manifests),
            duplicates=sum(each.duplicates for each in manifests),
            shards=tuple(shard for each in manifests for shard in each.shards),
        )
    for store in stores:
        store.index.check_all()
    labels = None
    if str(together.labels) == "int":
        labels = np.concatenate([store.all_labels()[rows] for store, rows in zip(stores, kept, strict=True)])
    return Summary(
        dataset=Path(stored.name),
        manifest=together,
        index_bytes=sum(map(_index_bytes, manifests)),
        label_counts=None if labels is None else _counts(labels),
        fields={
            field.name: _summarise_field(
                field, [(store.field(field.name).columns, rows) for store, rows in zip(stores, kept, strict=True)]
            )
            for field in together.schema.fields
        },
        rows=len(stored) if chosen is None else len(chosen),
        version=None if version is None else version.number,
        segments=len(stores),
        sides=_sides(stored, chosen, labels),
    )


def _sides(stored: StoredRows, chosen: Rows | None, labels: npt.NDArray[Any] | None) -> dict[str, SideSummary]:
    names = stored.stores[0].side_names
    if not names:
        return {}
    sides = stored.column(SPLIT, np.arange(len(stored)) if chosen is None else chosen)
    on_each = {name: sides == number for number, name in enumerate(names)}
    return {
        name: SideSummary(int(np.count_nonzero(there)), None if labels is None else _counts(labels[there]))
        for name, there in on_each.items()
        if there.any()
    }


def _index_bytes(manifest: Manifest) -> int:
    return sum(column.bytes for column in manifest.columns)


def _summarise_field(field: Field, parts: Sequence[tuple[FieldColumns, Any]]) -> FieldSummary:
    """Summarise a field of which each part has columns, and rows that count."""
    for columns, _ in parts:
        if isinstance(columns, Columns):
            columns.check_all()

    def column(name: str) -> npt.NDArray[Any]:
        found = [columns[name][rows] for columns, rows in parts]
        return found[0] if len(found) == 1 else np.concatenate(found)

    present = column("valid") == 1 if field.indexed else column("length") >= 0
    missing = len(present) - int(np.count_nonzero(present))
    if missing == len(present):
        return FieldSummary(field.kind, None, missing)
    if field.indexed:
        numbers = column("value")[present] if field.kind == "number" else np.empty(0)
        numbers = numbers[numbers == numbers]
        ends = (numbers.min().item(), numbers.max().item()) if len(numbers) else (None, None)
        return FieldSummary(field.kind, None, missing, smallest=ends[0], largest=ends[1])
    summary = FieldSummary(field.kind, _spread(column("length")[present]), missing)
    if field.has_pixels:
        width, height = column("width")[present], column("height")[present]
        commonest = sorted(_counts(width.astype(np.int64) << 32 | height).items(), key=lambda item: -item[1])[:5]
        summary = replace(
            summary,
            width=_spread(width),
            height=_spread(height),
            commonest_sizes=tuple((size >> 32, size & 0xFFFFFFFF, count) for size, count in commonest),
        )
    if field.kind == "image":
        turned = _counts(column("orientation")[present])
        summary = replace(summary, orientations={value: count for value, count in turned.items() if value != 1})
    return summary


def _spread(values: npt.NDArray[Any]) -> Spread:
    return Spread(int(values.min()), int(np.median(values)), int(values.max()))


def _counts(values: npt.NDArray[Any]) -> dict[int, int]:
    unique, counts = np.unique(values, return_counts=True)
    return dict(zip(unique.tolist(), counts.tolist(), strict=True))
