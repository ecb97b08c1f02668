"""The values of a field that lie in the index, by row. Does not import torch."""

from __future__ import annotations

from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

from packtrain._codec.decode import EncodedImage
from packtrain._codec.stages import DECODE, OnStage, untimed
from packtrain._core.errors import UsageError
from packtrain._core.schema import MOST_STRING_BYTES, Field

from .records import Faults, FieldColumns, IndexedRecords, RowIndex, native

_AT_ONCE: Final = 1 << 20


class IndexedValues(IndexedRecords):
    """The values of a number or a string, by row. It has no records, so no shard is ever read.

    Args:
        field: The field.
        index: The index of the dataset.
        faults: Makes errors.

    Attributes:
        read_bytes: Bytes of records read: none.

    Raises:
        CorruptFile: The field's columns of the index are damaged.
        UnreadableFile: They cannot be read.
    """

    read_bytes: Final = 0

    def __init__(self, field: Field, index: RowIndex, faults: Faults) -> None:
        super().__init__(field, index, faults)
        self._valid = native(self.columns["valid"]).data
        if field.text_column is None:
            self._values = native(self.columns["value"]).data
        else:
            self._offsets = native(self.columns["value_offsets"]).data
            self._texts = self.columns["value_bytes"]

    def value(self, row: int, on_stage: OnStage = untimed) -> int | float | bool | str | None:
        """The value of `row`; None if it is missing."""
        row = self.checked_row(row)
        valid = self._valid[row]
        if valid != 1:
            if valid or not self.field.optional:
                raise self.damaged(row, f"its index entry says that it is {valid or 'missing'}")
            return None
        found: int | float | bool | str = self._values[row] if self.field.text_column is None else self._text(row)
        on_stage(DECODE)
        return found

    def _text(self, row: int) -> str:
        start, stop = self._offsets[row], self._offsets[row + 1]
        if not 0 <= start <= stop <= len(self._texts):
            raise self.damaged(row, f"it is said to be bytes {start} to {stop} of {len(self._texts)}")
        try:
            return str(self._texts[start:stop].data, "utf-8") if stop > start else ""
        except UnicodeDecodeError as error:
            raise self.undecodable(row, error) from error

    def read(self, row: int, on_stage: OnStage = untimed) -> NoReturn:
        """Raises UsageError: there is no record."""
        raise UsageError(
            f"{self.field.name} lies in the index and has no record: "
            f"dataset.value({row}, {self.field.name!r}) gives its value"
        )

    def image(self, row: int, on_stage: OnStage = untimed) -> EncodedImage | None:
        """Raises UsageError: there is no record."""
        self.read(row)

    def size(self, row: int) -> tuple[int, int]:
        """Returns (0, 0): there are no pixels."""
        return 0, 0

    def length(self, row: int) -> int:
        """Returns 0, or -1 if it is missing: there is no record."""
        return self._valid[self.checked_row(row)] - 1

    def will_need(self, row: int) -> int:
        """Returns 0: there is nothing to read."""
        return 0

    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        """Does nothing: there is nothing to fetch."""


def check_values(field: Field, columns: FieldColumns) -> None:
    """Checks what readers check value by value, and what they never look at, of columns whose blocks were checked.

    Raises:
        ValueError: A value is not as a writer writes it.
    """
    for start in range(0, len(columns["valid"]), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        valid = columns["valid"][rows]
        if (valid > 1).any() or not (field.optional or valid.all()):
            raise ValueError(f"field {field.name}: valid is neither 0 nor 1, or 0 although it is not optional")
        if field.text_column is None:
            values = columns["value"][rows]
            bad = bool((values.view("u1").reshape(len(values), -1)[valid == 0] != 0).any())
            bad = bad or (field.dtype == "|b1" and bool((values.view("u1") > 1).any()))
        else:
            offsets = columns["value_offsets"][start : start + len(valid) + 1]
            sizes = np.diff(offsets)
            texts = columns["value_bytes"][offsets[0] : offsets[-1]]
            bad = bool((sizes[valid == 0] != 0).any() or sizes.max(initial=0) > MOST_STRING_BYTES)
            starts = offsets[:-1][sizes > 0] - offsets[0]
            # Together they are UTF-8, and none begins inside a character.
            bad = bad or bool(((texts[starts] & 0xC0) == 0x80).any())
            try:
                str(texts.data, "utf-8") if len(texts) else ""
            except UnicodeDecodeError:
                bad = True
        if bad:
            raise ValueError(f"field {field.name}: a value of rows {start} to {start + len(valid) - 1} is not sound")
