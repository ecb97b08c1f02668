"""Map-style datasets with the contract of torchvision's ImageFolder."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from packtrain._codec.decode import RecordDecoder
from packtrain._codec.decoders import Decoder
from packtrain._codec.decoders import decoder as find_decoder
from packtrain._codec.stages import OTHER, OnStage, untimed
from packtrain._core.errors import CorruptRecord, DatasetError, MissingDependency, UsageError

from ..transforms.batched import Destination, crops_of
from ..transforms.fused import FusedTransform
from ..transforms.geometric import compose
from .base import ImageDataset, Pixels, Transform
from .store import RecordStore

if TYPE_CHECKING:
    from PIL.Image import Image

    from packtrain._staging import Staged, StageOptions


class PackedDataset(ImageDataset):
    """A dataset on disk; `open_dataset` makes one.

    Attributes:
        store: The records below it.
        fused: What images go through, or None.
        target_transform: Called with each label, or None.
        decoder: What decodes them; its `version` says more.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Transform | Sequence[Transform] | None = None,
        target_transform: Transform | None = None,
        *,
        io: str = "auto",
        check: bool = True,
        decoder: str = "auto",
        scaled: bool = False,
    ) -> None:
        self.target_transform = target_transform
        self.store = RecordStore(path, io=io, check=check)
        self.decoder: Final[Decoder] = find_decoder(decoder)
        self._records = RecordDecoder(self.store.manifest.store, self.decoder)
        self._scaled = scaled
        self.transform = transform

    @property
    def transform(self) -> Transform | Sequence[Transform] | None:
        """What the dataset was opened with, or was set since."""
        return self._transform

    @transform.setter
    def transform(self, transform: Transform | Sequence[Transform] | None) -> None:
        self._transform = transform
        self.fused = (
            None if transform is None else FusedTransform(compose(transform), self._records, scaled=self._scaled)
        )

    def __len__(self) -> int:
        return len(self.store)

    def _locate(self, row: int) -> tuple[PackedDataset, int]:
        return self, row

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label, or None."""
        return self.store.manifest.classes

    @property
    def draws(self) -> int:
        """See `ImageDataset.draws`."""
        return 0 if self.fused is None else self.fused.compose.draws

    @property
    def foreign(self) -> bool:
        """See `ImageDataset.foreign`."""
        return self.target_transform is not None or bool(self.fused and self.fused.compose.rest)

    @property
    def stores(self) -> tuple[RecordStore, ...]:
        """See `ImageDataset.stores`."""
        return (self.store,)

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.rows_at`."""
        self.store.index.check_rows(places)
        return self.store.index["by_place"][places]

    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.places_of`."""
        index = self.store.index
        index.check_all()
        places = np.empty(len(self), np.int64)
        places[index["by_place"]] = np.arange(len(self))
        return places[rows]

    def with_transform(self, transform: Transform | Sequence[Transform] | None) -> Self:
        """See `ImageDataset.with_transform`."""
        other = copy.copy(self)
        other.transform = transform
        return other

    @property
    def targets(self) -> npt.NDArray[Any]:
        """All labels, in row order: a read-only array [rows] or [rows, K] over the index.

        Raises:
            UsageError: The dataset has no labels.
            CorruptFile: The index is damaged.
        """
        if self.store.manifest.labels.kind == "none":
            raise UsageError(f"{self.store.path} has no labels")
        self.store.index.check_all()
        return self.store.index["label"]

    def decode_row(self, row: int, on_stage: OnStage = untimed) -> Image:
        """Decodes the record of `row`; see `image`."""
        record, width, height = self.store.image_record(row, on_stage)
        try:
            return self._records.image(record, width, height, on_stage)
        except (MissingDependency, MemoryError):
            raise
        except Exception as error:
            raise self._undecodable(row, error) from error

    def transform_row(
        self, row: int, random: Sequence[float] | None = None, into: Pixels | None = None, on_stage: OnStage = untimed
    ) -> Any:
        """Decodes the record of `row` as far as `transform` needs it, and transforms it.

        Args:
            row: The row.
            random: Uniform in [0, 1), at least `draws` of them; None draws them from torch's default generator.
            into: See `item`.
            on_stage: Likewise.

        Raises:
            UsageError: There is no transform, or it cannot be applied to an image of this size.
            CorruptRecord: As `image`.
        """
        if self.fused is None:
            raise UsageError(f"{self!r} was opened without a transform")
        record, width, height = self.store.image_record(row, on_stage)
        steps = self.fused.steps(width, height, random)
        on_stage(OTHER)
        try:
            image, steps = self.fused.decode(record, width, height, steps, on_stage)
        except (MissingDependency, MemoryError):
            raise
        except Exception as error:
            raise self._undecodable(row, error) from error
        return self.fused.finish(image, steps, into, on_stage)

    def copy_rows(self, rows: npt.NDArray[np.int64], into: Destination) -> bool:
        """See `ImageDataset.copy_rows`."""
        store = self.store
        if self.fused is None or self.target_transform is not None or store.manifest.store.store != "raw":
            return False
        if into.images.shape[3] != store.manifest.store.channels:
            return False
        try:
            store.check_rows(rows)
        except (IndexError, DatasetError):
            return False
        index, size, random = store.index, into.images.shape[1:3], into.random[into.at]
        crops = crops_of(self.fused.compose, size, index["width"][rows], index["height"][rows], random)
        if crops is None or not store.copy_crops(rows, crops, into.images, into.at, into.rows[into.at], into.current):
            return False
        into.labels[into.at] = store.labels(rows)
        return True

    def _undecodable(self, row: int, error: Exception) -> CorruptRecord:
        # Pillow's plugins raise whatever their parsers run into.
        reason = f"it cannot be decoded ({type(error).__name__}: {error})"
        return self.store.corrupt(self.store.checked_row(row), reason)

    def __repr__(self) -> str:
        manifest = self.store.manifest
        return (
            f"{type(self).__name__}({os.fspath(self.store.path)!r}, {len(self)} rows, {manifest.format}, "
            f"{manifest.store.store}, io={self.store.io!r}, decoder={self.decoder.name!r})"
        )


def open_dataset(
    path: str | os.PathLike[str],
    transform: Transform | Sequence[Transform] | None = None,
    target_transform: Transform | None = None,
    *,
    io: str = "auto",
    check: bool = True,
    decoder: str = "auto",
    scaled: bool = False,
    stage: str | os.PathLike[str] | StageOptions | None = None,
) -> PackedDataset:
    """Opens a packed dataset of any format.

    Args:
        path: The folder that `packtrain pack` wrote.
        transform: Any callable, called with each PIL image as in torchvision; or transforms of
            `packtrain.transforms`, alone, in a list or a `Compose`, also torchvision's. Those see the encoded
            record and decode only what they need. With nothing but these the result is a tensor, uint8 [channels,
            height, width]; a foreign callable behind them gets a PIL image.
        target_transform: Called with each label.
        io: ``"mmap"``, ``"pread"``, or ``"auto"``: pread on network file systems, where mapped I/O errors would be
            SIGBUS, mmap elsewhere.
        check: Compare each record with its checksum when it is read.
        decoder: One of `packtrain._codec.decoders.DECODERS`; ``"auto"`` is the fastest one whose pixels equal
            Pillow's here. The dataset's `decoder` tells which it is.
        scaled: Let the decoder shrink large JPEGs before they are resized: faster, with slightly other pixels.
        stage: A folder for staged copies, such as ``"/dev/shm"``, or all that can be said of staging: the dataset is
            copied there if it is not there yet (`packtrain._staging.stage`) and read from there. The copy is safe
            from eviction as long as the dataset lives, here or in a worker process.

    Returns:
        A map-style dataset; use it with `torch.utils.data.DataLoader` under any start method.

    Raises:
        NotADataset: `path` has no manifest.
        UnsupportedVersion: A newer packtrain wrote it.
        CorruptFile: Manifest or index is damaged.
        MissingDependency: `decoder` is not installed.
        UsageError: There is no such decoder or transform.
        NoRoom: There is no room to stage it.
        StagingError: It cannot be staged there; or `path` was a staged copy, but has been evicted.
    """
    # Its lease is given up here, when the dataset has one of its own.
    staged = None if stage is None else _staged(path, stage)
    if staged is not None:
        path = staged.path
    return PackedDataset(path, transform, target_transform, io=io, check=check, decoder=decoder, scaled=scaled)


def _staged(path: str | os.PathLike[str], to: str | os.PathLike[str] | StageOptions) -> Staged:
    from packtrain._staging import StageOptions, stage

    return stage(path, to if isinstance(to, StageOptions) else StageOptions(Path(to)))
