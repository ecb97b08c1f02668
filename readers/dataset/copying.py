"""Makes the samples of a batch at once, where that only takes copying or resizing rectangles of raw records.

What the index says of them is taken from all parts of a dataset, all rectangles are planned together, and one call
copies them. So a batch costs nearly the same whether its rows come from one packed dataset or from twenty segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from packtrain._codec.native import extension
from packtrain._codec.native.places import CROP, PLACE
from packtrain._core.errors import PacktrainError
from packtrain._core.index import Columns
from packtrain._core.schema import LABEL

from ..transforms.batched import BatchPlan, Destination, plan_batch
from ..transforms.compose import Compose
from ..transforms.pipeline import Pipeline
from .images import StoredImages
from .records import FieldRecords
from .shards import Shards, WrongShard
from .store import NO_LABEL, RecordStore, Store

Numbers = npt.NDArray[np.int64]
_OF_FIELD: Final = ("offset", "length", "crc32c", "width", "height")
"""The columns of the field that `PLACE` has, too."""
_FILE_BITS: Final = 32


class RawImages(NamedTuple):
    """The images of a packed dataset whose samples are made by copying or resizing raw records alone.

    Attributes:
        compose: Their transform.
        channels: Channels of their pixels.
        records: Their records.
        shards: Where these lie.
        columns: Columns of the index: ``shard``, then `_OF_FIELD`.
        labels: The column of labels; None if there are none.
        checked: What has to be checked before the columns are used.
        form: What parts must have in common that are copied together.
    """

    compose: Compose
    channels: int
    records: FieldRecords
    shards: Shards
    columns: tuple[npt.NDArray[Any], ...]
    labels: npt.NDArray[Any] | None
    checked: tuple[Columns, ...]
    form: object

    @classmethod
    def of(cls, images: StoredImages, store: Store) -> Self | None:
        """Those of a store; None if its samples take more than copies."""
        records, options = images.records, images.records.field.store
        if not isinstance(images.pipeline, Pipeline) or options is None or not options.store_mode.is_raw:
            return None
        if not isinstance(store, RecordStore) or not isinstance(records, FieldRecords) or records.shards.io != "mmap":
            return None
        if not isinstance(records.columns, Columns):
            return None
        labeled = store.label_columns
        labels = None if labeled is None else labeled[LABEL]
        compose = images.pipeline.compose
        return cls(
            compose,
            options.channels,
            records,
            records.shards,
            (store.index["shard"], *(records.columns[name] for name in _OF_FIELD)),
            labels,
            tuple(dict.fromkeys(each for each in (store.index, records.columns, labeled) if each is not None)),
            (compose, None if labels is None else (labels.dtype, labels.shape[1:])),
        )


class _Parts:
    """Rows of several datasets: first those of the first one, then those of the second one, and so on.

    Args:
        parts: The images of each.
        counts: Number of rows of each, at least 1, int64 [parts].
        rows: Their rows, all of which exist, int64 [rows].
    """

    def __init__(self, parts: Sequence[RawImages], counts: Numbers, rows: Numbers) -> None:
        self.parts, self.counts, self.rows = parts, counts, rows
        self._stops = np.cumsum(counts).tolist()

    def __iter__(self) -> Iterator[tuple[RawImages, slice]]:
        start = 0
        for part, stop in zip(self.parts, self._stops, strict=True):
            yield part, slice(start, stop)
            start = stop

    def take(self, columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The entries of all rows in a column of each part, after its check."""
        assert extension is not None
        found = np.empty((len(self.rows), *columns[0].shape[1:]), columns[0].dtype)
        extension.take_rows(columns, self.counts, self.rows, found)
        return found

    def check(self) -> None:
        """Checks the index wherever these rows need it."""
        for part, mine in self:
            for columns in part.checked:
                if 1 in columns.unchecked:
                    columns.check_rows(self.rows[mine])

    def places(self) -> tuple[npt.NDArray[np.void], list[memoryview]] | None:
        """The places of the records, without what a transform decides, and the files; None if they are not at hand."""
        numbers, *others = (self.take(columns) for columns in zip(*(part.columns for part in self.parts), strict=True))
        places = np.empty(len(self.rows), PLACE)
        for name, values in zip(_OF_FIELD, others, strict=True):
            places[name] = values
        files, offsets = numbers.astype(np.int64), others[0]
        for part, mine in self:
            found = part.shards.files(files[mine], offsets[mine])
            if found is None:
                return None
            files[mine], offsets[mine] = found
        places["offset"] = offsets
        files |= np.repeat(np.arange(len(self.parts)) << _FILE_BITS, self.counts)
        names, places["shard"] = np.unique(files, return_inverse=True)
        part_of, low = self.parts, (1 << _FILE_BITS) - 1
        return places, [part_of[name >> _FILE_BITS].shards.view(name & low) for name in names.tolist()]

    def compared(self) -> npt.NDArray[np.bool_]:
        """True for records to compare with their checksums."""
        found = np.repeat([part.records.compares for part in self.parts], self.counts)
        for part, mine in self:
            if part.records.sound is not None:
                found[mine] &= ~part.records.sound.of(self.rows[mine])
        return found

    def note(self, lengths: Numbers) -> None:
        """Notes that all of them were copied, records of so many bytes."""
        sizes = np.add.reduceat(lengths, np.cumsum(self.counts) - self.counts).tolist()
        for (part, mine), size in zip(self, sizes, strict=True):
            part.records.read_bytes += size
            if part.records.compares and part.records.sound is not None:
                part.records.sound.add(self.rows[mine])


