"""The container formats, by name.

Records are read by offset from memory-mapped files, in the same way for every format
(`packtrain._readers.dataset.store`). Formats differ in how a container is laid out. The docstring of each module here
is the specification of its format. Its `walk` finds the records through the format's own library, without our index, so
that `verify` can compare the two.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from packtrain._core.errors import UsageError
from packtrain._core.options import LabelSpec
from packtrain._core.suggestions import did_you_mean

FORMATS: Final = ("tar", "hdf5", "lmdb")

StoredLabel = int | float | tuple[int, ...] | tuple[float, ...] | None


class StoredRecord(NamedTuple):
    """A record as found by the container's own library.

    Attributes:
        line: Key of the record: the 0-based number of its line in the list.
        offset: Offset of the record in the file, in bytes.
        length: Size of the record in bytes.
        label: Label stored in the container; None if the dataset has no labels.
    """

    line: int
    offset: int
    length: int
    label: StoredLabel


class Container(Protocol):
    """What each module of this package provides."""

    SUFFIX: str
    """File name suffix of a shard, with the dot."""

    def walk(self, path: Path, labels: LabelSpec) -> Iterator[StoredRecord]:
        """Yields every record of the shard at `path`, in any order.

        Raises:
            CorruptFile: The container's library cannot read the shard.
        """


def container(name: str) -> Container:
    """Returns the format called `name`.

    Raises:
        UsageError: There is no such format.
    """
    if name not in FORMATS:
        raise UsageError(f"format {name!r}: expected one of {', '.join(FORMATS)}{did_you_mean(name, FORMATS)}")
    return cast(Container, importlib.import_module(f"{__name__}.{name}"))
