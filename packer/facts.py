"""Facts about samples, and how those of several samples join: which field, shape or label type has room for all.

They join when a packing is planned, when shards are indexed, and when the filler of a cache has its first samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from packtrain._core.options import LabelSpec
from packtrain._core.schema import Field

Shape = tuple[int | None, ...]


def join_shapes(shapes: Iterable[Shape]) -> Shape | None:
    """Return the shape of arrays of all these shapes; None if they differ in more than the first size."""
    first, *others = set(shapes)
    if not others:
        return first
    rests = {(len(shape), shape[1:]) for shape in (first, *others)}
    return (None, *first[1:]) if len(rests) == 1 else None


def join_fields(here: Field, there: Field) -> Field | None:
    """Return the field that has room for the records of both, under the name of the first; None if there is none."""
    if here.kind != there.kind:
        return None
    if here.kind == "mask" and there.dtype == "<u2":
        return replace(here, dtype=there.dtype)
    if here.shape is None or there.shape is None:
        return here
    shape = join_shapes((here.shape, there.shape)) if here.dtype == there.dtype else None
    return None if shape is None else replace(here, shape=shape)


def join_labels(here: LabelSpec, there: LabelSpec) -> LabelSpec | None:
    """Return the type of labels that has room for both; None if only one has labels, or their lengths differ."""
    if here.count != there.count or (here.kind == "none") != (there.kind == "none"):
        return None
    return here if here.kind == "float" else there


def fits_shape(found: Sequence[int], wanted: Sequence[int | None]) -> bool:
    """Check that each size is the one that is wanted, where one is."""
    return len(found) == len(wanted) and all(want in (None, size) for size, want in zip(found, wanted, strict=True))


def in_words(dtype: np.dtype[Any], shape: Sequence[int | None]) -> str:
    """Describe arrays for messages.

    >>> in_words(np.dtype("<f4"), (None, 3))
    'float32 [N, 3]'
    """
    return f"{dtype.name} [{', '.join('N' if size is None else str(size) for size in shape)}]"