def copy_batch(parts: Sequence[RawImages | None], counts: Numbers, rows: Numbers, into: Destination) -> bool:
    """Makes samples of several packed datasets.

    Args:
        parts: The images of each; None for one whose samples take more than copies.
        counts: Number of samples of each, at least 1, int64 [parts].
        rows: Rows of the samples there, part by part, all of which exist, int64 [samples].
        into: Where the samples go, in this order.

    Returns:
        True if all were made. False if one has to be made by itself, which makes it or raises the error.
    """
    alike: dict[object, list[int]] = {}
    for number, part in enumerate(parts):
        if part is None or part.channels != into.images.shape[3] or extension is None:
            return False
        alike.setdefault(part.form, []).append(number)
    found = [part for part in parts if part is not None]
    if len(alike) <= 1:
        return not found or _copy(_Parts(found, counts, rows), into)
    part_of = np.repeat(np.arange(len(parts)), counts)
    for numbers in alike.values():
        mine = np.isin(part_of, numbers)
        group = _Parts([found[number] for number in numbers], counts[numbers], rows[mine])
        if not _copy(group, into._replace(at=into.at[mine])):
            return False
    return True


def _copy(parts: _Parts, into: Destination) -> bool:
    assert extension is not None
    try:
        parts.check()
        found = parts.places()
    except (PacktrainError, WrongShard, OSError):
        return False
    if found is None:
        return False
    places, views = found
    plan = _plan(parts.parts[0].compose, places, into)
    if plan is None:
        return False
    places["target"], places["row"] = into.at, into.rows[into.at]
    for name, column in zip(CROP, plan.boxes.T, strict=True):
        places[name] = column
    compared = parts.compared()
    for check in (True, False):
        mine = compared if check else ~compared
        chosen = places if mine.all() else places[mine]
        if len(chosen) and not extension.copy_records(
            views, chosen, check, plan.resample, plan.style, into.images, into.current
        ):
            return False
    parts.note(places["length"])
    labels = [part.labels for part in parts.parts if part.labels is not None]
    into.labels[into.at] = parts.take(labels) if labels else NO_LABEL
    return True


def _plan(compose: Compose, places: npt.NDArray[np.void], into: Destination) -> BatchPlan | None:
    """Plans the rectangles; None if the index names an image without pixels, or the transform is of another kind."""
    widths, heights = places["width"], places["height"]
    if min(widths.min(), heights.min()) < 1:
        return None
    return plan_batch(compose, into.images.shape[1:3], widths, heights, into.random[into.at])
