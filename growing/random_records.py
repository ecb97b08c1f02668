"""Random records of a dataset."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from packtrain._core.arguments import items, path_of, whole
from packtrain._core.errors import UsageError
from packtrain._core.permutation import Permutation
from packtrain._core.schema import LABEL, Schema
from packtrain._packer.dataset_rows import RecordCopier
from packtrain._readers.dataset.store import RecordStore


@dataclass(frozen=True)
class RandomRecords:
    """The records of a packed dataset in random order, for ever: a source of a growing cache.

    Each round goes through all rows once, in an order of its own. Records are copied as they are stored; each is
    compared with its checksum. The dataset may lie on a slow file system.

    Attributes:
        path: Folder of the dataset.
        fields: Names of the fields to copy, ``"label"`` among them if the labels are to be; None: the labels and all
            fields but numbers and strings, which lie in the index.
        seed: Decides the orders; None: other ones whenever the source is called.

    Raises:
        UsageError: A value is not what it should be.
    """

    path: str | PathLike[str]
    fields: Sequence[str] | None = None
    seed: int | None = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", fspath(path_of("path", self.path)))
        if self.fields is not None:
            names = tuple(items("fields", self.fields, "the names of fields, such as ('x', 'label')"))
            object.__setattr__(self, "fields", names)
        if self.seed is not None:
            object.__setattr__(self, "seed", whole("seed", self.seed, 0))

    def sample_schema(self) -> Schema:
        """Return the schema of the records.

        Raises:
            UsageError: The dataset has no such field.
            DatasetError: The dataset cannot be opened.
        """
        with RecordStore(self.path, io="pread") as store:
            return self._schema(store)

    def __call__(self) -> Iterator[dict[str, Any]]:
        """Yield the records.

        Raises:
            UsageError: The dataset has no such field, or no row.
            DatasetError: It cannot be opened, or is damaged.
        """
        # With system calls, so that a failing disk is an error and not a SIGBUS.
        with RecordStore(self.path, io="pread") as store:
            schema, labelled = self._schema(store), self._schema(store).labels.kind != "none"
            if not len(store):
                raise UsageError(f"{self.path} has no row")
            seed = secrets.randbits(64) if self.seed is None else self.seed
            copier = RecordCopier(store)
            for row in _rounds(len(store), seed):
                sample: dict[str, Any] = dict(zip(schema.names, copier.row(schema, row), strict=True))
                if labelled:
                    sample[LABEL] = store.label(row)
                yield sample

    def _schema(self, store: RecordStore) -> Schema:
        """Return the schema of what is copied. A cache has no names of classes."""
        schema = store.schema
        if self.fields is None:
            return Schema(schema.in_shards.fields, schema.labels)
        wanted = [schema[name] for name in self.fields if name != LABEL]
        for field in wanted:
            if field.indexed:
                raise UsageError(
                    f"{self.path}: the {field.kind} {field.name} lies in the index, and a growing cache has records "
                    f"alone: name the others, as in fields={schema.in_shards.names}"
                )
        if LABEL in self.fields and schema.labels.kind == "none":
            raise UsageError(f"{self.path} has no labels: leave out {LABEL!r}")
        wanted.sort(key=schema.fields.index)
        labels = schema.labels if LABEL in self.fields else type(schema.labels)("none")
        return Schema(tuple(wanted), labels)


def _rounds(count: int, seed: int) -> Iterator[int]:
    """Yield the numbers below `count`, each once in a round."""
    keys = Permutation(1 << 60, seed)
    for turn in range(1 << 60):
        order = Permutation(count, keys[turn])
        for at in range(count):
            yield order[at]
