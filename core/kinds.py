"""The kinds of fields that a dataset can have, and what every room has to know about each.

A new kind is an entry here, how its values become records (`packer/encoding.py`) and how these become values again
(`codec/values.py`). Command line, lists, index, readers and loader follow the entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Kind:
    """A kind of field.

    Attributes:
        name: Its name.
        option: The option of `packtrain pack` that names columns of this kind, without its dashes.
        help: What such columns hold, for the command line.
        extension: Extension of a record's file name, without the dot; None if it depends on the record.
        columns: What columns of a typed table may hold, apart from paths: ``"strings"``, ``"binary values"``,
            ``"single numbers"``, ``"numbers"`` (and lists of them) or ``"structs"`` (and whatever else JSON can hold).
        written: How the cell of a table writes a value: ``"text"``, ``"json"``, ``"numbers"``, JSON with NaN, or
            ``"number"``, a single one.
        by_path: True if the cells of texts are always paths, because no text holds such a value.
        may_be_empty: True if an empty file is a value.
        sent: How a batch of its values travels from a worker: ``"text"``, ``"json"``, ``"bytes"``; None for arrays.
        indexed: True if its values are columns of the index, and it has no records.
    """

    name: str
    option: str
    help: str
    extension: str | None = None
    columns: tuple[str, ...] = ()
    written: str = "text"
    by_path: bool = False
    may_be_empty: bool = False
    sent: str | None = None
    indexed: bool = False


_TEXTS: Final = "Texts, or paths of text files."
_JSON: Final = "JSON, or paths of JSON files."
_ARRAYS: Final = "Lists of numbers, or paths of .npy files."
_NUMBERS: Final = "Whole numbers, fractions, or true and false, to select samples by."
_STRINGS: Final = "Short texts, to select samples by."
_FILES: Final = "Paths of other files, or binary values of Parquet."
KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind("image", "image-field", "Paths of further images.", by_path=True),
            Kind("mask", "mask", "Paths of masks: images of class indices.", by_path=True),
            Kind("text", "text", _TEXTS, "txt", ("strings", "binary values"), may_be_empty=True, sent="text"),
            Kind("json", "json-field", _JSON, "json", ("strings", "structs"), written="json", sent="json"),
            Kind("array", "array", _ARRAYS, columns=("strings", "numbers"), written="numbers"),
            Kind("bytes", "bytes", _FILES, "bin", ("binary values",), by_path=True, may_be_empty=True, sent="bytes"),
            Kind("number", "number", _NUMBERS, columns=("single numbers",), written="number", indexed=True),
            Kind("string", "string", _STRINGS, columns=("strings",), may_be_empty=True, sent="text", indexed=True),
        )
    }
)
"""By name, in the order in which the fields of a list are stored that the command line names."""
ADDABLE: Final = tuple(kind for name, kind in KINDS.items() if name not in ("image", "mask"))
"""Kinds that can be added to a dataset. Those with pixels depend on how its image was stored."""
