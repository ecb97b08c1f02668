"""Samples of other samples: chosen rows of a dataset, and several datasets one after the other."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from packtrain._core.arguments import items, unexpected
from packtrain._core.errors import UsageError
from packtrain._core.schema import LABEL, PAIR, Schema

from ..transforms.batched import Destination
from ..transforms.compose import Compose
from ..transforms.finisher import Finisher
from ..transforms.several_crops import composed
from ..transforms.views import Views
from .samples import PackedSamples, Samples, TransformLike
from .store import Store

NAMES: Final = "`--classes classes.txt`, a file of all class names, one per line in label order"
"""Gives datasets the same class names."""


class SubsetSamples(Samples):
    """Chosen rows of other samples, in the given order.

    Args:
        samples: The samples to choose from.
        rows: Row numbers, negative ones counted from the end, or booleans [rows] that are True for those to take.

    Raises:
        IndexError: A row is outside `samples`.
        UsageError: `rows` are not whole numbers.
    """

    def __init__(self, samples: Samples, rows: Iterable[int]) -> None:
        self._samples = samples
        expected = f"whole numbers, or a boolean for each of the {len(samples)} rows"
        try:
            chosen = np.asarray(rows if hasattr(rows, "__array__") else items("rows", rows, expected))
        except ValueError:
            raise unexpected("rows", rows, expected) from None
        if chosen.dtype == bool:
            if chosen.shape != (len(samples),):
                raise IndexError(f"a mask of shape {chosen.shape} for a dataset of {len(samples)} rows")
            chosen = np.flatnonzero(chosen)
        elif chosen.size and (chosen.ndim != 1 or chosen.dtype.kind not in "iu"):
            raise unexpected("rows", rows, expected)
        # An array, not a list: a list's reference counts would be written to, and so copied, in every forked worker.
        self._rows = chosen.astype(np.int64)
        if len(self._rows) and not (-len(samples) <= self._rows.min() and self._rows.max() < len(samples)):
            raise IndexError(f"rows {self._rows.min()} to {self._rows.max()} of a dataset of {len(samples)} rows")
        self._rows[self._rows < 0] += len(samples)

    @override
    def __len__(self) -> int:
        return len(self._rows)

    @override
    def locate(self, row: int) -> tuple[PackedSamples, int]:
        return self._samples.locate(int(self._rows[row]))

    @override
    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        self._samples.expect(self._rows[rows[_are_inside(rows, len(self))]])

    @override
    def copy_rows(self, rows: npt.NDArray[np.int64], into: Destination) -> bool:
        return _inside(rows, len(self)) and self._samples.copy_rows(self._rows[rows], into)

    @property
    @override
    def classes(self) -> tuple[str, ...] | None:
        return self._samples.classes

    @property
    @override
    def schema(self) -> Schema:
        return self._samples.schema

    @property
    @override
    def fields(self) -> tuple[str, ...] | None:
        return self._samples.fields

    @property
    @override
    def draws(self) -> int:
        return self._samples.draws

    @property
    @override
    def foreign(self) -> bool:
        return self._samples.foreign

    @property
    @override
    def composes(self) -> tuple[Compose | Views, ...]:
        return self._samples.composes

    @property
    @override
    def finishers(self) -> tuple[Finisher, ...] | None:
        return self._samples.finishers

    @property
    @override
    def stores(self) -> tuple[Store, ...]:
        return self._samples.stores

    @cached_property
    def _by_place(self) -> npt.NDArray[np.int64]:
        return np.argsort(self._samples.places_of(self._rows), kind="stable")

    @override
    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        # A row that was chosen several times has several places.
        return self._by_place[places]

    @override
    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        places = np.empty(len(self), np.int64)
        places[self._by_place] = np.arange(len(self))
        return places[rows]

    @override
    def chunk_bounds(self) -> npt.NDArray[np.int64]:
        places = np.sort(self._samples.places_of(self._rows))
        return np.unique(np.searchsorted(places, self._samples.chunk_bounds()))

    @property
    @override
    def labels(self) -> npt.NDArray[Any]:
        return self._samples.labels[self._rows]

    @property
    @override
    def transform(self) -> TransformLike | Sequence[TransformLike] | None:
        return self._samples.transform

    @override
    def with_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> Self:
        other = copy.copy(self)
        other._samples = self._samples.with_transform(transform)
        return other

    @override
    def undecoded(self) -> Self:
        other = copy.copy(self)
        other._samples = self._samples.undecoded()
        return other


class ConcatSamples(Samples):
    """Samples one after the other, each with its own transforms.

    Args:
        parts: The samples to put together.

    Raises:
        UsageError: There are none, or a label stands for different classes, or the fields of their samples differ.
    """

    def __init__(self, parts: Sequence[Samples]) -> None:
        if not parts:
            raise UsageError("concat needs at least one dataset")
        stores = [store for part in parts for store in part.stores]
        require_same_classes(stores)
        _require_names_for_all(stores)
        _check_same_fields(parts)
        if LABEL in (parts[0].fields or PAIR):
            require_same_label_types(parts)
        self._parts = tuple(parts)
        self._ends = list(accumulate(len(part) for part in parts))

    @override
    def __len__(self) -> int:
        return self._ends[-1]

    @override
    def locate(self, row: int) -> tuple[PackedSamples, int]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a dataset of {len(self)} rows")
        row %= len(self)
        number = bisect_right(self._ends, row)
        return self._parts[number].locate(row - (self._ends[number - 1] if number else 0))

    @override
    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        rows = rows[_are_inside(rows, len(self))]
        numbers = np.searchsorted(self._ends, rows, side="right")
        inner = rows - np.array([0, *self._ends])[numbers]
        for number in np.unique(numbers).tolist():
            self._parts[number].expect(inner[numbers == number])

    @override
    def copy_rows(self, rows: npt.NDArray[np.int64], into: Destination) -> bool:
        if not _inside(rows, len(self)):
            return False
        numbers = self._numbers_of(rows)
        inner = rows - self._starts[numbers]
        firsts = self._firsts[numbers]
        for first in np.unique(firsts).tolist():
            mine = firsts == first
            if not self._parts[first].copy_rows(inner[mine], into._replace(at=into.at[mine])):
                return False
        return True

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        return np.array([0, *self._ends])

    @cached_property
    def _firsts(self) -> npt.NDArray[np.int64]:
        """For each part, the first that is the same.

        A dataset that occurs several times, to make an epoch longer, copies all of its rows in one call.
        """
        seen: dict[Samples, int] = {}
        return np.array([seen.setdefault(part, number) for number, part in enumerate(self._parts)])

    def _numbers_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The numbers of the parts in which rows lie."""
        return np.searchsorted(self._starts[1:], rows, side="right")

    @property
    @override
    def classes(self) -> tuple[str, ...] | None:
        # A part may lack the last classes.
        return max((part.classes for part in self._parts), key=lambda names: len(names or ()))

    @property
    @override
    def schema(self) -> Schema:
        return self._parts[0].schema

    @property
    @override
    def fields(self) -> tuple[str, ...] | None:
        return self._parts[0].fields

    @property
    @override
    def draws(self) -> int:
        return max(part.draws for part in self._parts)

    @property
    @override
    def foreign(self) -> bool:
        return any(part.foreign for part in self._parts)

    @property
    @override
    def composes(self) -> tuple[Compose | Views, ...]:
        return tuple(dict.fromkeys(each for part in self._parts for each in part.composes))

    @property
    @override
    def finishers(self) -> tuple[Finisher, ...] | None:
        first, *others = {part.finishers for part in self._parts}
        return None if others else first

    @property
    @override
    def stores(self) -> tuple[Store, ...]:
        return tuple(dict.fromkeys(store for part in self._parts for store in part.stores))

    @override
    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._in_each(places, lambda part, inner: part.rows_at(inner))

    @override
    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._in_each(rows, lambda part, inner: part.places_of(inner))

    @override
    def chunk_bounds(self) -> npt.NDArray[np.int64]:
        first = [0, *self._ends[:-1]]
        pieces = [part.chunk_bounds()[:-1] + start for part, start in zip(self._parts, first, strict=True)]
        return np.concatenate([*pieces, np.array(self._ends[-1:])])

    def _in_each(
        self,
        numbers: npt.NDArray[np.int64],
        function: Callable[[Samples, npt.NDArray[np.int64]], npt.NDArray[np.int64]],
    ) -> npt.NDArray[np.int64]:
        """Applies a function to the numbers that fall into each part."""
        found = np.empty_like(numbers)
        parts = self._numbers_of(numbers)
        in_order = np.argsort(parts, kind="stable")
        ends = np.flatnonzero(np.diff(parts[in_order])) + 1
        for mine in np.split(in_order, ends) if len(numbers) else ():
            number = int(parts[mine[0]])
            start = self._starts[number]
            found[mine] = start + function(self._parts[number], numbers[mine] - start)
        return found

    @property
    @override
    def labels(self) -> npt.NDArray[Any]:
        found = [part.labels for part in self._parts]
        if len({labels.shape[1:] for labels in found}) > 1:
            raise UsageError("the datasets have labels of different lengths, which do not fit in one array")
        return np.concatenate(found)

    @property
    @override
    def transform(self) -> TransformLike | Sequence[TransformLike] | None:
        first, *others = (part.transform for part in self._parts)
        if not all(_same(first, other) for other in others):
            raise UsageError("the datasets were put together with different transforms, and each keeps its own")
        return first

    @override
    def with_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> Self:
        if transform is not None:
            transform = composed(transform)
        return self._changed(lambda part: part.with_transform(transform))

    @override
    def undecoded(self) -> Self:
        return self._changed(lambda part: part.undecoded())

    def _changed(self, change: Callable[[Samples], Samples]) -> Self:
        """These samples with other parts, of which those are the same that were before."""
        changed = {part: change(part) for part in dict.fromkeys(self._parts)}
        other = copy.copy(self)
        other._parts = tuple(changed[part] for part in self._parts)
        return other


