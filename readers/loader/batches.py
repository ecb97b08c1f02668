"""How a batch is made: samples written to existing arrays, or collated by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from packtrain._codec.pillow import require_pillow
from packtrain._codec.stages import WRITE, Stage, untimed
from packtrain._core.errors import CorruptRecord, LoaderError, PacktrainError

from ..monitoring.timing import Observer
from .arena import Arrays, Field, Layout
from .generators import Seeder
from .randomness import mixed
from .samples import SampleMaker, blamed, image_and_label

if TYPE_CHECKING:
    from torch.utils.data import Dataset

# Mixed into the key, so that `collate_fn` does not draw the same numbers as a sample.
_COLLATE: Final = 0x636F6C6C617465


class Made(NamedTuple):
    """The result of a job: a batch, or an error.

    Attributes:
        size: Number of samples in the batch. They come first in its arrays.
        skipped: For each sample that was left out, what was wrong with it.
        extras: For each sample in the batch, the fields that were asked for.
        collated: What `collate_fn` returned; None without `collate_fn`.
        layout: The arrays of a batch, if the job was to find that out.
        error: Why there is no batch; None if there is one.
    """

    size: int = 0
    skipped: Sequence[str] = ()
    extras: Sequence[tuple[Any, ...]] = ()
    collated: Any = None
    layout: Layout | None = None
    error: PacktrainError | None = None


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
            samples are (image, label), and are written to arrays.
        skip: True to leave out damaged records, False to raise an error.
    """

    def __init__(
        self, samples: SampleMaker, collate_fn: Callable[[list[Any]], Any] | None = None, *, skip: bool = False
    ) -> None:
        self.samples: Final = samples
        self.collate_fn: Final = collate_fn
        self._skip = skip
        self._seeder = Seeder(collate_fn)

    def of(self, dataset: Dataset[Any]) -> Self:
        """The same for a dataset as it is now; for the dataset it has, this one itself."""
        if self.samples.same_dataset(dataset):
            self.samples.look_again()
            self._seeder.look_again()
            return self
        return type(self)(SampleMaker(dataset, self.samples.fields), self.collate_fn, skip=self._skip)

    def sample(self, key: int, position: int, row: int) -> Any:
        """The sample at a position, with its fields: what `collate_fn` gets, or what becomes a row of the arrays."""
        numbers = self.samples.random(key, [position])[0].tolist()
        sample = self.samples.make(key, position, row, numbers)
        return self.samples.with_extras(
            sample if self.collate_fn is not None else image_and_label(sample), position, row
        )

    @property
    def seeds(self) -> bool:
        """True if code that is not packtrain's takes part, for which the process's generators are seeded."""
        return self.samples.seeds or self.collate_fn is not None

    def layout(self, probe: Probe, observer: Observer | None = None) -> Layout:
        """The arrays of a batch: rows and positions, which go in, and images and labels, which come out.

        The first undamaged one of the samples decides the shape and dtype of images and labels.

        Args:
            probe: The samples to try.
            observer: Gets the row that is being read.

        Raises:
            PacktrainError: The sample cannot be made, or cannot be held by arrays.
        """
        batch_size, key, positions, rows = probe
        inputs = {"row": Field("<i8"), "position": Field("<i8")}
        if self.collate_fn is not None:
            return Layout(batch_size, inputs)
        skipped: list[str] = []
        random = self.samples.random(key, positions)
        for position, row, sample in self._samples(key, positions, rows, random, skipped, observer or Observer()):
            image, label = image_and_label(sample)
            try:
                return Layout(batch_size, {**inputs, "image": _image_field(image), "label": _label_field(label)})
            except (TypeError, ValueError) as error:
                raise self._unfit(position, row, error) from error
        raise LoaderError(f"no sample can be made: all of the first {len(skipped)} records are damaged. {skipped[0]}")

    def make(
        self,
        key: int,
        count: int,
        layout: Layout,
        arrays: Arrays,
        observer: Observer | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> Made:
        """Makes a batch.

        Args:
            key: Key of the epoch's random numbers.
            count: Number of samples.
            layout: What `layout` returned.
            arrays: Arrays of this layout. They hold the rows and positions, and get the images and labels.
            observer: Receives the progress of the batch.
            cancelled: Asked before each sample. Once it has returned True, it must always return True.

        Returns:
            The batch; or `CANCELLED`, as soon as `cancelled` says so.

        Raises:
            PacktrainError: A sample cannot be made, or does not fit into the arrays.
        """
        if cancelled():
            return CANCELLED
        observer = observer or Observer()
        positions, rows = arrays["position"][:count].tolist(), arrays["row"][:count].tolist()
        skipped: list[str] = []
        extras: list[tuple[Any, ...]] = []
        random = self.samples.random(key, positions)
        if self.collate_fn is not None:
            samples = [
                self.samples.with_extras(sample, position, row)
                for position, row, sample in self._samples(key, positions, rows, random, skipped, observer, cancelled)
            ]
            if cancelled():
                return CANCELLED
            if not samples:
                return Made(0, skipped)
            self._seeder.seed(mixed(key, _COLLATE), positions[0])
            observer.end_stage(None)
            collated = self._collated(samples)
            observer.end_stage(Stage.COLLATE)
            return Made(len(samples), skipped, collated=collated)
        writer = _Writer(layout, arrays)
        if count and writer.direct:
            observer.current[0] = rows[0]
            images, labels = arrays["image"], arrays["label"]
            if self.samples.copy(arrays["row"][:count], random, images, labels, observer.current):
                if self.samples.fields:
                    extras += map(self.samples.extras, positions, rows)
                observer.end_stage(Stage.COPY)
                return Made(count, skipped, extras)
        made = self._samples(key, positions, rows, random, skipped, observer, cancelled, writer.target)
        for position, row, sample in made:
            image, label = image_and_label(sample)
            try:
                writer.write(image, label)
            except (TypeError, ValueError, OverflowError) as error:
                raise self._unfit(position, row, error) from error
            if self.samples.fields:
                extras.append(self.samples.extras(position, row))
        observer.end_stage(None)
        return CANCELLED if cancelled() else Made(writer.count, skipped, extras)

    def _samples(
        self,
        key: int,
        positions: Sequence[int],
        rows: Sequence[int],
        random: npt.NDArray[np.float64],
        skipped: list[str],
        observer: Observer,
        cancelled: Callable[[], bool] = _never,
        target: Callable[[], npt.NDArray[np.uint8] | None] = lambda: None,
    ) -> Iterator[tuple[int, int, Any]]:
        """Position, row and content of each sample that is not left out, until the batch is cancelled."""
        current = observer.current
        each = zip(
            positions, self.samples.ahead(rows), random.tolist(), observer.callbacks(len(positions)), strict=False
        )
        for position, row, numbers, on_stage in each:
            if cancelled():
                return
            current[0] = row
            if on_stage is not untimed:
                observer.begin_sample()
            try:
                sample = self.samples.make(key, position, row, numbers, target(), on_stage)
            except CorruptRecord as error:
                if not self._skip:
                    raise
                skipped.append(str(error))
            else:
                yield position, row, sample
            on_stage(WRITE)

    def _collated(self, samples: list[Any]) -> Any:
        assert self.collate_fn is not None
        try:
            return self.collate_fn(samples)
        except Exception as error:
            raise blamed("collate_fn failed", error) from error

    def _unfit(self, position: int, row: int, error: Exception) -> LoaderError:
        return LoaderError(
            f"{self.samples.describe(row)}, position {position}: {error}. Let the transforms give all samples the same "
            "shape and dtype, or give a collate_fn"
        )


class _Writer:
    """Writes samples one after the other to the arrays of a batch."""

    def __init__(self, layout: Layout, arrays: Arrays) -> None:
        self._image, self._label = layout.fields["image"], layout.fields["label"]
        self._images, self._labels = arrays["image"], arrays["label"]
        self.direct: Final = self._image.channels_last and self._images.dtype == np.uint8
        self._target: npt.NDArray[np.uint8] | None = None
        self.count = 0

    def target(self) -> npt.NDArray[np.uint8] | None:
        """Where the next image may be decoded to; None if it cannot be decoded in place."""
        self._target = self._images[self.count] if self.direct else None
        return self._target

    def write(self, image: Any, label: Any) -> None:
        """Adds a sample. An image that is the target itself is in its place already."""
        if self._target is None or image is not self._target:
            pixels = _pixels(image, channels_last=self._image.channels_last)
            _require_same("image", pixels, self._image)
            self._images[self.count] = pixels
        if not (type(label) is int and self._label.shape == () and self._labels.dtype != bool):
            label = np.asarray(label)
            _require_same("label", label, self._label)
        self._labels[self.count] = label
        self.count += 1


def _image_field(image: Any) -> Field:
    channels_last = isinstance(image, require_pillow().Image) or (
        isinstance(image, torch.Tensor) and image.ndim == 3 and image.permute(1, 2, 0).is_contiguous()
    )
    pixels = _pixels(image, channels_last=channels_last)
    return Field(pixels.dtype.str, pixels.shape, channels_last)


def _label_field(label: Any) -> Field:
    collated = default_collate([label])
    if not isinstance(collated, torch.Tensor):
        raise TypeError(f"its label is an object of type {type(label).__qualname__}, which no tensor can hold")
    array = collated.numpy()
    return Field(array.dtype.str, array.shape[1:])


def _pixels(image: Any, *, channels_last: bool) -> npt.NDArray[Any]:
    """What a transform returned, as an array.

    Args:
        image: A tensor, an array or a PIL image.
        channels_last: True to turn a tensor [channels, height, width] or a PIL image into [height, width, channels].
    """
    if isinstance(image, require_pillow().Image):
        image = torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1)
    if isinstance(image, torch.Tensor):
        return (image.permute(1, 2, 0) if channels_last and image.ndim == 3 else image).detach().numpy()
    if isinstance(image, np.ndarray):
        return image
    raise TypeError(
        f"its image is an object of type {type(image).__qualname__}: expected a tensor, an array or a PIL image"
    )


def _require_same(what: str, value: npt.NDArray[Any], field: Field) -> None:
    expected = np.dtype(field.dtype)
    # Labels are numbers: a float may lose digits, but an integer must not become another integer.
    casting: Literal["safe", "same_kind"] = "safe" if expected.kind in "iu" else "same_kind"
    same_dtype = value.dtype == expected or (what == "label" and np.can_cast(value.dtype, expected, casting))
    if value.shape != field.shape or not same_dtype:
        order = " (height, width, channels)" * field.channels_last
        raise ValueError(
            f"its {what} is {value.dtype} {list(value.shape)}{order}, that of the first sample was {expected} "
            f"{list(field.shape)}"
        )
