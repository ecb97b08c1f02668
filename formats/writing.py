"""Shard writers: what they are given, what they return, and how they are found by the name of their format."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from packtrain._core.schema import Schema

from . import StoredLabel, container


class NewRecord(NamedTuple):
    """One field of a sample, to be written to a shard.

    Attributes:
        payload: Bytes of the record, apart from its header. Nobody keeps a reference to them when `ShardWriter.add`
            has returned, so they may be a view of a buffer that changes then.
        extension: File extension that names the encoding, without the dot: ``"jpg"``, ``"npy"``, ...
        crc32c: crc32c of header and payload.
        shape: Shape of the values, or height, width and channels of the image; () where it means nothing, as for text.
        header: Bytes in front of `payload`; apart, so that large values need not be copied behind them.
        frame: Width, height and orientation, as far as the field has columns for them. They are not written to the
            shard.
    """

    payload: bytes | memoryview
    extension: str
    crc32c: int
    shape: tuple[int, ...]
    header: bytes = b""
    frame: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Size of the whole record in bytes."""
        return len(self.header) + len(self.payload)

    def joined(self) -> bytes:
        """The whole record; a copy, unless it is bytes without a header."""
        if not self.header:
            return bytes(self.payload)
        return b"".join((self.header, self.payload))


class NewSample(NamedTuple):
    """A sample to be written to a shard.

    Attributes:
        line: Key of the sample: the 0-based number of its line in the list.
        label: Its label; None if the dataset has no labels.
        records: Its fields, in the order of the schema; None where the sample has no such field.
    """

    line: int
    label: StoredLabel
    records: tuple[NewRecord | None, ...]

    @property
    def size(self) -> int:
        """Size of all records in bytes."""
        return sum(record.size for record in self.records if record is not None)


@dataclass(frozen=True)
class WrittenShard:
    """The result of a writer whose shard is complete.

    Attributes:
        offsets: Byte offsets in the file of each sample's records, in the order in which samples were added: one offset
            per field, in the order of the schema, and 0 for a field that is missing.
        sidecars: Content of the files that belong beside the shard, by the suffix that replaces the shard's own.
        crc32c: crc32c of the whole file; None if the writer does not know it, so that the file has to be read again.
    """

    offsets: list[tuple[int, ...]]
    sidecars: dict[str, bytes] = field(default_factory=dict)
    crc32c: int | None = None


class ShardWriter(Protocol):
    """Writes one container file. Apart from a few bytes per record, its memory does not grow with the file."""

    def __init__(self, path: Path, schema: Schema, *, checksum: bool = True) -> None:
        """Creates the file at `path`, which must not exist yet, for samples of this schema.

        Without `checksum`, that of the whole file is not computed: `WrittenShard.crc32c` is None.
        """

    def add(self, sample: NewSample) -> None:
        """Appends a sample."""

    def finish(self) -> WrittenShard:
        """Completes and closes the file. The caller fsyncs it."""

    def close(self) -> None:
        """Closes the file, whether it is complete or not, and leaves no other file behind."""


class ShardSpace(NamedTuple):
    """The most bytes that a shard takes on a disk, with its sidecars.

    Attributes:
        fixed: Bytes of a shard without samples.
        sample: Bytes of a sample without its records.
        record: Bytes of a record of so many.
        spools: Number of files that are there only while the shard is written.
        times: How many times over the samples lie on the disk while it is written.
    """

    fixed: int
    sample: int
    record: Callable[[int], int]
    spools: int = 0
    times: int = 1


LABEL_DIGITS: Final = 24
"""Characters of a label's value in a text, with a sign or a separator."""


def shard_space(name: str, schema: Schema) -> ShardSpace:
    """Returns the bytes that shards of the format called `name` take.

    Raises:
        UsageError: There is no such format.
    """
    container(name)
    space: ShardSpace = importlib.import_module(f"{__package__}.{name}.writer").space(schema)
    return space


def shard_writer(name: str) -> type[ShardWriter]:
    """Returns the writer of the format called `name`.

    Raises:
        UsageError: There is no such format.
    """
    container(name)
    return cast("type[ShardWriter]", importlib.import_module(f"{__package__}.{name}.writer").Writer)