def _same(one: object, other: object) -> bool:
    """True for one transform, and for two lists of the same ones."""
    if not (isinstance(one, Compose) and isinstance(other, Compose)):
        return one is other
    return len(one.given) == len(other.given) and all(a is b for a, b in zip(one.given, other.given, strict=True))


def require_same_classes(stores: Iterable[Store]) -> None:
    """Makes sure that a label stands for the same class in all datasets. Those without class names are not compared.

    Raises:
        UsageError: It does not.
    """
    known = {classes: store.name for store in stores if (classes := store.schema.classes) is not None}
    longest = max(known, key=len, default=())
    for classes, name in known.items():
        for label, (one, other) in enumerate(zip(longest, classes, strict=False)):
            if one != other:
                raise UsageError(
                    f"{known[longest]} and {name} number their classes differently: label {label} is {one!r} in "
                    f"{known[longest]}, but {other!r} in {name}: pack both with {NAMES}"
                )


def require_same_label_types(parts: Sequence[Samples]) -> None:
    """Makes sure that all labels are of one type and length, unless a `target_transform` makes others of them.

    Raises:
        UsageError: They are not.
    """
    if any(len(part) and part.locate(0)[0].target_transform is not None for part in parts):
        return
    first, *others = (store for part in parts for store in part.stores)
    for other in others:
        one, two = first.schema.labels, other.schema.labels
        if one != two:
            raise UsageError(
                f"{first.name} has labels of type {one}, but {other.name} of type {two}: pack both with the same "
                "labels, or open each with a `target_transform` that makes them alike"
            )


