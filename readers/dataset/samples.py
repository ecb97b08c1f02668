"""What a loader needs from a dataset: samples by row, made with given random numbers, and where their records lie."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from packtrain._codec.decode import RecordDecoder
from packtrain._codec.decoders import Decoder
from packtrain._codec.decoders import decoder as find_decoder
from packtrain._codec.stages import OTHER, TRANSFORM, OnStage, untimed
from packtrain._core.arguments import function
from packtrain._core.errors import CorruptRecord, DatasetError, MissingDependency, UsageError

from ..transforms.batched import Destination, plan_batch
from ..transforms.compose import compose
from ..transforms.executors import Pipeline
from .store import RecordStore

if TYPE_CHECKING:
    from PIL.Image import Image

TransformLike = Callable[[Any], Any]
"""Any callable on an image or a label: packtrain's transforms, torchvision's, or a function."""
Pixels = npt.NDArray[np.uint8]


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
    def draws(self) -> int:
        """Number of random numbers that `make` takes: that of the transform that needs the most."""

    @property
    @abstractmethod
    def foreign(self) -> bool:
        """True if callables that are not packtrain's take part, which may draw random numbers themselves."""

    @property
    @abstractmethod
    def stores(self) -> tuple[RecordStore, ...]:
        """The stores that records are read from, each once."""

    @abstractmethod
    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows whose records lie at these places of the physical order; both int64 [any]."""

    @abstractmethod
    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The places of these rows, the inverse of `rows_at`; takes time and memory proportional to all rows."""

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
        """The transform of the images, as it was given.

        Raises:
            UsageError: There are several.
        """

    @abstractmethod
    def with_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> Self:
        """The same rows with another transform, over the same open shards; `target_transform` stays."""

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
        into: Pixels | None = None,
        on_stage: OnStage = untimed,
    ) -> tuple[Any, Any]:
        """``dataset[row]`` with given random numbers, if possible in given memory.

        Args:
            row: The row.
            random: Uniform in [0, 1), `draws` of them; None draws them from torch's default generator. Only packtrain's
                own transforms use them.
            into: uint8 [height, width, channels]. If all transforms are packtrain's and the image turns out to have
                this shape, its pixels are written there, and `into` itself is returned as the image.
            on_stage: Called at the end of each stage.
        """
        packed, row = self.locate(row)
        whole = packed.pipeline is None
        image: Any = packed.decode(row, on_stage) if whole else packed.transformed(row, random, into, on_stage)
        label: Any = packed.store.label(row)
        on_stage(OTHER)
        if packed.target_transform is not None:
            label = packed.target_transform(label)
            on_stage(TRANSFORM)
        return image, label

    def filename(self, row: int) -> str:
        """The path of `row` as it stands in the list."""
        packed, row = self.locate(row)
        return packed.store.index.text("path", packed.store.checked_row(row))

    def line(self, row: int) -> int:
        """The 0-based line of `row` in the list."""
        packed, row = self.locate(row)
        return int(packed.store.index["line"][packed.store.checked_row(row)])

    def describe(self, row: int) -> str:
        """Names `row` for a person: dataset, row, line, path and shard."""
        packed, row = self.locate(row)
        return f"{packed.store.path}: {packed.store.describe(packed.store.checked_row(row))}"

    def will_need(self, row: int) -> int:
        """Requests the record of `row` ahead of its use, like `RecordStore.will_need`; 0 if there is no such row."""
        try:
            packed, row = self.locate(row)
        except IndexError:
            return 0
        return packed.store.will_need(row)


