"""Holds what every form of export has in common: the parts, and the samples that a worker writes to one of them."""

from __future__ import annotations

import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import numpy as np

from packtrain._core.files import file_errors, remove_temporaries, write_file
from packtrain._core.schema import Schema
from packtrain._formats import StoredLabel

from .contents import FieldFile, field_file
from .names import Names
from .rows import SourceRows

CLASSES: Final = "classes.txt"
_REPORT_SECONDS: Final = 0.2


class Sample(NamedTuple):
    """A sample to be written.

    Attributes:
        name: Its name, without an extension.
        path: Its path in the list.
        label: Its label; None if there are no labels.
        files: Its fields, in the order of the schema; None where it has no such field.
    """

    name: str
    path: str
    label: StoredLabel
    files: tuple[FieldFile | None, ...]


class PartProgress(NamedTuple):
    """Number of a part, and how many rows of it are done."""

    number: int
    rows: int


@dataclass(frozen=True)
class Target(ABC):
    """A folder that is exported to. It travels to the workers, so it pickles.

    Attributes:
        out: The folder.
        schema: What samples hold.
        name: Name of the dataset, for file names.
        parts: Number of parts.
    """

    out: Path
    schema: Schema
    name: str
    parts: int
    by_name: ClassVar[bool] = True
    """True if files are called like samples, whose names must be distinct then."""

    def names(self) -> Names:
        """The names that samples would like to have."""
        return Names(None, dotted=False)

    def prepare(self) -> None:
        """Writes what is no part, the class names. Called again when a run continues."""
        if can_be_listed(self.schema.classes):
            write_lines(self.out / CLASSES, self.schema.classes or ())

    @abstractmethod
    def part_path(self, number: int) -> Path:
        """The file that is there once a part is done."""

    @abstractmethod
    def write(self, task: ExportTask, report: Callable[[PartProgress], None]) -> None:
        """Writes a part."""

    def missing(self) -> list[int]:
        """The numbers of the parts that are not done."""
        return [number for number in range(self.parts) if not self.part_path(number).exists()]

    @property
    def is_complete(self) -> bool:
        """True if nothing is left to do."""
        return not self.missing()

    def finish(self) -> None:  # noqa: B027  # most forms are their parts
        """Makes one of the parts."""

    def clean(self) -> None:
        """Removes what stopped workers left."""
        remove_temporaries(self.out)

    @abstractmethod
    def again(self) -> str:
        """Returns what to type to use the result."""


@dataclass(frozen=True)
class ExportTask:
    """Everything a worker needs to write one part.

    Attributes:
        target: Where to.
        number: Number of the part.
        rows: Its rows.
        names: Their names.
    """

    target: Target
    number: int
    rows: SourceRows
    names: Names

    def __str__(self) -> str:
        return str(self.target.part_path(self.number))

    def samples(self, report: Callable[[PartProgress], None]) -> Iterator[Sample]:
        """Reads the samples of the part, and reports about five times a second."""
        last = time.monotonic()
        for number, (store, row) in enumerate(self.rows):
            label = _plain(store.label(row)) if store.schema.labels.kind != "none" else None
            path = store.filename(row)
            files = tuple(field_file(store.field(field.name), row) for field in store.schema.fields)
            yield Sample(self.names.name(number, path, label), path, label, files)
            if (now := time.monotonic()) - last > _REPORT_SECONDS:
                last = now
                report(PartProgress(self.number, number + 1))


def export_part(task: ExportTask, report: Callable[[PartProgress], None]) -> PartProgress:
    """Writes a part. Writing it again gives the same bytes.

    Raises:
        PackError: It cannot be written.
        DatasetError: A record is damaged.
    """
    with file_errors(task.target.out):
        task.target.write(task, report)
    return PartProgress(task.number, len(task.rows))


def can_be_listed(names: Sequence[str] | None) -> bool:
    """True if `read_class_names` reads these names from a file that has one on each line."""
    return names is not None and all(name and name == name.strip() and "\n" not in name for name in names)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a file of these lines."""
    write_file(path, ["".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")])


def words(*arguments: object) -> str:
    """A command line."""
    return shlex.join(map(str, arguments))


def _plain(label: object) -> StoredLabel:
    return tuple(label.tolist()) if isinstance(label, np.ndarray) else label  # type: ignore[return-value]
