"""One writer per container format; the twin module in `packtrain._readers.formats` specifies the bytes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from packtrain._core.options import LabelSpec
from packtrain._readers.formats import StoredLabel, container


class NewRecord(NamedTuple):
    """A record on its way into a shard.

    Attributes:
        line: Its key.
        label: Its label, None without labels.
        payload: Its bytes.
        extension: Names the encoding: ``"jpg"``, ``"npy"``, ...
        crc32c: Checksum of `payload`.
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
    """What a writer has to know of the dataset.

    Attributes:
        labels: What a label is.
        raw: Whether records are raw pixels.
        fixed_shape: (height, width, channels) where all raw records have the same, else None.
    """

    labels: LabelSpec
    raw: bool
    fixed_shape: tuple[int, int, int] | None


@dataclass(frozen=True)
class WrittenShard:
    """What a writer has written.

    Attributes:
        offsets: Offset of each record's bytes in the file, in the order in which they were added.
        sidecars: Content of further files, by suffix, which replaces the shard's.
        crc32c: Checksum of the whole file, where the writer knows it; else the file has to be read once more.
    """

    offsets: list[int]
    sidecars: dict[str, bytes] = field(default_factory=dict)
    crc32c: int | None = None


class ShardWriter(Protocol):
    """Writes one container file. Its memory does not grow with the file, but for some bytes per record."""

    raw_as_npy: bool
    """Whether raw records are stored as `.npy` files, not as pixels alone."""

    def __init__(self, path: Path, spec: RecordSpec) -> None:
        """Creates the file at `path`, which must not exist."""

    def add(self, record: NewRecord) -> None:
        """Appends a record."""

    def finish(self) -> WrittenShard:
        """Completes and closes the file. The caller fsyncs it."""

    def close(self) -> None:
        """Lets go of the file, finished or not; leaves no other file behind."""


def shard_writer(name: str) -> type[ShardWriter]:
    """The writer of the format called `name`.

    Raises:
        UsageError: There is none.
    """
    container(name)
    return cast("type[ShardWriter]", importlib.import_module(f"{__name__}.{name}").Writer)
