"""The samples of a dataset, by row: chosen rows of packed datasets that stand one after the other."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from packtrain._codec.decoders import Decoder
from packtrain._codec.decoders import decoder as find_decoder
from packtrain._codec.stages import OTHER, TRANSFORM, OnStage, untimed
from packtrain._core.arguments import function
from packtrain._core.errors import UsageError
from packtrain._core.overriding import override
from packtrain._core.schema import CROP, IMAGE, LABEL, Schema

from ..transforms.base import Transform
from ..transforms.batched import Destination
from ..transforms.compose import Compose
from ..transforms.executors import Into
from ..transforms.finisher import Finisher
from ..transforms.pipeline import finishers_of
from ..transforms.views import Views, composed
from .chosen import chosen_rows
from .copying import RawImages, copy_batch
from .images import StoredImages
from .kept import KeptRows
from .named import NamedSamples, checked_fields, checked_name
from .query import Query, pieces
from .records import counted
from .store import Store

TransformLike = Callable[[Any], Any]
"""Any callable on an image or a label: packtrain's transforms, torchvision's, or a function."""


class ByPart(NamedTuple):
    """Rows of several packed datasets: first those of the first one, then those of the second one, and so on.

    Attributes:
        packed: The datasets.
        counts: Number of rows of each, at least 1, int64 [datasets].
        order: Which row each was before, int64 [rows].
        rows: Their rows there, int64 [rows].
    """

    packed: list[PackedSamples]
    counts: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


class Chunks(NamedTuple):
    """The chunks of samples, in the order of places.

    Attributes:
        bounds: The places at which they begin, and the number of places: int64 [chunks + 1].
        store: The store that each lies in, as a number of `Samples.stores`, int64 [chunks].
        number: Its number among the chunks of that store, int64 [chunks].
    """

    bounds: npt.NDArray[np.int64]
    store: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]


class Samples:
    """Chosen rows of parts that stand one after the other. Every `ImageDataset` is built on one of these.

    Args:
        parts: Packed datasets, or rows of others. Several that are the same stay one object, with one array of rows.
        rows: Rows of the parts together, int64 [any]; None: all of them, of which no list is made. An array: the
            reference counts of a list would be written to, and so the list copied, in every forked worker.
    """

    def __init__(self, parts: Sequence[Samples], rows: npt.NDArray[np.int64] | KeptRows | None = None) -> None:
        self._parts = tuple(parts)
        self._rows = rows
        self._starts = [0, *accumulate(map(len, self._parts))]
        self._length = self._starts[-1] if rows is None else len(rows)
        self._packed = tuple(dict.fromkeys(packed for part in self._parts for packed in part.packed))

    @property
    def packed(self) -> tuple[PackedSamples, ...]:
        """The packed datasets, each once."""
        return self._packed

    def __len__(self) -> int:
        return self._length

    def locate(self, row: int) -> tuple[PackedSamples, int]:
        """The packed dataset that holds `row`, and the row's number there."""
        if not 0 <= row < self._length:
            row = counted(row, self._length)
        if self._rows is not None:
            row = self._rows.item(row)
        number = bisect_right(self._starts, row) - 1
        return self._parts[number].locate(row - self._starts[number])

    def chosen(self, rows: Iterable[int]) -> Samples:
        """Some of these rows, in the given order.

        Args:
            rows: Row numbers, negative ones counted from the end, or booleans [rows] that are True for those to take.

        Raises:
            IndexError: A row is outside.
            UsageError: `rows` are not whole numbers.
        """
        return Samples((self,), chosen_rows(rows, len(self)))

    def where(self, expression: str) -> Samples:
        """Those of these rows that a filter takes, in the same order; raises what `ImageDataset.where` raises."""
        queries = {packed: Query(packed.store, expression) for packed in self.packed}
        taken = np.zeros(len(self), bool)
        for numbers in pieces(len(self)):
            for packed, mine, inner in self.located(numbers):
                taken[numbers[mine]] = queries[packed].matches(inner, numbers[mine])
        return self.chosen(taken)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label, or None."""
        # A part may lack the last classes.
        return max((packed.store.schema.classes for packed in self.packed), key=lambda names: len(names or ()))

    @property
    def schema(self) -> Schema:
        """The fields and labels that are stored; those of the first part."""
        return self.packed[0].store.schema

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Names of the fields that a sample consists of; None for (image, label), a plain tuple."""
        return self.packed[0].names

    @property
    def draws(self) -> int:
        """Number of random numbers that `make` takes: that of the transform that needs the most."""
        return max((compose.draws for compose in self.composes), default=0)

    @property
    def foreign(self) -> bool:
        """True if callables that are not packtrain's take part, which may draw random numbers themselves."""
        targets = any(packed.target_transform is not None for packed in self.packed)
        return targets or any(compose.foreign for compose in self.composes)

    @property
    def composes(self) -> tuple[Compose | Views, ...]:
        """The transforms of all parts."""
        return tuple(dict.fromkeys(packed.compose for packed in self.packed if packed.compose is not None))

    @property
    def finishers(self) -> tuple[Finisher, ...] | None:
        """The steps on tensors that the transforms of all images end with, for each view; empty if there are none.

        None if some samples end with others.
        """
        first, *others = {finishers_of(packed.compose) for packed in self.packed}
        return None if others else first

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores that records are read from, each once."""
        return tuple(dict.fromkeys(packed.store for packed in self.packed))

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows whose records lie at these places of the physical order; both int64 [any]."""
        # A row that was chosen several times has several places.
        return (
            self._in_each(lambda part, inner: part.rows_at(inner), places)
            if self._rows is None
            else self._by_place[places]
        )

    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The places of these rows, the inverse of `rows_at`; takes time and memory proportional to all rows."""
        if self._rows is None:
            return self._in_each(lambda part, inner: part.places_of(inner), rows)
        places = np.empty(len(self), np.int64)
        places[self._by_place] = np.arange(len(self))
        return places[rows]

    def chunk_bounds(self) -> npt.NDArray[np.int64]:
        """The places at which chunks begin, and the number of places: int64 [chunks + 1]; raises what `chunks` does."""
        return self.chunks().bounds

    def chunks(self) -> Chunks:
        """The chunks that a cache for a part of the dataset fetches, also where the dataset is on a local disk.

        A chunk of which no row was chosen is none.

        Raises:
            UsageError: There are none.
            CorruptFile: The index is damaged.
        """
        stores = {store: number for number, store in enumerate(self.stores)}
        begins, store, number = ([np.empty(0, np.int64)] for _ in range(3))
        for part, start in zip(self._parts, self._starts, strict=False):
            chunks = part.chunks()
            begins.append(chunks.bounds[:-1] + start)
            store.append(np.array([stores[each] for each in part.stores])[chunks.store])
            number.append(chunks.number)
        found = Chunks(np.concatenate([*begins, self._starts[-1:]]), np.concatenate(store), np.concatenate(number))
        if self._rows is None:
            return found
        bounds = np.searchsorted(np.sort(self._inner_places()), found.bounds)
        chosen = np.diff(bounds) > 0
        return Chunks(np.unique(bounds), found.store[chosen], found.number[chosen])

    @property
    def labels(self) -> npt.NDArray[Any]:
        """All labels without `target_transform`, in row order: [rows] or [rows, K].

        Raises:
            UsageError: There are none, or they are of different shapes.
            CorruptFile: The index is damaged.
        """
        found = [part.labels for part in self._parts]
        if len({labels.shape[1:] for labels in found}) > 1:
            raise UsageError("the datasets have labels of different lengths, which do not fit in one array")
        labels = found[0] if len(found) == 1 else np.concatenate(found)
        return labels if self._rows is None else labels[np.asarray(self._rows)]

    @property
    def transform(self) -> TransformLike | Sequence[TransformLike] | None:
        """The transform of the images: one of packtrain's as it was given, otherwise a `Compose`.

        Raises:
            UsageError: There are several.
        """
        first, *others = (packed.given for packed in self.packed)
        if not all(_same(first, other) for other in others):
            raise UsageError("the datasets were put together with different transforms, and each keeps its own")
        return first

    def with_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> Samples:
        """The same rows with another transform, over the same open shards; `target_transform` stays."""
        compose, given = _transforms(transform)
        return self._changed(lambda packed: packed.changed(compose=compose, given=given))

    def with_target_transform(self, target_transform: TransformLike | None) -> Samples:
        """The same rows with another transform of their labels, over the same open shards."""
        target_transform = function("target_transform", target_transform)
        return self._changed(lambda packed: packed.changed(target_transform=target_transform))

    def undecoded(self) -> Samples:
        """The same samples with their images left to be decoded by somebody else: `Undecoded` in place of pixels.

        Raises:
            UsageError: There is no image, it is stored raw, or the transform does more than crop, resize and flip.
        """
        return self._changed(_undecoded)

    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        """Says which rows are read soon, where their records have to be fetched from far away. Does not wait for them.

        Args:
            rows: int64 [any]. Those that there are not are left out.
        """
        rows = rows[(rows >= 0) & (rows < len(self))]
        for part, _, inner in self._split(rows if self._rows is None else self._rows[rows]):
            part.expect(inner)

    def copy_rows(self, rows: npt.NDArray[np.int64], into: Destination) -> bool:
        """Makes the samples of a batch at once, with the results of `make`, if that only takes copying raw records.

        Args:
            rows: int64 [samples].
            into: Where the samples go.

        Returns:
            True if they were made. If False, call `make` for each row: it makes the sample or raises the error.
        """
        if not self._has_raw or (len(rows) and not (rows.min() >= 0 and rows.max() < len(self))):
            return False
        found = self.by_part(rows)
        raw = [packed.raw for packed in found.packed]
        return copy_batch(raw, found.counts, found.rows, into._replace(at=into.at[found.order]))

    @cached_property
    def _has_raw(self) -> bool:
        """True if samples of some parts may be made by copies alone."""
        return any(packed.raw is not None for packed in self.packed)

    @cached_property
    def _nested(self) -> bool:
        """True if some parts are chosen rows of others."""
        return any(not isinstance(part, PackedSamples) for part in self._parts)

    @cached_property
    def _begins(self) -> npt.NDArray[np.int64]:
        return np.array(self._starts)

    @cached_property
    def _firsts(self) -> npt.NDArray[np.int64]:
        """For each part, the first that is the same.

        A dataset that occurs several times, to make an epoch longer, copies all of its rows in one call.
        """
        seen: dict[Samples, int] = {}
        return np.array([seen.setdefault(part, number) for number, part in enumerate(self._parts)])

    def _split(
        self, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[Samples, npt.NDArray[np.int64] | slice, npt.NDArray[np.int64]]]:
        """Each part that has some of these rows of all parts: the part, where in `rows` they stand, and its rows."""
        if len(self._parts) == 1:
            yield self._parts[0], slice(None), rows
            return
        firsts, inner = self._numbered(rows)
        in_order = np.argsort(firsts, kind="stable")
        for mine in np.split(in_order, np.flatnonzero(np.diff(firsts[in_order])) + 1) if len(rows) else ():
            yield self._parts[firsts[mine[0]]], mine, inner[mine]

    def _numbered(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first part that is the one of each of these rows of all parts, and the rows there."""
        if len(self._parts) == 1:
            return np.zeros(len(rows), np.int64), rows
        numbers = np.searchsorted(self._begins, rows, side="right") - 1
        return self._firsts[numbers], rows - self._begins[numbers]

    def by_part(self, rows: npt.NDArray[np.int64]) -> ByPart:
        """The packed datasets that have some of these rows, and which each has."""
        if self._nested:
            found = list(self.located(rows))
            return ByPart(
                [packed for packed, _, _ in found],
                np.array([len(inner) for _, _, inner in found], np.int64),
                np.concatenate([rows[:0], *(mine for _, mine, _ in found)]),
                np.concatenate([rows[:0], *(inner for _, _, inner in found)]),
            )
        numbers, inner = self._numbered(rows if self._rows is None else self._rows[rows])
        order = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers, minlength=len(self._parts))
        used = np.flatnonzero(counts)
        packed = [part for number in used.tolist() for part in self._parts[number].packed]
        return ByPart(packed, counts[used], order, inner[order])

    def located(
        self, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[PackedSamples, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Each packed dataset that has some of these rows: the dataset, where in `rows` they stand, and its rows."""
        for part, mine, inner in self._split(rows if self._rows is None else self._rows[rows]):
            places = np.arange(len(rows))[mine]
            for packed, of_part, innermost in part.located(inner):
                yield packed, places[of_part], innermost

    def _in_each(
        self,
        function: Callable[[Samples, npt.NDArray[np.int64]], npt.NDArray[np.int64]],
        numbers: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Rows or places of all parts, by a function from those of a part to those of the same part."""
        found = np.empty_like(numbers)
        for part, mine, inner in self._split(numbers):
            # Whatever stands before a part is what a row of it has more than there.
            found[mine] = numbers[mine] - inner + function(part, inner)
        return found

    @cached_property
    def _by_place(self) -> npt.NDArray[np.int64]:
        return np.argsort(self._inner_places(), kind="stable")

    def _inner_places(self) -> npt.NDArray[np.int64]:
        """The places of the chosen rows among those of all parts."""
        assert self._rows is not None
        return self._in_each(lambda part, inner: part.places_of(inner), np.asarray(self._rows))

    def _changed(self, change: Callable[[PackedSamples], PackedSamples]) -> Samples:
        """The same rows of other packed datasets; parts that are the same stay the same."""
        changed = {part: part._changed(change) for part in dict.fromkeys(self._parts)}
        return Samples([changed[part] for part in self._parts], self._rows)

    def make(
        self,
        row: int,
        random: Sequence[float] | None = None,
        into: Into = None,
        on_stage: OnStage = untimed,
        *,
        finish: bool = True,
    ) -> Any:
        """``dataset[row]`` with given random numbers, if possible in given memory.

        It is (image, label), or a named tuple of the `fields`, in which arrays may be read-only views of records.

        Args:
            row: The row.
            random: Uniform in [0, 1), `draws` of them; None draws them from torch's default generator. Only packtrain's
                own transforms use them.
            into: uint8 [height, width, channels]. If all transforms are packtrain's and the image turns out to have
                this shape, its pixels are written there, and `into` itself is returned as the image.
            on_stage: Called at the end of each stage.
            finish: False to leave out the steps that `finishers` run.
        """
        packed, row = self.locate(row)
        if packed.named is not None:
            return packed.named.make(row, random, into, on_stage, finish=finish)
        assert packed.images is not None
        image: Any = packed.images.make(row, random, into, on_stage, finish=finish)
        label: Any = packed.store.label(row)
        on_stage(OTHER)
        if packed.target_transform is not None:
            label = packed.target_transform(label)
            on_stage(TRANSFORM)
        return image, label

    def filename(self, row: int) -> str:
        """The path of `row` as it stands in the list."""
        packed, row = self.locate(row)
        return packed.store.filename(row)

    def line(self, row: int) -> int:
        """The 0-based line of `row` in the list."""
        packed, row = self.locate(row)
        return packed.store.line(row)

    def describe(self, row: int) -> str:
        """Names `row` for a person: dataset, row, line, path and shard."""
        packed, row = self.locate(row)
        return f"{packed.store.name}: {packed.store.describe(packed.store.checked_row(row))}"

    def will_need(self, row: int) -> int:
        """Requests the records of `row` ahead of their use, see `FieldRecords.will_need`; 0 if there is no such row."""
        try:
            packed, row = self.locate(row)
        except IndexError:
            return 0
        return sum(records.will_need(row) for records in packed.records)


def _same(one: object, other: object) -> bool:
    """True for one transform, and for two lists of the same ones."""
    if not (isinstance(one, Compose) and isinstance(other, Compose)):
        return one is other
    return len(one.given) == len(other.given) and all(a is b for a, b in zip(one.given, other.given, strict=True))


class PackedSamples(Samples):
    """The samples of a dataset on disk. They never change, so that whoever uses them keeps what it was made for.

    Attributes:
        store: The records.
        decoder: Decodes images.
        records: The records of the fields that samples consist of.
        compose: The transform, or None.
        given: The transform: one of packtrain's as it was given, otherwise the same as `compose`.
        names: Names of the fields that a sample consists of; None for (image, label), a plain tuple.
        images: Makes the images of samples that are (image, label); else None.
        named: Makes samples of named fields; None if they are (image, label).
        target_transform: Called with each label, or None.
    """

    def __init__(
        self,
        store: Store,
        transform: TransformLike | Sequence[TransformLike] | None = None,
        target_transform: TransformLike | None = None,
        *,
        decoder: str = "auto",
        scaled: bool = False,
        fields: Iterable[str] | None = None,
    ) -> None:
        self.target_transform = function("target_transform", target_transform)
        self.store = store
        self.decoder: Final[Decoder] = find_decoder(decoder)
        try:
            self.names = checked_fields(fields, self.store.schema)
        except UsageError as error:
            raise UsageError(f"{self.store.name}: {error}") from None
        self._scaled = scaled
        self._undecoded = False
        self.compose, self.given = _transforms(transform)
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        # The others are bound to shards that are open here.
        return {name: value for name, value in vars(self).items() if name not in ("records", "images", "named", "raw")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def _prepare(self) -> None:
        """Makes what makes the samples."""
        stored = (IMAGE,) if self.names is None else self.names
        self.records = tuple(self.store.field(name) for name in stored if name not in (LABEL, CROP))
        self.images: StoredImages | None = None
        self.named: NamedSamples | None = None
        self.raw: RawImages | None = None
        if self.names is None:
            self.images = StoredImages(
                self.store.field(IMAGE), self.decoder, self.compose, scaled=self._scaled, undecoded=self._undecoded
            )
            if self.target_transform is None:
                self.raw = RawImages.of(self.images, self.store)
        else:
            self.named = NamedSamples(
                self.store,
                self.names,
                self.compose,
                self.decoder,
                scaled=self._scaled,
                target_transform=self.target_transform,
                undecoded=self._undecoded,
            )

    @property
    @override
    def labels(self) -> npt.NDArray[Any]:
        if self.store.schema.labels.kind == "none":
            raise UsageError(f"{self.store.name} has no labels")
        return self.store.all_labels()

    @property
    @override
    def packed(self) -> tuple[PackedSamples, ...]:
        return (self,)

    @override
    def __len__(self) -> int:
        return len(self.store)

    @override
    def locate(self, row: int) -> tuple[PackedSamples, int]:
        return self, row

    @override
    def located(
        self, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[PackedSamples, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        yield self, np.arange(len(rows)), rows

    @override
    def by_part(self, rows: npt.NDArray[np.int64]) -> ByPart:
        counts = np.array([len(rows)] if len(rows) else [], np.int64)
        return ByPart([self][: len(counts)], counts, np.arange(len(rows)), rows)

    @override
    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.store.rows_at(places)

    @override
    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.store.places()[rows]

    @override
    def chunks(self) -> Chunks:
        bounds = self.store.chunk_bounds()
        return Chunks(bounds, np.zeros(len(bounds) - 1, np.int64), np.arange(len(bounds) - 1))

    @override
    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        if self.store.chunks is not None:
            self.store.expect(rows, [records.field.name for records in self.records])

    @override
    def _changed(self, change: Callable[[PackedSamples], PackedSamples]) -> PackedSamples:
        return change(self)

    def changed(self, **changed: Any) -> Self:
        """The same with other attributes, such as the store of another state of the dataset."""
        other = copy.copy(self)
        vars(other).update(changed)
        other._prepare()
        return other

    def value(self, row: int, name: str) -> Any:
        """A field of `row` without the transforms; raises what `ImageDataset.value` raises."""
        if name == LABEL:
            return self.store.label(row)
        records = self.store.field(checked_name(name, self.store.schema.names))
        if records.field.kind == "image":
            return StoredImages(records, self.decoder, None, scaled=False).make(row)
        return records.value(row)


def _transforms(
    transform: TransformLike | Sequence[TransformLike] | None,
) -> tuple[Compose | Views | None, TransformLike | None]:
    """A transform as samples are made with it, and as it is shown."""
    compose = None if transform is None else composed(transform)
    # Neither a list nor somebody else's transform says what becomes of it.
    return compose, transform if isinstance(transform, Transform) else compose


def _undecoded(packed: PackedSamples) -> PackedSamples:
    if packed.names is not None and IMAGE not in packed.names:
        raise UsageError(f"{packed.store.name}: fields: there is no image to decode among {', '.join(packed.names)}")
    try:
        return packed.changed(_undecoded=True)
    except UsageError as error:
        raise UsageError(f"{packed.store.name}: {error}") from None
