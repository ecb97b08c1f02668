"""Makes a batch: samples written to existing arrays, or collated by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._codec.stages import WRITE, Stage, untimed
from packtrain._core.errors import CorruptRecord, LoaderError, PacktrainError
from packtrain._core.keys import mixed
from packtrain._core.schema import IMAGE, PAIR

from ..dataset.rows import is_sample
from ..monitoring.timing import StageTimer
from ..transforms.undecoded import Undecoded
from .arena import Arrays, Layout, SlotArray, Varying
from .blob import Blob, packed
from .columns import Column, column_of, mask_like, present, view
from .encoded import with_room
from .finishing import Finishing
from .generators import Seeder
from .samples import SampleMaker, blamed, image_and_label
from .writing import SampleWriter, Target

# Mixed into the key, so that `collate_fn` does not draw the same numbers as a sample.
_COLLATE: Final = 0x636F6C6C617465

_NUMBER: Final = SlotArray("<i8", small=True)
# Number of undecoded images that show how large they are.
_MEASURED: Final = 32
_INPUTS: Final = {"row": _NUMBER, "position": _NUMBER}


class Made(NamedTuple):
    """The result of a job: a batch, or an error.

    Attributes:
        size: Number of samples in the batch. They come first in its arrays.
        skipped: For each sample that was left out, what was wrong with it.
        blob: The fields of the batch that lie in no array, see `blob`.
        undecoded: The images that are still to be decoded, if they lie in no slot; see `encoded`.
        refused: For each image that DALI or the GPU refused, so that packtrain decoded it on the CPU, a message.
        collated: What `collate_fn` returned; None without `collate_fn`.
        layout: The arrays of a batch, if the job was to find that out.
        error: Why there is no batch; None if there is one.
    """

    size: int = 0
    skipped: Sequence[str] = ()
    blob: Blob = ()
    collated: Any = None
    layout: Layout | None = None
    error: PacktrainError | None = None
    undecoded: Sequence[Undecoded] = ()
    refused: Sequence[str] = ()


CANCELLED: Final = Made()
"""The result of a cancelled job. Nobody reads it."""


class Probe(NamedTuple):
    """Samples that show what a batch looks like.

    Attributes:
        batch_size: Number of samples in a batch.
        key: Key of the epoch's random numbers.
        positions: Positions of the samples to try.
        rows: Rows of the samples to try.
    """

    batch_size: int
    key: int
    positions: Sequence[int]
    rows: Sequence[int]


def _never() -> bool:
    return False


class BatchMaker:
    """Makes batches.

    Args:
        samples: Makes the samples.
        collate_fn: Makes a batch of a list of samples, each as the dataset gives it, with the fields behind it; None:
            samples are (image, label), or named tuples of fields, and are written to arrays.
        skip: True to leave out damaged records, False to raise an error.
        leave: True to leave the steps on tensors to the consumer's process.

    Attributes:
        finishing: Runs these steps.
        skip: True if damaged records are left out.
    """

    def __init__(
        self,
        samples: SampleMaker,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        skip: bool = False,
        leave: bool = False,
    ) -> None:
        self.samples: Final = samples
        self.collate_fn: Final = collate_fn
        self.finishing: Final = Finishing(samples, leave=leave)
        self.skip: Final = skip
        self._seeder = Seeder(collate_fn)

    def look_again(self) -> None:
        """Prepare for a dataset that is not packtrain's, or a function, to have changed."""
        self.samples.look_again()
        self._seeder.look_again()

    def sample(self, key: int, position: int, row: int) -> Any:
        """The sample at a position, with its fields: what `collate_fn` gets, or what becomes a row of the arrays."""
        numbers = self.samples.random(key, [position])[0].tolist()
        sample = self.samples.make(key, position, row, numbers, finish=True)
        if self.collate_fn is None and not is_sample(sample):
            sample = image_and_label(sample)
        return self.samples.with_extras(sample, position, row)

    @property
    def seeds(self) -> bool:
        """True if code that is not packtrain's takes part, for which the process's generators are seeded."""
        return self.samples.seeds or self.collate_fn is not None

    def layout(self, probe: Probe, timer: StageTimer | None = None) -> Layout:
        """Return the layout of a batch: rows and positions, which go in, and fields of the samples, which come out.

        A field's shape and dtype are those that the dataset knows, otherwise those of the first sample that has it.

        Args:
            probe: The samples to try.
            timer: Gets the row that is being read.

        Raises:
            PacktrainError: The sample cannot be made, or cannot be held by a batch.
        """
        batch_size, key, positions, rows = probe
        if self.collate_fn is not None:
            return Layout(batch_size, _INPUTS)
        skipped: list[str] = []
        found: dict[str, Column] = {}
        names: tuple[str, ...] = ()
        for position, row, sample in self._tried(key, positions, rows, skipped, timer or StageTimer()):
            named = is_sample(sample)
            names, values = (sample._fields, sample) if named else (PAIR, image_and_label(sample))
            try:
                self._look(found, names, values)
            except (TypeError, ValueError) as error:
                raise self._unfit(position, row, error) from error
            if len(found) == len(names):
                layout = self._layout(batch_size, {name: found[name] for name in names}, named=named)
                if IMAGE in layout.fields and layout.fields[IMAGE].undecoded:
                    layout = with_room(layout, self._encoded_sizes(probe, timer or StageTimer()))
                return self.finishing.planned(layout)
        if missing := [name for name in names if name not in found]:
            raise LoaderError(
                f"none of the first {len(positions)} samples has the field {missing[0]}, so its size is unknown: leave "
                "it out of open_dataset(fields=...), or give a collate_fn"
            )
        raise LoaderError(f"no sample can be made: all of the first {len(skipped)} records are damaged. {skipped[0]}")

    def _tried(
        self, key: int, positions: Sequence[int], rows: Sequence[int], skipped: list[str], timer: StageTimer
    ) -> Iterator[tuple[int, int, Any]]:
        """Position, row and content of each sample that is not left out, for one who may not need all of them."""
        for position, row in zip(positions, rows, strict=True):
            # One at a time, so that the others are not read ahead: each may lie in another shard.
            random = self.samples.random(key, [position])
            yield from self._samples(key, [position], [row], random, skipped, timer)

    def _encoded_sizes(self, probe: Probe, timer: StageTimer) -> list[int]:
        """Numbers of bytes of the undecoded images of some samples."""
        positions, rows = probe.positions[:_MEASURED], probe.rows[:_MEASURED]
        self.samples.expect(np.array(rows, np.int64))
        sizes = []
        # What is wrong with them shows when the batches are made.
        with suppress(PacktrainError):
            for _, _, sample in self._tried(probe.key, positions, rows, [], timer):
                image = sample.image if is_sample(sample) else sample[0]
                if image is not None:
                    sizes.append(memoryview(image.data).nbytes)
        return sizes

    def _look(self, found: dict[str, Column], names: Sequence[str], values: Sequence[Any]) -> None:
        """Adds what a sample shows of the fields that are not `found` yet."""
        known = self.samples.schema
        for name, value in zip(names, values, strict=True):
            if name not in found and (column := column_of(name, value, known.get(name))) is not None:
                found[name] = column
        # Masks may be rare, but are as large as the image.
        image = found.get(IMAGE)
        if isinstance(image, SlotArray) and len(image.shape) == 3:
            masks = [name for name in names if name not in found and known[name].kind == "mask"]
            found |= {name: mask_like(image, known[name]) for name in masks}

    def _layout(self, batch_size: int, found: dict[str, Column], *, named: bool) -> Layout:
        extras = self.samples.fields
        optional = [name for name in found if name in self.samples.schema and self.samples.schema[name].optional]
        views = {
            view(name, number): field
            for name, column in found.items()
            if not isinstance(column, (SlotArray, Varying))
            for number, field in enumerate(column)
        }
        fields = {
            **_INPUTS,
            **{name: column for name, column in found.items() if isinstance(column, SlotArray)},
            **views,
            **{present(name): SlotArray("|b1", small=True) for name in optional},
            **({"line": _NUMBER} if "line" in extras else {}),
        }
        varying = {name: column for name, column in found.items() if isinstance(column, Varying)}
        if "path" in extras:
            varying["path"] = Varying("text")
        return Layout(batch_size, fields, varying, (*found, *extras), named)

    def make(
        self,
        key: int,
        count: int,
        layout: Layout,
        arrays: Arrays,
        timer: StageTimer | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> Made:
        """Makes a batch.

        Args:
            key: Key of the epoch's random numbers.
            count: Number of samples.
            layout: What `layout` returned.
            arrays: Arrays of this layout. They hold the rows and positions, and get the images and labels.
            timer: Receives the progress of the batch.
            cancelled: Asked before each sample. Once it has returned True, it must always return True.

        Returns:
            The batch; or `CANCELLED`, as soon as `cancelled` says so.

        Raises:
            PacktrainError: A sample cannot be made, or does not fit into the arrays.
        """
        if cancelled():
            return CANCELLED
        timer = timer or StageTimer()
        made = self._made(key, count, *self.finishing.begun(layout, arrays), timer, cancelled)
        if made.size and self.finishing.finish(key, made.size, layout, arrays):
            timer.end_stage(Stage.FINISH)
        return made

    def _made(
        self,
        key: int,
        count: int,
        layout: Layout,
        arrays: Arrays,
        timer: StageTimer,
        cancelled: Callable[[], bool],
    ) -> Made:
        """A batch whose images are still to be finished."""
        positions, rows = arrays["position"][:count].tolist(), arrays["row"][:count].tolist()
        skipped: list[str] = []
        random = self.samples.random(key, positions)
        if self.collate_fn is not None:
            samples = [
                self.samples.with_extras(sample, position, row)
                for position, row, sample in self._samples(key, positions, rows, random, skipped, timer, cancelled)
            ]
            if cancelled():
                return CANCELLED
            if not samples:
                return Made(0, skipped)
            self._seeder.seed(mixed(key, _COLLATE), positions[0])
            timer.end_stage(None)
            try:
                collated = self.collate_fn(samples)
            except Exception as error:
                raise blamed("collate_fn failed", error) from error
            timer.end_stage(Stage.COLLATE)
            return Made(len(samples), skipped, collated=collated)
        names = layout.columns[: len(layout.columns) - len(self.samples.fields)]
        writer = SampleWriter(layout, arrays, names)
        if count and writer.direct and set(names) == set(PAIR) and present(IMAGE) not in arrays:
            timer.current[0] = rows[0]
            images, labels = arrays["image"], arrays["label"]
            if self.samples.copy(arrays["row"][:count], random, images, labels, timer.current):
                self._add_extras(arrays, writer.lists, positions, rows)
                timer.end_stage(Stage.COPY)
                return Made(count, skipped, packed(layout.varying, writer.lists))
        made: list[tuple[int, int]] = []
        each = self._samples(key, positions, rows, random, skipped, timer, cancelled, writer.target)
        for position, row, sample in each:
            try:
                writer.write(self._values(sample, names, named=layout.named))
            except (TypeError, ValueError, OverflowError) as error:
                raise self._unfit(position, row, error) from error
            made.append((position, row))
        if cancelled():
            timer.end_stage(None)
            return CANCELLED
        if len(made) < count:
            positions, rows = ([pair[part] for pair in made] for part in (0, 1))
            # Whoever finishes the images draws their random numbers once more.
            arrays["position"][: len(made)] = positions
        self._add_extras(arrays, writer.lists, positions, rows)
        blob = packed(layout.varying, writer.lists)
        timer.end_stage(None)
        return Made(writer.count, skipped, blob, undecoded=writer.undecoded)

    def _values(self, sample: Any, names: tuple[str, ...], *, named: bool) -> Sequence[Any]:
        """The values of a sample's fields.

        Raises:
            TypeError: It has others than the first sample.
        """
        if not named:
            return image_and_label(sample)
        if getattr(sample, "_fields", None) != names:
            raise TypeError(f"it has not the fields of the first sample, which were {', '.join(names)}")
        values: tuple[Any, ...] = sample
        return values

    def _add_extras(self, arrays: Arrays, lists: dict[str, list[Any]], positions: list[int], rows: list[int]) -> None:
        """Writes what the loader adds to samples."""
        for name in self.samples.fields:
            column = self.samples.column(name, positions, rows)
            if name in lists:
                lists[name] += column
            else:
                arrays[name][: len(column)] = column

    def _samples(
        self,
        key: int,
        positions: Sequence[int],
        rows: Sequence[int],
        random: npt.NDArray[np.float64],
        skipped: list[str],
        timer: StageTimer,
        cancelled: Callable[[], bool] = _never,
        target: Callable[[], Target] = lambda: None,
    ) -> Iterator[tuple[int, int, Any]]:
        """Position, row and content of each sample that is not left out, until the batch is cancelled."""
        self.samples.expect(np.array(rows, np.int64))
        current = timer.current
        each = zip(positions, self.samples.ahead(rows), random.tolist(), timer.callbacks(len(positions)), strict=False)
        for position, row, numbers, on_stage in each:
            if cancelled():
                return
            current[0] = row
            if on_stage is not untimed:
                timer.begin_sample()
            try:
                sample = self.samples.make(key, position, row, numbers, target(), on_stage)
            except CorruptRecord as error:
                if not self.skip:
                    raise
                skipped.append(str(error))
            else:
                yield position, row, sample
            on_stage(WRITE)

    def _unfit(self, position: int, row: int, error: Exception) -> LoaderError:
        return LoaderError(
            f"{self.samples.describe(row)}, position {position}: {error}. Let the transforms give all samples the same "
            "shape and dtype, or give a collate_fn"
        )
