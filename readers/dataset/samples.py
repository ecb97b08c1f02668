"""What a loader needs from a dataset: samples by row, made with given random numbers, and where their records lie."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from packtrain._codec.decoders import Decoder
from packtrain._codec.decoders import decoder as find_decoder
from packtrain._codec.stages import OTHER, TRANSFORM, OnStage, untimed
from packtrain._core.arguments import function
from packtrain._core.errors import DatasetError, UsageError
from packtrain._core.schema import CROP, IMAGE, LABEL, Schema

from ..transforms.base import Transform
from ..transforms.batched import Destination, plan_batch
from ..transforms.compose import Compose
from ..transforms.executors import Into
from ..transforms.finisher import Finisher
from ..transforms.pipeline import Pipeline
from ..transforms.several_crops import composed
from ..transforms.sharing import finishers_of
from ..transforms.views import Views
from .images import StoredImages
from .named import NamedSamples, checked_fields, checked_name
from .records import FieldRecords
from .store import RecordStore, Store

TransformLike = Callable[[Any], Any]
"""Any callable on an image or a label: packtrain's transforms, torchvision's, or a function."""


class Samples(ABC):
    """The samples of a dataset, by row. Every `ImageDataset` is built on one of these."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def locate(self, row: int) -> tuple[PackedSamples, int]:
        """The packed dataset that holds `row`, and the row's number there."""

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label, or None."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """What is stored for each sample."""

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...] | None:
        """Names of the fields that a sample consists of; None for (image, label), a plain tuple."""

    @property
    @abstractmethod
    def draws(self) -> int:
        """Number of random numbers that `make` takes: that of the transform that needs the most."""

    @property
    @abstractmethod
    def foreign(self) -> bool:
        """True if callables that are not packtrain's take part, which may draw random numbers themselves."""

    @property
    @abstractmethod
    def composes(self) -> tuple[Compose | Views, ...]:
        """The transforms of all parts."""

    @property
    @abstractmethod
    def finishers(self) -> tuple[Finisher, ...] | None:
        """The steps on tensors that the transforms of all images end with, for each view; empty if there are none.

        None if some samples end with others.
        """

    @property
    @abstractmethod
    def stores(self) -> tuple[Store, ...]:
        """The stores that records are read from, each once."""

    @abstractmethod
    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows whose records lie at these places of the physical order; both int64 [any]."""

    @abstractmethod
    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The places of these rows, the inverse of `rows_at`; takes time and memory proportional to all rows."""

    @abstractmethod
    def chunk_bounds(self) -> npt.NDArray[np.int64]:
        """The places at which chunks begin, and the number of places: int64 [chunks + 1].

        A chunk is what a cache for a part of the dataset fetches at a time, also where the dataset is on a local disk.

        Raises:
            UsageError: There are none.
            CorruptFile: The index is damaged.
        """

    @property
    @abstractmethod
    def labels(self) -> npt.NDArray[Any]:
        """All labels without `target_transform`, in row order: [rows] or [rows, K].

        Raises:
            UsageError: There are none, or they are of different shapes.
            CorruptFile: The index is damaged.
        """

    @property
    @abstractmethod
    def transform(self) -> TransformLike | Sequence[TransformLike] | None:
        """The transform of the images: one of packtrain's as it was given, otherwise a `Compose`.

        Raises:
            UsageError: There are several.
        """

    @abstractmethod
    def with_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> Self:
        """The same rows with another transform, over the same open shards; `target_transform` stays."""

    @abstractmethod
    def undecoded(self) -> Self:
        """The same samples with their images left to be decoded by somebody else: `Undecoded` in place of pixels.

        Raises:
            UsageError: There is no image, it is stored raw, or the transform does more than crop, resize and flip.
        """

    @abstractmethod
    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        """Says which rows are read soon, where their records have to be fetched from far away. Does not wait for them.

        Args:
            rows: int64 [any]. Those that there are not are left out.
        """

    @abstractmethod
    def copy_rows(self, rows: npt.NDArray[np.int64], into: Destination) -> bool:
        """Makes the samples of a batch at once, with the results of `make`, if that only takes copying raw records.

        Args:
            rows: int64 [samples].
            into: Where the samples go.

        Returns:
            True if they were made. If False, call `make` for each row: it makes the sample or raises the error.
        """

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


