"""One writer per container format. The module of the same name in `packtrain._readers.formats` specifies the bytes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from packtrain._core.options import LabelSpec
from packtrain._readers.formats import StoredLabel, container


class NewRecord(NamedTuple):
    """A record to be written to a shard.

    Attributes:
        line: Key of the record: the 0-based number of its line in the list.
        label: Label of the record; None if the dataset has no labels.
        payload: Bytes of the record.
        extension: File extension that names the encoding, without the dot: ``"jpg"``, ``"npy"``, ...
        crc32c: crc32c of `payload`.
        shape: Height, width and channels of the image.
    """

    line: int
    label: StoredLabel
    payload: bytes
    extension: str
    crc32c: int
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class RecordSpec:
    """What all records of a dataset have in common; a writer needs to know it beforehand.

    Attributes:
        labels: Type of the labels.
        raw: True if records are raw pixels.
        fixed_shape: (height, width, channels) if all raw records have the same shape, else None.
    """

    labels: LabelSpec
    raw: bool
    fixed_shape: tuple[int, int, int] | None


@dataclass(frozen=True)
class WrittenShard:
    """What a writer returns when its shard is complete.

    Attributes:
        offsets: Byte offset of each record in the file, in the order in which the records were added.
        sidecars: Content of the files that belong beside the shard, by the suffix that replaces the shard's own.
        crc32c: crc32c of the whole file; None if the writer does not know it, so that the file has to be read again.
    """

    offsets: list[int]
    sidecars: dict[str, bytes] = field(default_factory=dict)
    crc32c: int | None = None


class ShardWriter(Protocol):
    """Writes one container file. Apart from a few bytes per record, its memory does not grow with the file."""

    raw_as_npy: bool
    """True if raw records are stored as `.npy` files, False if only their pixels are stored."""

    def __init__(self, path: Path, spec: RecordSpec) -> None:
        """Creates the file at `path`, which must not exist yet."""

    def add(self, record: NewRecord) -> None:
        """Appends a record."""

    def finish(self) -> WrittenShard:
        """Completes and closes the file. The caller fsyncs it."""

    def close(self) -> None:
        """Closes the file, whether it is complete or not, and leaves no other file behind."""


def shard_writer(name: str) -> type[ShardWriter]:
    """Returns the writer of the format called `name`.

    Raises:
        UsageError: There is no such format.
    """
    container(name)
    return cast("type[ShardWriter]", importlib.import_module(f"{__name__}.{name}").Writer)