class PackedSamples(Samples):
    """The samples of a dataset on disk. They never change, so that whoever uses them keeps what it was made for.

    Attributes:
        store: The records.
        decoder: Decodes images.
        pipeline: Transforms encoded images; None without a transform.
        target_transform: Called with each label, or None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: TransformLike | Sequence[TransformLike] | None = None,
        target_transform: TransformLike | None = None,
        *,
        io: str = "auto",
        check: bool = True,
        decoder: str = "auto",
        scaled: bool = False,
    ) -> None:
        self.target_transform = function("target_transform", target_transform)
        self.store: Final = RecordStore(path, io=io, check=check)
        self.decoder: Final[Decoder] = find_decoder(decoder)
        self._records = RecordDecoder(self.store.manifest.store, self.decoder)
        self._scaled = scaled
        self._set_transform(transform)

    def _set_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> None:
        self._transform = transform
        self.pipeline = None if transform is None else Pipeline(compose(transform), self._records, scaled=self._scaled)

    @property
    @override
    def transform(self) -> TransformLike | Sequence[TransformLike] | None:
        return self._transform

    @property
    @override
    def labels(self) -> npt.NDArray[Any]:
        if self.store.manifest.labels.kind == "none":
            raise UsageError(f"{self.store.path} has no labels")
        self.store.index.check_all()
        return self.store.index["label"]

    @override
    def __len__(self) -> int:
        return len(self.store)

    @override
    def locate(self, row: int) -> tuple[PackedSamples, int]:
        return self, row

    @property
    @override
    def classes(self) -> tuple[str, ...] | None:
        return self.store.manifest.classes

    @property
    @override
    def draws(self) -> int:
        return 0 if self.pipeline is None else self.pipeline.compose.draws

    @property
    @override
    def foreign(self) -> bool:
        return self.target_transform is not None or bool(self.pipeline and self.pipeline.compose.foreign)

    @property
    @override
    def stores(self) -> tuple[RecordStore, ...]:
        return (self.store,)

    @override
    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        self.store.index.check_rows(places)
        return self.store.index["by_place"][places]

    @override
    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        index = self.store.index
        index.check_all()
        places = np.empty(len(self), np.int64)
        places[index["by_place"]] = np.arange(len(self))
        return places[rows]

    @override
    def with_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> Self:
        other = copy.copy(self)
        other._set_transform(transform)
        return other

    def with_target_transform(self, target_transform: TransformLike | None) -> Self:
        """The same with another `target_transform`."""
        other = copy.copy(self)
        other.target_transform = function("target_transform", target_transform)
        return other

    @override
    def copy_rows(self, rows: npt.NDArray[np.int64], into: Destination) -> bool:
        store = self.store
        if self.pipeline is None or self.target_transform is not None or store.manifest.store.store != "raw":
            return False
        if into.images.shape[3] != store.manifest.store.channels:
            return False
        try:
            store.check_rows(rows)
        except (IndexError, DatasetError):
            return False
        index, size, random = store.index, into.images.shape[1:3], into.random[into.at]
        plan = plan_batch(self.pipeline.compose, size, index["width"][rows], index["height"][rows], random)
        if plan is None or not store.copy_crops(rows, plan, into.images, into.at, into.rows[into.at], into.current):
            return False
        into.labels[into.at] = store.labels(rows)
        return True

    def decode(self, row: int, on_stage: OnStage = untimed) -> Image:
        """The image of `row`, without the transform.

        Raises:
            IndexError: There is no such row.
            CorruptFile: Its shard is missing or truncated, or the index is damaged there.
            CorruptRecord: The bytes differ from what was written, or cannot be decoded.
        """
        encoded = self.store.image(row, on_stage)
        try:
            return self._records.image(encoded, on_stage)
        except (MissingDependency, MemoryError):
            raise
        except Exception as error:
            raise self._undecodable(row, error) from error

    def transformed(
        self,
        row: int,
        random: Sequence[float] | None = None,
        into: Pixels | None = None,
        on_stage: OnStage = untimed,
    ) -> Any:
        """The image of `row`, decoded as far as the transform needs it, and transformed.

        Args:
            row: The row.
            random: Uniform in [0, 1), at least `draws` of them; None draws them from torch's default generator.
            into: Memory for the result, see `make`.
            on_stage: Called at the end of each stage.

        Raises:
            UsageError: There is no transform, or it cannot be applied to an image of this size.
            CorruptRecord: As `decode`.
        """
        if self.pipeline is None:
            raise UsageError(f"{self.store.path} was opened without a transform")
        encoded = self.store.image(row, on_stage)
        plan = self.pipeline.plan(encoded.width, encoded.height, random)
        on_stage(OTHER)
        try:
            decoded = self.pipeline.decode(encoded, plan, on_stage)
        except (MissingDependency, MemoryError):
            raise
        except Exception as error:
            raise self._undecodable(row, error) from error
        return decoded.finish(into, on_stage)

    def _undecodable(self, row: int, error: Exception) -> CorruptRecord:
        # Pillow's plugins raise whatever their parsers run into.
        reason = f"it cannot be decoded ({type(error).__name__}: {error})"
        return self.store.corrupt(self.store.checked_row(row), reason)
