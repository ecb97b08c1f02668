"""How one sample is made: always the same one at a position, whichever process makes it and whatever it made before."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.stages import TRANSFORM, OnStage, untimed
from packtrain._core.errors import DatasetError, LoaderError, MissingDependency, PacktrainError, UsageError

from ..dataset.image_dataset import samples_of
from ..dataset.readahead import ReadAhead
from ..dataset.store import RecordStore
from ..transforms.batched import Destination
from .randomness import seed_all, uniforms

if TYPE_CHECKING:
    from torch.utils.data import Dataset
    from typing_extensions import Buffer

FIELDS: Final = ("row", "line", "position", "path")
"""What a loader can give beside images and labels."""


class SampleMaker:
    """Makes samples of a dataset.

    Args:
        dataset: packtrain's, or any other map-style dataset of (image, label).
        fields: Which of `FIELDS` to give besides.

    Raises:
        UsageError: It is no map-style dataset, or there is no such field, or the dataset does not have it.
    """

    def __init__(self, dataset: Dataset[Any], fields: Sequence[str]) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise UsageError(f"a {type(dataset).__name__} has no rows: a loader needs __len__ and __getitem__")
        self._dataset = dataset
        self._packed = samples_of(dataset)
        self._ahead = ReadAhead(self._packed.will_need) if self._packed is not None else None
        self._draws = self._packed.draws if self._packed is not None else 0
        self.stores: Final[tuple[RecordStore, ...]] = self._packed.stores if self._packed is not None else ()
        """What records are read from."""
        self.fields: Final = tuple(fields)
        self.seeds: Final = self._packed is None or self._packed.foreign
        """Whether samples draw from the random number generators of the process, which are then seeded for each."""
        self._lookups: dict[str, Callable[[int], Any]] = {"row": int}
        if self._packed is not None:
            self._lookups |= {"line": self._packed.line, "path": self._packed.filename}
        for name in self.fields:
            if name not in FIELDS:
                raise UsageError(f"fields: {name!r}: expected any of {', '.join(FIELDS)}")
            if name != "position" and name not in self._lookups:
                raise UsageError(f"fields: {name!r}: only datasets of packtrain have it")

    def ahead(self, rows: Sequence[int]) -> Iterable[int]:
        """The rows of a batch, one by one; those behind it are on their way into memory then, if they are not there."""
        return self._ahead.through(rows) if self._ahead is not None else rows

    def random(self, key: int, positions: Sequence[int]) -> npt.NDArray[np.float64]:
        """The random numbers of the samples at some positions, for `copy` and `make`: float64 [samples, any].

        Args:
            key: Of the epoch's random numbers.
            positions: Consecutive as a rule.
        """
        if not (self._draws and positions):
            return np.empty((len(positions), 0))
        first, count = positions[0], len(positions)
        if positions[-1] - first == count - 1:
            return uniforms(key, first, first + count, self._draws)
        return np.concatenate([uniforms(key, position, position + 1, self._draws) for position in positions])

    def copy(
        self,
        rows: npt.NDArray[np.int64],
        random: npt.NDArray[np.float64],
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[Any],
        current: Buffer,
    ) -> bool:
        """Makes samples all at once, where that is no more than copying records that are in memory.

        Args:
            rows: Of the samples in the dataset, int64 [samples].
            random: What `random` returned for their positions.
            images: Gets the images, uint8 [samples or more, height, width, channels].
            labels: Gets the labels, [samples or more, ...].
            current: int64 [1]: gets the row that is being read.

        Returns:
            Whether it did; if not, they are for `make`.
        """
        if self._packed is None or self.seeds or self._ahead is None or not self._ahead.idle():
            return False
        into = Destination(images, labels, rows, random, np.arange(len(rows)), current)
        return self._packed.copy_rows(rows, into)

    def make(
        self,
        key: int,
        position: int,
        row: int,
        numbers: Sequence[float],
        into: npt.NDArray[np.uint8] | None = None,
        on_stage: OnStage = untimed,
    ) -> tuple[Any, Any]:
        """Makes a sample.

        Args:
            key: Of the epoch's random numbers.
            position: Of the sample in the epoch.
            row: Of the sample in the dataset.
            numbers: Its own of what `random` returned.
            into: Where the image may be written, see `Samples.make`.
            on_stage: Is told of each stage.

        Returns:
            Image and label, as the dataset gives them.

        Raises:
            CorruptRecord: The record is damaged.
            DatasetError: So is more than that.
            LoaderError: A transform failed.
        """
        try:
            if self.seeds:
                seed_all(key, position)
            if self._packed is not None:
                return self._packed.make(row, numbers, into, on_stage)
            image, label = self._dataset[row]
            on_stage(TRANSFORM)
            return image, label
        except (DatasetError, MissingDependency):
            raise
        except Exception as error:
            raise LoaderError(
                f"{self.describe(row)} cannot be made into a sample: {type(error).__name__}: {error}. "
                f"`loader.sample({position})` does it again, for a debugger\n\n{traceback_of(error)}"
            ) from error

    def extras(self, position: int, row: int) -> tuple[Any, ...]:
        """The fields of a sample."""
        return tuple(position if name == "position" else self._lookups[name](row) for name in self.fields)

    def describe(self, row: int) -> str:
        """Names a row for a person."""
        try:
            return self._packed.describe(row) if self._packed is not None else f"row {row}"
        except PacktrainError:
            return f"row {row}"


def traceback_of(error: Exception) -> str:
    """The traceback as text, for a message: it would be lost on the way between two processes."""
    return "".join(traceback.format_exception(error))
