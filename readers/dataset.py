"""Map-style datasets with the contract of torchvision's ImageFolder."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from packtrain.core.errors import CorruptRecord, MissingDependency, UsageError
from packtrain.core.index import ROWS_PER_BLOCK

from .decode import RecordDecoder
from .decoders import Decoder
from .decoders import decoder as find_decoder
from .fused import FusedTransform
from .store import Label, RecordStore
from .transforms import compose

if TYPE_CHECKING:
    from PIL.Image import Image

Transform = Callable[[Any], Any]


class ImageDataset(Dataset[tuple[Any, Any]]):
    """What all datasets of packtrain have in common.

    ``dataset[row]`` is ``(image, label)``: a PIL image in the dataset's pixel mode and an int (or float, or an array
    [K]), each through the transform that the packed dataset was opened with. Negative rows count from the end; a row
    outside the dataset raises IndexError, a damaged one `packtrain.core.errors.CorruptRecord`.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def _locate(self, row: int) -> tuple[PackedDataset, int]:
        """The packed dataset that holds `row`, and the row's number there."""

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label, or None."""

    @property
    @abstractmethod
    def draws(self) -> int:
        """How many random numbers `item` takes: as many as the transform that needs most of them."""

    @property
    @abstractmethod
    def foreign(self) -> bool:
        """Whether callables that are not packtrain's take part, which draw random numbers of their own."""

    @abstractmethod
    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows whose records lie at these places of the physical order, both int64 [any]."""

    @abstractmethod
    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The places at which rows lie, the inverse of `rows_at`; in time and memory proportional to all rows."""

    @abstractmethod
    def with_transform(self, transform: Transform | Sequence[Transform] | None) -> ImageDataset:
        """The same rows with another transform, over the same open shards; `target_transform` stays."""

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label by class name; empty without class names."""
        return {name: label for label, name in enumerate(self.classes or ())}

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return self.item(row)

    def item(
        self, row: int, random: Sequence[float] | None = None, into: npt.NDArray[np.uint8] | None = None
    ) -> tuple[Any, Any]:
        """``dataset[row]`` with given random numbers, and perhaps in given memory.

        Args:
            row: The row.
            random: Uniform in [0, 1), `draws` of them; None draws them from torch's default generator. Only packtrain's
                own transforms take theirs from here.
            into: uint8 [height, width, channels]. Where transforms are packtrain's alone and the image turns out to
                have this shape, its pixels are written there, and `into` itself is returned for it.
        """
        dataset, row = self._locate(row)
        image: Any = dataset.decode_row(row) if dataset.transform is None else dataset.transform_row(row, random, into)
        label: Any = dataset.store.label(row)
        if dataset.target_transform is not None:
            label = dataset.target_transform(label)
        return image, label

    def record(self, row: int) -> memoryview:
        """The stored bytes of `row`: a read-only memoryview, without a copy when the dataset is mapped.

        Raises:
            IndexError: There is no such row.
            CorruptFile: Its shard is missing or cut, or the index is damaged there.
            CorruptRecord: The bytes differ from what was written.
        """
        dataset, row = self._locate(row)
        return dataset.store.record(row)

    def will_need(self, row: int) -> int:
        """Asks the system for the record of `row`; see `RecordStore.will_need`."""
        try:
            dataset, row = self._locate(row)
        except IndexError:
            return 0
        return dataset.store.will_need(row)

    def image(self, row: int) -> Image:
        """The decoded image of `row`, without `transform`.

        Raises:
            CorruptRecord: As `record`, or the stored bytes cannot be decoded.
        """
        dataset, row = self._locate(row)
        return dataset.decode_row(row)

    def label(self, row: int) -> Label:
        """The label of `row`, without `target_transform`: int, float, or an array [K]."""
        dataset, row = self._locate(row)
        return dataset.store.label(row)

    def filename(self, row: int) -> str:
        """The path of `row` as the list gives it."""
        dataset, row = self._locate(row)
        return dataset.store.index.text("path", dataset.store.checked_row(row))

    def line(self, row: int) -> int:
        """The 0-based line of `row` in the list."""
        dataset, row = self._locate(row)
        return int(dataset.store.index["line"][dataset.store.checked_row(row)])

    def describe(self, row: int) -> str:
        """Names `row` for a person: dataset, row, line, path and shard."""
        dataset, row = self._locate(row)
        return f"{dataset.store.path}: {dataset.store.describe(dataset.store.checked_row(row))}"

    def subset(self, rows: Iterable[int]) -> Subset:
        """The given rows, in the given order. `with_transform` gives them, or the others, other transforms.

        Args:
            rows: Row numbers, negative ones counted from the end, or a boolean array [rows] that says which to take.

        Raises:
            IndexError: A row is outside this dataset.
        """
        return Subset(self, rows)


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

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.rows_at`."""
        index = self.store.index
        for block in np.unique(places // ROWS_PER_BLOCK).tolist():
            index.check(block * ROWS_PER_BLOCK)
        return index["by_place"][places]

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

    def decode_row(self, row: int) -> Image:
        """Decodes the record of `row`; see `image`."""
        record, width, height = self.store.image_record(row)
        try:
            return self._records.image(record, width, height)
        except (MissingDependency, MemoryError):
            raise
        except Exception as error:
            raise self._undecodable(row, error) from error

    def transform_row(
        self, row: int, random: Sequence[float] | None = None, into: npt.NDArray[np.uint8] | None = None
    ) -> Any:
        """Decodes the record of `row` as far as `transform` needs it, and transforms it.

        Args:
            row: The row.
            random: Uniform in [0, 1), at least `draws` of them; None draws them from torch's default generator.
            into: See `item`.

        Raises:
            UsageError: There is no transform, or it cannot be applied to an image of this size.
            CorruptRecord: As `image`.
        """
        if self.fused is None:
            raise UsageError(f"{self!r} was opened without a transform")
        record, width, height = self.store.image_record(row)
        steps = self.fused.steps(width, height, random)
        try:
            image, steps = self.fused.decode(record, width, height, steps)
        except (MissingDependency, MemoryError):
            raise
        except Exception as error:
            raise self._undecodable(row, error) from error
        return self.fused.finish(image, steps, into)

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


class Subset(ImageDataset):
    """Chosen rows of another dataset; `ImageDataset.subset` makes one."""

    def __init__(self, dataset: ImageDataset, rows: Iterable[int]) -> None:
        self._dataset = dataset
        if isinstance(rows, np.ndarray) and rows.dtype == bool:
            if rows.shape != (len(dataset),):
                raise IndexError(f"a mask of shape {rows.shape} for a dataset of {len(dataset)} rows")
            rows = np.flatnonzero(rows)
        # An array, not a list: a list's reference counts would be written to, and so copied, in every forked worker.
        self._rows = np.fromiter(rows, np.int64)
        if len(self._rows) and not (-len(dataset) <= self._rows.min() and self._rows.max() < len(dataset)):
            raise IndexError(f"rows {self._rows.min()} to {self._rows.max()} of a dataset of {len(dataset)} rows")
        self._rows[self._rows < 0] += len(dataset)

    def __len__(self) -> int:
        return len(self._rows)

    def _locate(self, row: int) -> tuple[PackedDataset, int]:
        return self._dataset._locate(int(self._rows[row]))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label, or None."""
        return self._dataset.classes

    @property
    def draws(self) -> int:
        """See `ImageDataset.draws`."""
        return self._dataset.draws

    @property
    def foreign(self) -> bool:
        """See `ImageDataset.foreign`."""
        return self._dataset.foreign

    @cached_property
    def _by_place(self) -> npt.NDArray[np.int64]:
        return np.argsort(self._dataset.places_of(self._rows), kind="stable")

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.rows_at`; a row that was chosen several times lies at as many places."""
        return self._by_place[places]

    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.places_of`."""
        places = np.empty(len(self), np.int64)
        places[self._by_place] = np.arange(len(self))
        return places[rows]

    def with_transform(self, transform: Transform | Sequence[Transform] | None) -> Self:
        """See `ImageDataset.with_transform`."""
        other = copy.copy(self)
        other._dataset = self._dataset.with_transform(transform)
        return other


class Concat(ImageDataset):
    """Datasets one after the other; `concat` makes one."""

    def __init__(self, datasets: Sequence[ImageDataset]) -> None:
        if not datasets:
            raise UsageError("concat needs at least one dataset")
        names = {dataset.classes for dataset in datasets}
        if len(names) > 1:
            raise UsageError("the datasets have different class names, so that one label would mean two things")
        self._datasets = tuple(datasets)
        self._ends = list(accumulate(len(dataset) for dataset in datasets))

    def __len__(self) -> int:
        return self._ends[-1]

    def _locate(self, row: int) -> tuple[PackedDataset, int]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a dataset of {len(self)} rows")
        row %= len(self)
        number = bisect_right(self._ends, row)
        return self._datasets[number]._locate(row - (self._ends[number - 1] if number else 0))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label, or None."""
        return self._datasets[0].classes

    @property
    def draws(self) -> int:
        """See `ImageDataset.draws`."""
        return max(dataset.draws for dataset in self._datasets)

    @property
    def foreign(self) -> bool:
        """See `ImageDataset.foreign`."""
        return any(dataset.foreign for dataset in self._datasets)

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.rows_at`."""
        return self._in_each(places, lambda dataset, inner: dataset.rows_at(inner))

    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.places_of`."""
        return self._in_each(rows, lambda dataset, inner: dataset.places_of(inner))

    def _in_each(
        self,
        numbers: npt.NDArray[np.int64],
        function: Callable[[ImageDataset, npt.NDArray[np.int64]], npt.NDArray[np.int64]],
    ) -> npt.NDArray[np.int64]:
        """Applies a function to those of the numbers that fall into each dataset."""
        found = np.empty_like(numbers)
        start = 0
        for dataset, end in zip(self._datasets, self._ends, strict=True):
            mine = (start <= numbers) & (numbers < end)
            if mine.any():
                found[mine] = start + function(dataset, numbers[mine] - start)
            start = end
        return found

    def with_transform(self, transform: Transform | Sequence[Transform] | None) -> Self:
        """See `ImageDataset.with_transform`."""
        other = copy.copy(self)
        other._datasets = tuple(dataset.with_transform(transform) for dataset in self._datasets)
        return other


def open_dataset(
    path: str | os.PathLike[str],
    transform: Transform | Sequence[Transform] | None = None,
    target_transform: Transform | None = None,
    *,
    io: str = "auto",
    check: bool = True,
    decoder: str = "auto",
    scaled: bool = False,
) -> PackedDataset:
    """Opens a packed dataset of any format.

    Args:
        path: The folder that `packtrain pack` wrote.
        transform: Any callable, called with each PIL image as in torchvision; or transforms of
            `packtrain.readers.transforms`, alone, in a list or a `Compose`, also torchvision's. Those see the encoded
            record and decode only what they need. With nothing but these the result is a tensor, uint8 [channels,
            height, width]; a foreign callable behind them gets a PIL image.
        target_transform: Called with each label.
        io: ``"mmap"``, ``"pread"``, or ``"auto"``: pread on network file systems, where mapped I/O errors would be
            SIGBUS, mmap elsewhere.
        check: Compare each record with its checksum when it is read.
        decoder: One of `packtrain.readers.decoders.DECODERS`; ``"auto"`` is the fastest one whose pixels equal
            Pillow's here. The dataset's `decoder` tells which it is.
        scaled: Let the decoder shrink large JPEGs before they are resized: faster, with slightly other pixels.

    Returns:
        A map-style dataset; use it with `torch.utils.data.DataLoader` under any start method.

    Raises:
        NotADataset: `path` has no manifest.
        UnsupportedVersion: A newer packtrain wrote it.
        CorruptFile: Manifest or index is damaged.
        MissingDependency: `decoder` is not installed.
        UsageError: There is no such decoder or transform.
    """
    return PackedDataset(path, transform, target_transform, io=io, check=check, decoder=decoder, scaled=scaled)


def concat(datasets: Sequence[ImageDataset]) -> Concat:
    """Datasets one after the other, as one; each keeps its own transforms.

    Raises:
        UsageError: There are none, or their class names differ.
    """
    return Concat(datasets)
