"""What all datasets of packtrain have in common: the contract of torchvision's ImageFolder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from packtrain._codec.stages import OTHER, TRANSFORM, OnStage, untimed

from ..transforms.batched import Destination
from .store import Label, RecordStore

if TYPE_CHECKING:
    from PIL.Image import Image

    from .combined import Subset
    from .packed import PackedDataset

Transform = Callable[[Any], Any]
Pixels = npt.NDArray[np.uint8]


class ImageDataset(Dataset[tuple[Any, Any]]):
    """What all datasets of packtrain have in common.

    ``dataset[row]`` is ``(image, label)``: a PIL image in the dataset's pixel mode and an int (or float, or an array
    [K]), each through the transform that the packed dataset was opened with. Negative rows count from the end; a row
    outside the dataset raises IndexError, a damaged one `packtrain.errors.CorruptRecord`.
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

    @property
    @abstractmethod
    def stores(self) -> tuple[RecordStore, ...]:
        """What records are read from, each once."""

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
        self, row: int, random: Sequence[float] | None = None, into: Pixels | None = None, on_stage: OnStage = untimed
    ) -> tuple[Any, Any]:
        """``dataset[row]`` with given random numbers, and perhaps in given memory.

        Args:
            row: The row.
            random: Uniform in [0, 1), `draws` of them; None draws them from torch's default generator. Only packtrain's
                own transforms take theirs from here.
            into: uint8 [height, width, channels]. Where transforms are packtrain's alone and the image turns out to
                have this shape, its pixels are written there, and `into` itself is returned for it.
            on_stage: Is told of each stage.
        """
        dataset, row = self._locate(row)
        whole = dataset.transform is None
        image: Any = dataset.decode_row(row, on_stage) if whole else dataset.transform_row(row, random, into, on_stage)
        label: Any = dataset.store.label(row)
        on_stage(OTHER)
        if dataset.target_transform is not None:
            label = dataset.target_transform(label)
            on_stage(TRANSFORM)
        return image, label

    def copy_rows(self, rows: npt.NDArray[np.int64], into: Destination) -> bool:
        """Makes the samples of a batch at once, as `item` would, where that takes no more than copying raw records.

        Args:
            rows: int64 [samples].
            into: Where they go.

        Returns:
            Whether it did. If not, `item` is to make them, which can make all others, and says what is wrong.
        """
        return False

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
        from .combined import Subset

        return Subset(self, rows)
