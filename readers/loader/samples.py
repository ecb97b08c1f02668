"""Makes one sample: always the same at a position, whichever process makes it and whatever it made before."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.pixels import array_from_image
from packtrain._codec.stages import TRANSFORM, OnStage, untimed
from packtrain._core.arguments import items
from packtrain._core.errors import (
    CorruptRecord,
    DatasetError,
    LoaderError,
    MissingDependency,
    PacktrainError,
    RemoteError,
    StagingError,
    UsageError,
)
from packtrain._core.schema import IMAGE, Field

from ..dataset.image_dataset import instead_of, samples_of
from ..dataset.readahead import ReadAhead
from ..dataset.rows import is_sample, owned, sample_type
from ..dataset.samples import Samples
from ..dataset.store import Opened, Store
from ..transforms.batched import Destination
from ..transforms.finisher import Finisher
from ..transforms.undecoded import Undecoded
from ..transforms.views import Unfused, unfused
from .generators import Seeder
from .randomness import uniforms

if TYPE_CHECKING:
    from torch.utils.data import Dataset
    from typing_extensions import Buffer

FIELDS: Final = ("row", "line", "position", "path")
"""Names of what a loader can hand out in addition to the fields of the dataset."""
# Up to this distance on average, drawing those of all positions in between takes less time than drawing each by itself.
_APART: Final = 64


class SampleMaker:
    """Makes samples of a dataset.

    Args:
        dataset: A packtrain dataset, or any other map-style dataset.
        fields: Names in `FIELDS` of what to hand out in addition.
        finish: True to run all steps of transforms on each sample, also those that `finishers` run on whole batches.
        undecoded: True to leave it to others to decode images.

    Raises:
        UsageError: A field does not exist, or the dataset does not have it.
    """

    def __init__(
        self, dataset: Dataset[Any], fields: Sequence[str], *, finish: bool = True, undecoded: bool = False
    ) -> None:
        self._dataset = dataset
        self._given = self._packed = samples_of(dataset)
        if undecoded:
            self._packed = _undecoded(dataset)
        self._ahead = ReadAhead(self._packed.will_need) if self._packed is not None else None
        self._draws = self._packed.draws if self._packed is not None else 0
        finishers = self._packed.finishers if self._packed is not None else ()
        self._finish = finish or finishers is None
        self.finishers: Final[tuple[Finisher, ...]] = () if finish else finishers or ()
        """Steps that are left to do on the image of a sample, or on each view; empty if there are none."""
        # What is copied has not been finished.
        self._copies = not self._finish or finishers == ()
        self.stores: Final[tuple[Store, ...]] = self._packed.stores if self._packed is not None else ()
        """Sources of the records."""
        self._far = any(store.chunks is not None for store in self.stores)
        self.schema: Final[Mapping[str, Field]] = _schema_of(self._packed) if self._packed is not None else {}
        """Schema of the fields of a sample; empty for pairs of image and label."""
        self.fields: Final = tuple(items("fields", fields, f"a tuple with any of {', '.join(FIELDS)}"))
        self.seeds: Final = self._packed is None or self._packed.foreign
        """True if samples may draw from the generators of the process, which are then seeded for each sample."""
        self._seeder = Seeder(dataset)
        """Seeds what samples may draw from."""
        for name in self._seeder.unseedable() if self.seeds else ():
            warnings.warn(
                f"{name} draws random numbers that cannot be seeded: its samples differ from run to run, and workers "
                "may repeat each other",
                RuntimeWarning,
                stacklevel=3,
            )
        self._lookups: dict[str, Callable[[int], Any]] = {"row": int}
        if self._packed is not None:
            self._lookups |= {"line": self._packed.line, "path": self._packed.filename}
        for name in self.fields:
            if name not in FIELDS:
                raise UsageError(
                    f"fields: {name!r}: expected any of {', '.join(FIELDS)}, which a loader adds; "
                    "open_dataset(fields=...) says which fields of the dataset samples have"
                )
            if self.fields.count(name) > 1:
                raise UsageError(f"fields: {name!r} is there twice")
            if name != "position" and name not in self._lookups:
                raise UsageError(f"fields: {name!r}: only packtrain datasets have it{instead_of(dataset)}")

    @property
    def opened(self) -> tuple[Opened, ...]:
        """The open files of the dataset, which stay open when the dataset moves on to a later state."""
        return tuple(store.opened for store in self.stores)

    @property
    def unfused(self) -> Unfused:
        """The transforms that are not fused, and what would be faster."""
        return unfused(self._packed.composes if self._packed is not None else ())

    def same_dataset(self, dataset: Dataset[Any]) -> bool:
        """True if these are the samples of a dataset as it is now; a packtrain dataset may have another transform."""
        return self._dataset is dataset and self._given is samples_of(dataset)

    def look_again(self) -> None:
        """Prepares for a dataset that is not packtrain's to have changed."""
        self._seeder.look_again()

    def ahead(self, rows: Sequence[int]) -> Iterable[int]:
        """The rows of a batch, one by one; meanwhile, missing records of later rows are read into memory."""
        return self._ahead.through(rows) if self._ahead is not None else rows

    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        """Says which rows are read next, where their records have to be fetched from far away."""
        if self._far and self._packed is not None:
            self._packed.expect(rows)

    def random(self, key: int, positions: Sequence[int]) -> npt.NDArray[np.float64]:
        """The random numbers of the samples at some positions, for `copy` and `make`: float64 [samples, draws].

        Args:
            key: Key of the epoch's random numbers.
            positions: Positions in the epoch. Those that follow the first one, not far apart, are drawn faster.
        """
        if not (self._draws and positions):
            return np.empty((len(positions), 0))
        first, count = positions[0], len(positions)
        if positions[-1] - first == count - 1:
            return uniforms(key, first, first + count, self._draws)
        offsets = np.array(positions) - first
        span = int(offsets.max()) + 1
        if offsets.min() >= 0 and span <= _APART * count:
            drawn: npt.NDArray[np.float64] = uniforms(key, first, first + span, self._draws)[offsets]
            return drawn
        return np.concatenate([uniforms(key, position, position + 1, self._draws) for position in positions])

    def copy(
        self,
        rows: npt.NDArray[np.int64],
        random: npt.NDArray[np.float64],
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[Any],
        current: Buffer,
    ) -> bool:
        """Makes all samples of a batch at once, if that takes only copying records that are in memory.

        Args:
            rows: Rows of the samples in the dataset, int64 [samples].
            random: Random numbers of their positions, from `random`, float64 [samples, draws].
            images: Gets the images, uint8 [samples or more, height, width, channels].
            labels: Gets the labels, [samples or more, ...].
            current: Gets the row that is being read, int64 [1].

        Returns:
            True if the samples were made; False if `make` has to make them one by one.
        """
        if self._packed is None or self.seeds or not self._copies or self._ahead is None or not self._ahead.idle():
            return False
        into = Destination(images, labels, rows, random, np.arange(len(rows)), current)
        return self._packed.copy_rows(rows, into)

    def make(
        self,
        key: int,
        position: int,
        row: int,
        numbers: Sequence[float],
        into: Any = None,
        on_stage: OnStage = untimed,
        *,
        finish: bool = False,
    ) -> Any:
        """Makes a sample.

        Args:
            key: Key of the epoch's random numbers.
            position: Position of the sample in the epoch.
            row: Row of the sample in the dataset.
            numbers: Its random numbers, from `random`.
            into: Where the image may be written, see `Samples.make`; None: nowhere. A tuple of these for views.
            on_stage: Called at the end of each stage.
            finish: True to do also what is left to `finishers`.

        Returns:
            What the dataset gives.

        Raises:
            CorruptRecord: The record is damaged.
            DatasetError: More than the record is damaged.
            RemoteError: The record cannot be fetched.
            StagingError: It cannot be kept.
            LoaderError: A transform failed.
        """
        try:
            if self.seeds:
                self._seeder.seed(key, position)
            # A single sample is decoded here.
            packed = self._given if finish else self._packed
            if packed is not None:
                return packed.make(row, numbers, into, on_stage, finish=finish or self._finish)
            sample = self._dataset[row]
            on_stage(TRANSFORM)
            return sample
        except (DatasetError, MissingDependency, RemoteError, StagingError):
            raise
        except Exception as error:
            reason = (
                f"{self.describe(row)} cannot be made into a sample (to debug it, call `loader.sample({position})`, "
                "which makes it again)"
            )
            raise blamed(reason, error) from error

    def column(self, name: str, positions: Sequence[int], rows: Sequence[int]) -> list[Any]:
        """One of `fields`, for the samples at some positions, which are these rows."""
        return list(positions) if name == "position" else list(map(self._lookups[name], rows))

    def with_extras(self, sample: Any, position: int, row: int) -> Any:
        """A sample with the fields that were asked for behind it; as the dataset gives it if there are none."""
        if is_sample(sample):
            sample = owned(sample)
        if not self.fields:
            return sample
        extras = (self.column(name, [position], [row])[0] for name in self.fields)
        if is_sample(sample):
            return sample_type((*sample._fields, *self.fields))(*sample, *extras)
        return *(sample if isinstance(sample, (tuple, list)) else (sample,)), *extras

    def pixels(self, row: int, image: Undecoded) -> npt.NDArray[np.uint8]:
        """Decode the image that the sample of `row` was left with, uint8 [height, width, 3].

        Raises:
            CorruptRecord: The image cannot be decoded, or is smaller than the index says.
        """
        assert self._packed is not None
        packed, _ = self._packed.locate(row)
        try:
            found = packed.decoder.pixels(image.data)
            pixels = array_from_image(packed.decoder.decode(image.data, "RGB")) if found is None else found
        except (MissingDependency, MemoryError):
            raise
        except Exception as error:
            raise self.undecodable(row, error) from error
        height, width, _ = pixels.shape
        if not image.fits(width, height):
            raise self.undecodable(row, ValueError(f"it holds an image of only {width} x {height} pixels"))
        return pixels

    def undecodable(self, row: int, error: Exception) -> CorruptRecord:
        """The error for an image that cannot be decoded."""
        assert self._packed is not None
        packed, row = self._packed.locate(row)
        return packed.store.field(IMAGE).undecodable(row, error)

    def describe(self, row: int) -> str:
        """The name of a row for an error message."""
        try:
            return self._packed.describe(row) if self._packed is not None else f"row {row}"
        except PacktrainError:
            return f"row {row}"


