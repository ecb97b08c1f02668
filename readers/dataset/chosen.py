"""Row numbers that a caller chooses. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import items, unexpected


def chosen_rows(rows: Iterable[int], length: int) -> npt.NDArray[np.int64]:
    """Some rows of a dataset of so many, int64 [any], in the given order.

    Args:
        rows: Row numbers, negative ones counted from the end, or booleans [rows] that are True for those to take.
        length: Number of rows of the dataset.

    Raises:
        IndexError: A row is outside.
        UsageError: `rows` are not whole numbers.
    """
    expected = f"whole numbers, or a boolean for each of the {length} rows"
    try:
        numbers = np.asarray(rows if hasattr(rows, "__array__") else items("rows", rows, expected))
    except ValueError:
        raise unexpected("rows", rows, expected) from None
    if numbers.dtype == bool:
        if numbers.shape != (length,):
            raise IndexError(f"a mask of shape {numbers.shape} for a dataset of {length} rows")
        numbers = np.flatnonzero(numbers)
    elif numbers.size and (numbers.ndim != 1 or numbers.dtype.kind not in "iu"):
        raise unexpected("rows", rows, expected)
    numbers = numbers.astype(np.int64)
    if len(numbers) and not (-length <= numbers.min() and numbers.max() < length):
        raise IndexError(f"rows {numbers.min()} to {numbers.max()} of a dataset of {length} rows")
    numbers[numbers < 0] += length
    return numbers