class PackedSamples(Samples):
    """The samples of a dataset on disk. They never change, so that whoever uses them keeps what it was made for.

    Attributes:
        store: The records.
        decoder: Decodes images.
        records: The records of the fields that samples consist of.
        compose: The transform, or None.
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
            self._fields = checked_fields(fields, self.store.schema)
        except UsageError as error:
            raise UsageError(f"{self.store.name}: {error}") from None
        self._scaled = scaled
        self._undecoded = False
        self._set_transform(transform)

    def _set_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> None:
        self.compose: Compose | Views | None = None if transform is None else composed(transform)
        # Neither a list nor somebody else's transform says what becomes of it.
        self._transform = transform if isinstance(transform, Transform) else self.compose
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        # The others are bound to shards that are open here.
        return {name: value for name, value in vars(self).items() if name not in ("records", "images", "named")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def _prepare(self) -> None:
        """Makes what makes the samples."""
        stored = (IMAGE,) if self._fields is None else self._fields
        self.records = tuple(self.store.field(name) for name in stored if name not in (LABEL, CROP))
        self.images: StoredImages | None = None
        self.named: NamedSamples | None = None
        if self._fields is None:
            self.images = StoredImages(
                self.store.field(IMAGE), self.decoder, self.compose, scaled=self._scaled, undecoded=self._undecoded
            )
        else:
            self.named = NamedSamples(
                self.store,
                self._fields,
                self.compose,
                self.decoder,
                scaled=self._scaled,
                target_transform=self.target_transform,
                undecoded=self._undecoded,
            )

    @property
    @override
    def transform(self) -> TransformLike | Sequence[TransformLike] | None:
        return self._transform

    @property
    @override
    def labels(self) -> npt.NDArray[Any]:
        if self.store.schema.labels.kind == "none":
            raise UsageError(f"{self.store.name} has no labels")
        return self.store.all_labels()

    @override
    def __len__(self) -> int:
        return len(self.store)

    @override
    def locate(self, row: int) -> tuple[PackedSamples, int]:
        return self, row

    @property
    @override
    def classes(self) -> tuple[str, ...] | None:
        return self.store.schema.classes

    @property
    @override
    def schema(self) -> Schema:
        return self.store.schema

    @property
    @override
    def fields(self) -> tuple[str, ...] | None:
        return self._fields

    @property
    @override
    def draws(self) -> int:
        return 0 if self.compose is None else self.compose.draws

    @property
    @override
    def foreign(self) -> bool:
        return self.target_transform is not None or bool(self.compose and self.compose.foreign)

    @property
    @override
    def composes(self) -> tuple[Compose | Views, ...]:
        return () if self.compose is None else (self.compose,)

    @property
    @override
    def finishers(self) -> tuple[Finisher, ...] | None:
        return finishers_of(self.compose)

    @property
    @override
    def stores(self) -> tuple[Store, ...]:
        return (self.store,)

    @override
    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.store.rows_at(places)

    @override
    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.store.places()[rows]

    @override
    def chunk_bounds(self) -> npt.NDArray[np.int64]:
        return self.store.chunk_bounds()

    @override
    def with_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> Self:
        other = copy.copy(self)
        other._set_transform(transform)
        return other

    @override
    def undecoded(self) -> Self:
        if self._fields is not None and IMAGE not in self._fields:
            raise UsageError(f"{self.store.name}: fields: there is no image to decode among {', '.join(self._fields)}")
        other = copy.copy(self)
        other._undecoded = True
        try:
            other._prepare()
        except UsageError as error:
            raise UsageError(f"{self.store.name}: {error}") from None
        return other

    @override
    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        if self.store.chunks is not None:
            self.store.expect(rows, [records.field.name for records in self.records])

    def with_target_transform(self, target_transform: TransformLike | None) -> Self:
        """The same with another `target_transform`."""
        other = copy.copy(self)
        other.target_transform = function("target_transform", target_transform)
        other._prepare()
        return other

    def with_store(self, store: Store) -> Self:
        """The same over the records of another state of the dataset."""
        other = copy.copy(self)
        other.store = store
        other._prepare()
        return other

    @override
    def copy_rows(self, rows: npt.NDArray[np.int64], into: Destination) -> bool:
        store, images = self.store, self.images
        if images is None or not isinstance(images.pipeline, Pipeline) or self.target_transform is not None:
            return False
        records = images.records
        options = records.field.store
        if not (isinstance(store, RecordStore) and isinstance(records, FieldRecords)):
            return False
        if options is None or options.store != "raw" or into.images.shape[3] != options.channels:
            return False
        try:
            store.check_rows(rows)
        except (IndexError, DatasetError):
            return False
        index, size, random = records.columns, into.images.shape[1:3], into.random[into.at]
        widths, heights = index["width"][rows], index["height"][rows]
        if min(widths.min(initial=1), heights.min(initial=1)) < 1:
            return False
        plan = plan_batch(images.pipeline.compose, size, widths, heights, random)
        if plan is None or not records.copy_crops(rows, plan, into.images, into.at, into.rows[into.at], into.current):
            return False
        into.labels[into.at] = store.labels(rows)
        return True

    def value(self, row: int, name: str) -> Any:
        """A field of `row` without the transforms; raises what `ImageDataset.value` raises."""
        if name == LABEL:
            return self.store.label(row)
        records = self.store.field(checked_name(name, self.store.schema.names))
        if records.field.kind == "image":
            return StoredImages(records, self.decoder, None, scaled=False).decode(row)
        return records.value(row)
