"""An indexed dataset into which new shards are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Self

from packtrain._core.errors import CorruptFile, PackError
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, Manifest
from packtrain._core.schema import IMAGE, Field
from packtrain._storage.staging.files import Location

from ..rejects import read_rejects
from . import tables
from .plan import IndexPlan
from .records import ArrayFacts, Label
from .relinking import AGAIN, shard_places
from .tables import Columns, Rows, no_columns


@dataclass(frozen=True)
class Before:
    """A dataset before new shards are taken into it.

    Attributes:
        folder: Its folder.
        manifest: Its manifest.
        plan: Its plan.
        rows: Its rows.
    """

    folder: Path
    manifest: Manifest
    plan: IndexPlan
    rows: Rows

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a dataset.

        Raises:
            OutputConflict: It was not indexed, but packed.
            DatasetError: It is not sound.
        """
        plan, manifest = IndexPlan.load(folder), Manifest.load(folder)
        return cls(folder, manifest, plan, _rows(folder, manifest))

    def places(self) -> list[Location]:
        """Where its shards lie."""
        return shard_places(self.folder, self.manifest)

    def rows_with(self, fields: Sequence[Field]) -> Rows:
        """Its rows, with the columns of all these fields."""
        count = len(self.rows.lines)
        columns = {field.name: self.rows.columns.get(field.name) or no_columns(field, count) for field in fields}
        return replace(self.rows, columns=columns)

    def fields_with(self, new: Sequence[Field]) -> tuple[Field, ...]:
        """Its fields together with those of new shards.

        Raises:
            PackError: They do not fit together.
        """
        fields = {field.name: field for field in self.manifest.schema.fields}
        if IMAGE not in fields and any(field.name == IMAGE for field in new):
            raise PackError(f"the new shards have images, and the dataset has none. {AGAIN}")
        for field in new:
            fields[field.name] = _joined(fields[field.name], field) if field.name in fields else field
        return tuple(fields.values())


def _joined(old: Field, new: Field) -> Field:
    if old.kind == new.kind == "mask":
        return tables.mask_field(old.name, wide="<u2" in (old.dtype, new.dtype))
    joined = new
    if old.kind == new.kind == "array":
        form = ArrayFacts(old.dtype or "", old.shape or ()).joined(ArrayFacts(new.dtype or "", new.shape or ()))
        joined = tables.array_field(old.name, form)
    if joined.kind != old.kind:
        raise PackError(f"the field {old.name!r} of the new shards does not fit that of the dataset. {AGAIN}")
    return joined if joined.kind == "array" else old


def _rows(folder: Path, manifest: Manifest) -> Rows:
    index = Index.of(folder, manifest)
    index.check_content()
    labels: list[Label] | None = None
    if manifest.labels.kind != "none":
        labels = index["label"].tolist()
    if manifest.classes is not None:
        names, numbers = manifest.classes, index["label"]
        if numbers.min() < 0 or numbers.max() >= len(names):
            raise CorruptFile(f"{folder} has labels without a class: there are {len(names)} classes", file=INDEX)
        labels = [names[number] for number in numbers.tolist()]
    columns: dict[str, Columns] = {}
    for field in manifest.schema.fields:
        own = index.field(field.name)
        own.check_all()
        columns[field.name] = {name: own[name] for name in no_columns(field, 0)}
    text = index["path_bytes"].tobytes()
    paths = [text[start:stop] for start, stop in pairwise(index["path_offsets"].tolist())]
    return Rows(index["line"], index["shard"], paths, labels, columns, read_rejects(folder, manifest))
