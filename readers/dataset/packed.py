"""The samples of one packed dataset, made from its records."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from packtrain._codec.decoders import Decoder
from packtrain._codec.decoders import decoder as find_decoder
from packtrain._core.arguments import function
from packtrain._core.errors import DatasetError, UsageError
from packtrain._core.schema import CROP, IMAGE, LABEL

from ..transforms.base import Transform
from ..transforms.batched import Destination, plan_batch
from ..transforms.compose import Compose
from ..transforms.pipeline import Pipeline
from ..transforms.several_crops import composed
from ..transforms.views import Views
from .images import StoredImages
from .named import NamedSamples, checked_fields, checked_name
from .records import FieldRecords
from .samples import Samples, TransformLike
from .store import RecordStore, Store


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
        self._set_transform(transform)

    def _set_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> None:
        self.compose: Compose | Views | None = None if transform is None else composed(transform)
        # Neither a list nor somebody else's transform says what becomes of it.
        self.given = transform if isinstance(transform, Transform) else self.compose
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        # The others are bound to shards that are open here.
        return {name: value for name, value in vars(self).items() if name not in ("records", "images", "named")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def _prepare(self) -> None:
        """Makes what makes the samples."""
        stored = (IMAGE,) if self.names is None else self.names
        self.records = tuple(self.store.field(name) for name in stored if name not in (LABEL, CROP))
        self.images: StoredImages | None = None
        self.named: NamedSamples | None = None
        if self.names is None:
            self.images = StoredImages(
                self.store.field(IMAGE), self.decoder, self.compose, scaled=self._scaled, undecoded=self._undecoded
            )
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
        if self.names is not None and IMAGE not in self.names:
            raise UsageError(f"{self.store.name}: fields: there is no image to decode among {', '.join(self.names)}")
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