def _undecoded(dataset: Dataset[Any]) -> Samples:
    samples = samples_of(dataset)
    if samples is None:
        raise UsageError(
            "only a dataset from open_dataset, concat or subset can hand out images undecoded" + instead_of(dataset)
        )
    if samples.finishers is None:
        raise UsageError("the transforms of the datasets end with different steps on tensors: let them end alike")
    return samples.undecoded()


def _schema_of(samples: Samples) -> Mapping[str, Field]:
    """Return the schema of the stored fields that samples consist of.

    Several datasets one after the other agree on these, but the samples of some may be without a field.
    """
    schemas = [store.schema for store in samples.stores]
    found = [field for field in schemas[0].fields if field.name in (samples.fields or ())]
    return {
        field.name: replace(field, optional=any(schema[field.name].optional for schema in schemas)) for field in found
    }


def image_and_label(sample: Any) -> tuple[Any, Any]:
    """The two parts of a sample.

    Raises:
        UsageError: It has others.
    """
    if isinstance(sample, (tuple, list)) and len(sample) == 2:
        return sample[0], sample[1]
    found = (
        f"{len(sample)} items" if isinstance(sample, (tuple, list)) else f"an object of type {type(sample).__name__}"
    )
    raise UsageError(f"the dataset gives {found} for a row, where (image, label) was expected: give a collate_fn")


def blamed(message: str, error: BaseException) -> LoaderError:
    """A `LoaderError` to be raised from an error in the user's code, whose traceback then begins with that code."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    if trace is not None:
        error.__traceback__ = trace
    return LoaderError(f"{message}: {type(error).__name__}: {error}")


def sendable(error: PacktrainError) -> PacktrainError:
    """The error, with the traceback of its cause as a note: only the note reaches another process."""
    if isinstance(error, LoaderError) and error.__cause__ is not None:
        error.add_note("".join(traceback.format_exception(error.__cause__)).rstrip())
    return error


def clear_frames(error: BaseException) -> None:
    """Clear packtrain's frames in the traceback of an error, so that whoever keeps it keeps no records.

    Interactive Python keeps the last error. The frames of others stay as they are, for a debugger.
    """
    found: BaseException | None = error
    while found is not None:
        trace = found.__traceback__
        while trace is not None:
            frame: FrameType | None = trace.tb_frame
            # Also the frames that called it, which may have been taken out of the traceback.
            while frame is not None and _is_ours(frame):
                # It refuses while the frame is in use.
                with suppress(RuntimeError):
                    frame.clear()
                frame = frame.f_back
            trace = trace.tb_next
        found = found.__cause__ or found.__context__


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "packtrain"
