"""The samples of a dataset of versions: those of its segments, one after the other, without the rows that were dropped.

Does not import torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import CorruptFile, UnsupportedVersion, UsageError
from packtrain._core.index import ROWS_PER_BLOCK
from packtrain._core.manifest import VERSIONS
from packtrain._core.overriding import override
from packtrain._core.schema import LABEL, Field, Schema
from packtrain._core.suggestions import did_you_mean
from packtrain._core.version_files import LAYERS, has_versions
from packtrain._core.version_schema import differing
from packtrain._core.versions import NO_SIDE, SPLIT, Segment, Split, Version, layer_manifest, segment_manifest
from packtrain._storage.staging.locks import VersionLease

from .indexed import IndexedValues
from .kept import is_kept
from .records import FieldRecords
from .sides import Sides, not_split, segment_sides
from .sound import Check
from .store import RecordStore

if TYPE_CHECKING:
    from packtrain._storage.streams.client import ChunkCache


class _AbsentColumns:
    """The columns of a field that a segment lacks. They take no memory, however many rows there are."""

    def __init__(self, field: Field, rows: int) -> None:
        self.unchecked = bytearray(-(-rows // ROWS_PER_BLOCK))
        self._arrays = {
            name.removeprefix(field.prefix): np.broadcast_to(
                np.array(-1 if name.endswith("length") else 0, dtype), rows
            )
            for name, dtype in field.columns().items()
        } | {"shard": np.broadcast_to(np.array(0, "<u4"), rows)}
        if field.text_column is not None:
            self._arrays["value_offsets"] = np.broadcast_to(np.array(0, "<i8"), rows + 1)
            self._arrays["value_bytes"] = np.empty(0, np.uint8)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def check(self, row: int) -> None:
        """Does nothing: there is nothing to check."""

    def field(self, name: str) -> _AbsentColumns:
        """The same columns, for the only field that they are about."""
        return self


class SegmentStore(RecordStore):
    """The records of a segment, by row and field, with those of its layers.

    Args:
        dataset: The dataset's folder.
        version: The schema of the version; a field that the segment lacks is missing in all rows.
        segment: The segment.
        lease: A lease on the version; None where nobody can drop it.
        io: See `RecordStore`.
        check: See `RecordStore`.
        split: How the version is split.
        sides: Names of the sides whose rows are read; none if all rows are.
        copied: True if the dataset was opened in an object store, and this is a copy of it.
        chunks: The cache that the segment is read from; None: its shards are in its folder.
        index_only: See `RecordStore`.

    Raises:
        CorruptFile: A manifest or an index is damaged, or is not the one that the version names.
        UnreadableFile: One cannot be read.
    """

    def __init__(
        self,
        dataset: Path,
        schema: Schema,
        segment: Segment,
        lease: VersionLease | None,
        io: str,
        check: Check,
        split: Split | None = None,
        sides: Sequence[str] = (),
        copied: bool = False,
        chunks: ChunkCache | None = None,
        index_only: bool = False,
    ) -> None:
        self._of: Final = (dataset, schema, segment, lease, io, check, split, sides, copied, chunks, index_only)
        self.side_names = () if split is None else split.names
        manifest = segment_manifest(dataset, segment)
        path = segment.folder(dataset) if chunks is None else chunks.dataset
        super().__init__(
            path, io=io, check=check, copied=copied, chunks=chunks, manifest=manifest, index_only=index_only
        )
        self._layers: Final[dict[str, RecordStore]] = {}
        for layer in segment.layers:
            manifest = layer_manifest(dataset, segment, layer)
            store = RecordStore(dataset / LAYERS / layer.name, io=io, check=check, manifest=manifest)
            self._layers.update(dict.fromkeys(layer.fields, store))
        own = {field.name: field for field in self.manifest.schema.fields}
        own |= {name: store.schema[name] for name, store in self._layers.items() if name != LABEL}
        self._require_same(schema, own)
        fields = tuple(replace(own.get(field.name, field), optional=field.optional) for field in schema.fields)
        self.schema = Schema(fields, schema.labels, schema.classes)
        self._absent = frozenset(schema.names) - own.keys()
        if (labels := self._layers.get(LABEL)) is not None:
            self.identity = f"{self.identity}/{labels.identity}"
            self._take_labels(labels)
        if sides and split is not None and (file := split.of(segment.name)) is not None:
            self.identity = f"{self.identity}/{','.join(sides)} of {file.name}"

    def _require_same(self, schema: Schema, own: Mapping[str, Field]) -> None:
        """Checks that the fields and labels are those that the version says."""
        labels = self._layers[LABEL].schema.labels if LABEL in self._layers else self.manifest.labels
        what = "" if labels == schema.labels else "labels"
        for field in schema.fields:
            if field.name in own and (key := differing(own[field.name], field)):
                what = f"field {field.name}: {key}"
            elif field.name not in own and not field.optional:
                what = f"field {field.name}: optional"
        if what:
            dataset, _, segment, *_ = self._of
            raise CorruptFile(f"{dataset}: segment {segment.name} is not what the version says ({what})", file=VERSIONS)

    @cached_property
    def sides(self) -> Sides:
        """The number of the side of each row, uint8 [rows]; raises what `segment_sides` raises."""
        dataset, _, segment, _, _, _, split, *_ = self._of
        return segment_sides(dataset, split, segment)

    @override
    def field(self, name: str) -> FieldRecords | IndexedValues:
        records = self._fields.get(name)
        if records is None:
            if name in self._layers:
                records = self._layers[name].field(name)
            elif name in self._absent:
                field = self.schema[name]
                columns = _AbsentColumns(field, len(self))
                records = (
                    IndexedValues(field, columns, self._faults)
                    if field.indexed
                    else FieldRecords(field, columns, self._shards, self._faults, check=False)
                )
            else:
                return super().field(name)
            self._fields[name] = records
        return records

    @override
    def sha256(self) -> str:
        layers = [f"{name} {store.sha256()}" for name, store in self._layers.items()]
        return hashlib.sha256("\n".join([super().sha256(), *layers]).encode()).hexdigest()

    @override
    def column(self, name: str, rows: npt.NDArray[np.int64], field: str | None = None) -> npt.NDArray[Any]:
        if field is None and name == SPLIT:
            return self.sides[rows]
        if field in self._absent:
            found: npt.NDArray[Any] = self.field(field).columns[name][rows]
            return found
        store = self._layers.get(field or name)
        return super().column(name, rows, field) if store is None else store.column(name, rows, field)

    @override
    def texts(self, field: str, rows: npt.NDArray[np.int64]) -> list[str]:
        if field in self._absent:
            return [""] * len(rows)
        store = self._layers.get(field)
        return super().texts(field, rows) if store is None else store.texts(field, rows)

    @override
    def __reduce__(self) -> tuple[Callable[..., SegmentStore], tuple[Any, ...]]:
        return SegmentStore, self._of


def segment_stores(
    dataset: Path,
    version: Version,
    io: str,
    check: Check,
    sides: Sequence[str] = (),
    *,
    copied: bool = False,
    caches: Mapping[str, ChunkCache] = MappingProxyType({}),
    index_only: bool = False,
) -> list[SegmentStore]:
    """The records of each segment of a version; raises what the class raises, and UsageError if it was dropped."""
    lease = VersionLease(dataset, version.number)
    schema, split = version.schema, version.split
    return [
        SegmentStore(
            dataset, schema, segment, lease, io, check, split, sides, copied, caches.get(segment.name), index_only
        )
        for segment in version.segments
    ]


def newest_stores(folder: Path, version: Version, *, index_only: bool) -> list[RecordStore]:
    """The records of each segment of the newest version of a dataset that may be as it was packed."""
    if not has_versions(folder):
        # Somebody else may be making it one of versions.
        with suppress(UnsupportedVersion):
            return [RecordStore(folder, index_only=index_only)]
    return [*segment_stores(folder, version, "auto", True, index_only=index_only)]


def rows_on_sides(
    dataset: Path, version: Version, stores: Sequence[SegmentStore], names: Sequence[str]
) -> list[npt.NDArray[np.int64]]:
    """For each segment, those of its rows in the version that are on one of these sides, ascending.

    Raises:
        UsageError: The version is not split, there is no such side or no row on it, or rows are on no side.
        CorruptFile: The sides are damaged.
    """
    if version.split is None:
        raise not_split(str(dataset))
    there, found, without = version.split.names, list[npt.NDArray[np.int64]](), 0
    if unknown := [name for name in names if name not in there]:
        raise UsageError(
            f"split={unknown[0]!r}: {dataset} is split in {', '.join(there)}{did_you_mean(unknown[0], there)}"
        )
    numbers = [there.index(name) for name in names]
    for segment, store in zip(version.segments, stores, strict=True):
        kept = is_kept(dataset, segment)
        without += int(np.count_nonzero(kept & (store.sides == NO_SIDE)))
        found.append(np.flatnonzero(kept & np.isin(store.sides, numbers)))
    if without:
        raise UsageError(
            f"{dataset}: {without:,} rows that were appended are on no side: run `packtrain split {dataset}` again, "
            "which leaves the others where they are"
        )
    if not any(map(len, found)):
        raise UsageError(f"split={', '.join(names)!r}: {dataset} has no row there")
    return found