def _require_names_for_all(stores: Sequence[Store]) -> None:
    """Makes sure that all datasets have class names, or none has: together they have one list of names.

    Raises:
        UsageError: Some have.
    """
    named = [store.name for store in stores if store.schema.classes is not None]
    bare = [store.name for store in stores if store.schema.classes is None]
    if named and bare:
        raise UsageError(
            f"{named[0]} has class names, but {bare[0]} has none, so it is not known whether their labels mean the "
            f"same: pack {bare[0]} with {NAMES}"
        )


def _check_same_fields(parts: Sequence[Samples]) -> None:
    """Makes sure that the samples of all parts have the same fields, with the same meaning.

    Raises:
        UsageError: They differ.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.fields != first.fields:
            ours, theirs = (found.fields or "(image, label)" for found in (first, part))
            raise UsageError(f"the samples of the datasets have different fields: {ours} and {theirs}")
        for name in first.fields or ():
            one, other = (_meaning(found.schema, name) for found in (first, part))
            if one != other:
                raise UsageError(f"field {name} differs between the datasets: {one} and {other}")


def _meaning(schema: Schema, name: str) -> dict[str, Any]:
    """What decides what the values of a field are; other things may differ, such as how images are stored."""
    field = next((field for field in schema.fields if field.name == name), None)
    return {} if field is None else {key: getattr(field, key) for key in ("kind", "dtype", "shape", "classes")}


def _inside(rows: npt.NDArray[np.int64], length: int) -> bool:
    """True if all of these are rows of a dataset, and none is counted from the end."""
    return bool(_are_inside(rows, length).all())


def _are_inside(rows: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.bool_]:
    """True for each that is a row of a dataset, and is not counted from the end."""
    return (rows >= 0) & (rows < length)
