"""How a batch is made: written to arrays that are there already, or by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from packtrain._codec.pillow import require_pillow
from packtrain._codec.stages import WRITE, OnStage, Stage, untimed
from packtrain._core.errors import CorruptRecord, LoaderError

from .arena import Arrays, Field, Layout
from .randomness import mixed, seed_all
from .samples import SampleMaker, traceback_of

_TRIES: Final = 1000
# The numbers that `collate_fn` draws are not those of a sample.
_COLLATE: Final = 0x636F6C6C617465


class Unwanted(Exception):
    """The batch is no longer wanted: the consumer broke off its pass."""


class Made(NamedTuple):
    """A batch that was made.

    Attributes:
        size: Samples in it: the first ones of its arrays.
        skipped: What was wrong with each sample that was left out.
        extras: The fields of each sample that is in it.
        collated: What `collate_fn` made of the samples, None without one.
    """

    size: int
    skipped: list[str]
    extras: list[tuple[Any, ...]]
    collated: Any = None


class Progress:
    """Which row is being read and what for, for who looks at it from outside; here nobody does.

    Attributes:
        current: The row, int64 [1].
    """

    def __init__(self) -> None:
        self.current = memoryview(bytearray(8)).cast("q")

    def note(self, row: int) -> None:
        """A row is going to be read.

        Raises:
            Unwanted: It need not be.
        """

    def on_stage(self, samples: int) -> Iterable[OnStage]:
        """What keeps the time of each of the samples that are going to be made one by one."""
        return repeat(untimed, samples)

    def start(self) -> None:
        """One of them is begun whose time is kept."""

    def end(self, stage: Stage | None) -> None:
        """All since the last call, or since the batch was begun, was this stage; None: that of the samples."""


class BatchMaker:
    """Makes batches.

    Args:
        samples: Makes what is in them.
        collate_fn: Makes a batch of a list of samples, each a tuple of image, label and fields; None: images and
            labels are written to arrays.
        skip: Leave damaged records out.
    """

    def __init__(
        self, samples: SampleMaker, collate_fn: Callable[[list[Any]], Any] | None = None, *, skip: bool = False
    ) -> None:
        self.samples: Final = samples
        self.collate_fn: Final = collate_fn
        self._skip = skip

    @property
    def seeds(self) -> bool:
        """Whether what is not packtrain's takes part, for which the generators of the process are seeded."""
        return self.samples.seeds or self.collate_fn is not None

    def layout(self, batch_size: int, key: int, positions: Sequence[int], rows: Sequence[int]) -> Layout:
        """The arrays of a batch: row and position of each sample, which go in, and what comes out.

        Image and label are those of the first of the given samples that is not damaged.

        Raises:
            PacktrainError: It cannot be made, or arrays cannot hold it.
        """
        inputs = {"row": Field("<i8"), "position": Field("<i8")}
        if self.collate_fn is not None:
            return Layout(batch_size, inputs)
        skipped: list[str] = []
        positions = positions[:_TRIES]
        random = self.samples.random(key, positions)
        for position, row, image, label in self._samples(key, positions, rows, random, skipped, Progress()):
            try:
                return Layout(batch_size, {**inputs, "image": _image_field(image), "label": _label_field(label)})
            except (TypeError, ValueError) as error:
                raise self._unfit(position, row, error) from error
        raise LoaderError(f"no sample can be made: all of the first {len(skipped)} records are damaged. {skipped[0]}")

    def make(self, key: int, count: int, layout: Layout, arrays: Arrays, progress: Progress | None = None) -> Made:
        """Makes a batch.

        Args:
            key: Of the epoch's random numbers.
            count: Samples.
            layout: What `layout` returned.
            arrays: Of this layout: they say which samples, and get what these are.
            progress: Is told which row is being read.

        Raises:
            PacktrainError: A sample cannot be made, or does not fit.
        """
        progress = progress or Progress()
        positions, rows = arrays["position"][:count].tolist(), arrays["row"][:count].tolist()
        skipped: list[str] = []
        extras: list[tuple[Any, ...]] = []
        random = self.samples.random(key, positions)
        if self.collate_fn is not None:
            samples = []
            for position, row, image, label in self._samples(key, positions, rows, random, skipped, progress):
                samples.append((image, label, *self.samples.extras(position, row)))
            if not samples:
                return Made(0, skipped, [])
            seed_all(mixed(key, _COLLATE), positions[0])
            progress.end(None)
            collated = self._collated(samples)
            progress.end(Stage.COLLATE)
            return Made(len(samples), skipped, [], collated)
        writer = _Writer(layout, arrays)
        if count and writer.direct:
            progress.note(rows[0])
            images, labels = arrays["image"], arrays["label"]
            if self.samples.copy(arrays["row"][:count], random, images, labels, progress.current):
                if self.samples.fields:
                    extras += map(self.samples.extras, positions, rows)
                progress.end(Stage.COPY)
                return Made(count, skipped, extras)
        made = self._samples(key, positions, rows, random, skipped, progress, writer.target)
        for position, row, image, label in made:
            try:
                writer.write(image, label)
            except (TypeError, ValueError, OverflowError) as error:
                raise self._unfit(position, row, error) from error
            if self.samples.fields:
                extras.append(self.samples.extras(position, row))
        progress.end(None)
        return Made(writer.count, skipped, extras)

    def _samples(
        self,
        key: int,
        positions: Sequence[int],
        rows: Sequence[int],
        random: npt.NDArray[np.float64],
        skipped: list[str],
        progress: Progress,
        target: Callable[[], npt.NDArray[np.uint8] | None] = lambda: None,
    ) -> Iterator[tuple[int, int, Any, Any]]:
        """Position, row, image and label of each sample that is not left out."""
        each = zip(
            positions, self.samples.ahead(rows), random.tolist(), progress.on_stage(len(positions)), strict=False
        )
        for position, row, numbers, on_stage in each:
            progress.note(row)
            if on_stage is not untimed:
                progress.start()
            try:
                image, label = self.samples.make(key, position, row, numbers, target(), on_stage)
            except CorruptRecord as error:
                if not self._skip:
                    raise
                skipped.append(str(error))
            else:
                yield position, row, image, label
            on_stage(WRITE)

    def _collated(self, samples: list[Any]) -> Any:
        assert self.collate_fn is not None
        try:
            return self.collate_fn(samples)
        except Exception as error:
            raise LoaderError(f"collate_fn failed: {type(error).__name__}: {error}\n\n{traceback_of(error)}") from error

    def _unfit(self, position: int, row: int, error: Exception) -> LoaderError:
        return LoaderError(
            f"{self.samples.describe(row)}, position {position}: {error}. Let the transforms make all samples alike, "
            "or give a collate_fn"
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
        """Where the next image may be decoded to."""
        self._target = self._images[self.count] if self.direct else None
        return self._target

    def write(self, image: Any, label: Any) -> None:
        """Adds a sample; an image that is the target already lies where it belongs."""
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
        raise TypeError(f"its label is a {type(label).__qualname__}, which no tensor can hold")
    array = collated.numpy()
    return Field(array.dtype.str, array.shape[1:])


def _pixels(image: Any, *, channels_last: bool) -> npt.NDArray[Any]:
    """What a transform made, as an array; with `channels_last`, a tensor [channels, height, width] or a PIL image."""
    if isinstance(image, require_pillow().Image):
        image = torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1)
    if isinstance(image, torch.Tensor):
        return (image.permute(1, 2, 0) if channels_last and image.ndim == 3 else image).detach().numpy()
    if isinstance(image, np.ndarray):
        return image
    raise TypeError(f"its image is a {type(image).__qualname__}: expected a tensor, an array or a PIL image")


def _require_same(what: str, value: npt.NDArray[Any], field: Field) -> None:
    expected = np.dtype(field.dtype)
    # Labels are numbers: a float may lose digits, but an integer must not turn into another one.
    casting: Literal["safe", "same_kind"] = "safe" if expected.kind in "iu" else "same_kind"
    same_dtype = value.dtype == expected or (what == "label" and np.can_cast(value.dtype, expected, casting))
    if value.shape != field.shape or not same_dtype:
        order = " (height, width, channels)" * field.channels_last
        raise ValueError(
            f"its {what} is {value.dtype} {list(value.shape)}{order}, that of the first sample was {expected} "
            f"{list(field.shape)}"
        )
