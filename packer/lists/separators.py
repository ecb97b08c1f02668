"""Blanks, tabs, commas or semicolons between the columns of a list."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from typing import Final

from .labels import BadLine

BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Separator:
    """How the columns of a list are separated.

    Attributes:
        byte: Tab, comma or semicolon; None for blanks of any kind and number.
        skipped: Number of columns before the path; 1 for the index that pandas writes.
    """

    byte: bytes | None = None
    skipped: int = 0

    def split(self, line: bytes, values: int) -> list[bytes]:
        """Returns the path and the last `values` columns.

        Raises:
            BadLine: There are fewer columns.
        """
        if self.byte is None:
            fields = line.rsplit(None, values) if values else [line]
        elif b'"' in line or self.skipped:
            columns = self.columns(line)[self.skipped :]
            cut = len(columns) - values
            fields = [self.byte.join(columns[:cut]), *columns[cut:]] if cut > 0 else columns
        else:
            fields = line.rsplit(self.byte, values) if values else [line]
        if len(fields) <= values:
            raise BadLine(f"expected a path and {values} label value(s), separated by {_NAMES[self.byte]}")
        if self.byte is not None:
            fields = [fields[0].rstrip(), *map(bytes.strip, fields[1:])]
        return fields

    def heads(self, line: bytes) -> tuple[list[str], Separator]:
        """Returns the names of the columns in a header, and this separator."""
        return [os.fsdecode(column).strip() for column in self.columns(line)], self

    def columns(self, line: bytes) -> list[bytes]:
        """Returns all columns, without their quotes.

        Raises:
            BadLine: Quotes do not match.
        """
        if self.byte is None:
            return line.split()
        try:
            (columns,) = csv.reader([os.fsdecode(line)], delimiter=self.byte.decode(), strict=True)
        except (csv.Error, ValueError) as error:
            raise BadLine(f"cannot be read as columns separated by {_NAMES[self.byte]}: {error}") from error
        return [os.fsencode(column) for column in columns]


_NAMES: Final = {None: "blanks", b"\t": "tabs", b",": "commas", b";": "semicolons"}
SEPARATORS: Final = tuple(Separator(byte) for byte in _NAMES)
