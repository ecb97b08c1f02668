"""The rows of a segment without those that a version leaves out. Does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import CorruptFile
from packtrain._core.files import checksum_file
from packtrain._core.index import map_column
from packtrain._core.manifest import ColumnInfo, FileInfo
from packtrain._core.problems import reading
from packtrain._core.version_files import DROPPED
from packtrain._core.versions import DroppedRows, Segment


class KeptRows:
    """The rows of a segment that a version has, as an array that takes no memory.

    Args:
        dataset: The dataset's folder.
        segment: The segment, some of whose rows were dropped.

    Raises:
        CorruptFile: The file of dropped rows is missing, or damaged.
        UnreadableFile: It cannot be read.
    """

    def __init__(self, dataset: Path, segment: Segment) -> None:
        assert segment.dropped is not None, "a segment without dropped rows has them all"
        self._of: Final = (dataset, segment)
        self._dropped: Final = dropped_rows(dataset, segment.dropped, segment.records)
        self._records = segment.records

    def __reduce__(self) -> tuple[type[KeptRows], tuple[Path, Segment]]:
        return KeptRows, self._of

    def __len__(self) -> int:
        return self._records - len(self._dropped)

    def item(self, row: int) -> int:
        """The row of the segment that is row `row` of those that are left."""
        return int(self[np.array([row])][0])

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return rows + self._before(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[np.int64]:
        return np.delete(np.arange(self._records), self._dropped)

    def _before(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The number of dropped rows before each of these: all with ``dropped[i] - i <= row``, by binary search.

        `numpy.searchsorted` would need these differences as an array.
        """
        low, high = np.zeros_like(rows), np.full_like(rows, len(self._dropped))
        while (open_ := low < high).any():
            middle = (low + high) // 2
            before = open_ & (self._dropped[np.minimum(middle, len(self._dropped) - 1)] - middle <= rows)
            low, high = np.where(before, middle + 1, low), np.where(open_ & ~before, middle, high)
        return low


def is_kept(dataset: Path, segment: Segment) -> npt.NDArray[np.bool_]:
    """Tells for each row of a segment whether a version has it, bool [records]; raises what `dropped_rows` raises."""
    kept = np.ones(segment.records, bool)
    if segment.dropped is not None:
        kept[dropped_rows(dataset, segment.dropped, segment.records)] = False
    return kept


def dropped_rows(dataset: Path, dropped: DroppedRows, records: int) -> npt.NDArray[np.int64]:
    """The rows that a version leaves out of a segment of `records` rows, int64 [dropped], mapped.

    Raises:
        CorruptFile: The file is missing or damaged.
        UnreadableFile: It cannot be read.
    """
    rows = checked_column(dataset, DROPPED, dropped, "<i8", dropped.records)
    if len(rows) and not (rows[0] >= 0 and rows[-1] < records and (np.diff(rows) > 0).all()):
        name = f"{DROPPED}/{dropped.name}.npy"
        raise CorruptFile(f"{dataset / name} is damaged: its rows do not ascend, or are outside", file=name)
    return rows


def checked_column(dataset: Path, folder: str, file: FileInfo, dtype: str, length: int) -> npt.NDArray[Any]:
    """A column beside the segments that a version names, [length], mapped.

    Raises:
        CorruptFile: The file is missing or damaged.
        UnreadableFile: It cannot be read.
    """
    column = map_column(dataset / folder, ColumnInfo(file.name, file.bytes, file.crc32c, dtype, (length,)))
    path = dataset / folder / f"{file.name}.npy"
    with reading(path):
        found = checksum_file(path)
    if found != file.crc32c:
        raise CorruptFile(f"{path} is damaged: its checksum differs from the version's", file=f"{folder}/{path.name}")
    return column
