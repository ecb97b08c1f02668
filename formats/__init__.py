"""The container formats, by name.

Records are read by offset from memory-mapped files, in the same way for every format
(`packtrain._readers.dataset.store`). Formats differ in how a container is laid out. The docstring of each package here
is the specification of its format. `walk`, in its module `reader`, finds the records through the format's own library,
without our index, so that `verify` can compare the two. Its module `writer` writes shards.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from packtrain._core.arguments import choice
from packtrain._core.options import FORMATS
from packtrain._core.schema import Schema

StoredLabel = int | float | tuple[int, ...] | tuple[float, ...] | None


MOST_LABEL_BYTES: Final = 32 << 20
"""No label is longer as JSON text: a million numbers."""


def read_label(text: bytes) -> StoredLabel:
    """Reads a label that a container holds as JSON text: a number or a list of numbers.

    Raises:
        ValueError: It is something else, or too long.
    """
    if len(text) > MOST_LABEL_BYTES:
        raise ValueError(f"a label of more than {MOST_LABEL_BYTES} bytes")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("a label that is nested too deeply") from error
    values = value if isinstance(value, list) else [value]
    if not all(type(item) in (int, float) for item in values):
        raise ValueError("a label that is not a number or a list of numbers")
    return tuple(values) if isinstance(value, list) else values[0]


class StoredSample(NamedTuple):
    """A sample as found by the container's own library.

    Attributes:
        line: Key of the sample: the 0-based number of its line in the list.
        places: Offset in the file and length of the record of each field, both in bytes, by the field's name. A field
            that is missing is not there.
        label: Label stored in the container; None if the dataset has no labels.
    """

    line: int
    places: dict[str, tuple[int, int]]
    label: StoredLabel


class Container(Protocol):
    """The module `reader` of each format."""

    def walk(self, path: Path, schema: Schema) -> Iterator[StoredSample]:
        """Yields every sample of the shard at `path`, in any order.

        A sample without a label, all of whose fields are missing, need not be found.

        Raises:
            CorruptFile: The container's library cannot read the shard, or a sample lacks what the schema demands.
        """


def container(name: str) -> Container:
    """Returns the format called `name`.

    Raises:
        UsageError: There is no such format.
    """
    return cast(Container, importlib.import_module(f"{__name__}.{choice('format', name, FORMATS)}.reader"))
