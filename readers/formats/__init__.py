"""The container formats, by name.

Records are read by offset from mapped files, the same way for every format (`packtrain._readers.dataset.store`); what
differs is how a container is laid out. The docstring of each module here is the specification of its format, and its
`walk` finds the records through the format's own library, without our index: that is what `verify` compares the index
with.
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
    """Where a container's own library finds a record.

    Attributes:
        line: Its key: the 0-based line in the list.
        offset: First byte of the record in the file.
        length: Its bytes.
        label: Its label as stored in the container, None without labels.
    """

    line: int
    offset: int
    length: int
    label: StoredLabel


class Container(Protocol):
    """What a module of this package provides."""

    SUFFIX: str

    def walk(self, path: Path, labels: LabelSpec) -> Iterator[StoredRecord]:
        """Yields every record of the shard at `path`, in any order.

        Raises:
            CorruptFile: The container's library cannot read it.
        """


def container(name: str) -> Container:
    """The format called `name`.

    Raises:
        UsageError: There is none.
    """
    if name not in FORMATS:
        raise UsageError(f"format {name!r}: expected one of {', '.join(FORMATS)}{did_you_mean(name, FORMATS)}")
    return cast(Container, importlib.import_module(f"{__name__}.{name}"))
