"""Makes batches with DALI, in the place of the loader's workers.

On a CPU, DALI only decodes: JPEGs and PNGs of up to 8 bits, of which it makes the pixels that Pillow makes. packtrain
crops, resizes and flips these as it does for `packtrain.Loader`, so that all pixels are the same. It also decodes all
other images, and those that DALI refuses.

On a GPU, DALI does all of that, with other arithmetic than Pillow's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from packtrain._codec.image_plan import ImagePlan
from packtrain._codec.stages import Stage
from packtrain._core.errors import CorruptRecord, LoaderError
from packtrain._core.overriding import override
from packtrain._core.schema import IMAGE
from packtrain._readers.loader.batches import BatchMaker, Probe
from packtrain._readers.loader.engine import Batch, Job, SerialEngine
from packtrain._readers.loader.slots import Event
from packtrain._readers.transforms.undecoded import DecodedElsewhere

from .graph import STAND_IN, DaliOptions, DaliPipeline, Inputs, decodes, inputs_of

Pixels = npt.NDArray[np.uint8]


class _Begun(NamedTuple):
    """A batch that DALI works on.

    Attributes:
        batch: All of the batch but the images.
        rows: Rows of its samples.
        inputs: Arguments of DALI, with the memory that DALI reads.
        plans: What becomes of the pixels of each image.
        pixels: Pixels of the images that packtrain decoded, by number in the batch: the rectangle ``plan.source``.
    """

    batch: Batch
    rows: Sequence[int]
    inputs: Inputs
    plans: Sequence[ImagePlan]
    pixels: dict[int, Pixels]


class DaliEngine(SerialEngine):
    """Reads and plans batches in this process, and has DALI's threads decode them ahead of the consumer.

    Args:
        options: Resources of DALI.
        maker: Makes batches of undecoded images.
        probe: Samples from which the layout of a batch is found.

    Raises:
        PacktrainError: None of the samples can be made.
    """

    def __init__(self, options: DaliOptions, maker: BatchMaker, probe: Probe) -> None:
        super().__init__(maker, probe)
        self._options: Final = options
        self._begun: deque[_Begun] = deque()
        """The batches that DALI works on, in order."""
        self._jobs: Iterator[Job] = iter(())
        """The batches after those."""
        self._error: Exception | None = None
        """Error of the batch after those that are begun."""
        self._refused: dict[int, str] = {}
        """Rows that DALI refused, with its reason for each."""
        self._damaged: dict[int, str] = {}
        """Rows that packtrain refused as well, with what is wrong with each."""
        self._lent: deque[tuple[Event, Any]] = deque()
        """Memory of a GPU that is read until an event."""
        self._elsewhere: Final = DecodedElsewhere()
        self._threads: Final = ThreadPoolExecutor(options.threads, "packtrain-resize")
        self._pipeline: DaliPipeline | None = None

    @override
    def run(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        self._abandon()
        self._jobs, self._error = jobs, None
        self._fill()
        while self._begun:
            # In a list, because a variable would keep the batch alive after the consumer has dropped it.
            batch = self._next()
            # Before the consumer goes to work, so that DALI does not wait until it comes back.
            self._fill()
            if batch:
                yield batch.pop()
        if self._error is not None:
            raise self._error

    def _fill(self) -> None:
        """Begin as many batches as there is room for, or all there are."""
        begun: list[_Begun] = []
        job: Job | None = None
        while len(self._begun) + len(begun) < self._options.depth:
            try:
                with self._timed():
                    if (job := next(self._jobs, None)) is not None:
                        begun.append(self._planned(job))
            except Exception as error:
                # The batches before it are good.
                self._error, self._jobs = error, iter(())
            if job is None:
                break
        if not begun:
            return
        if self._pipeline is None:
            self._pipeline = self._built(self.layout.batch_size, self._options)
        elif not self._begun:
            self._pipeline.rewind()
        self._begun += begun
        try:
            self._pipeline.begin([each.inputs for each in begun])
        except BaseException as error:
            self._abandon()
            if not isinstance(error, Exception):
                raise
            raise _failed(error) from error

    def _planned(self, job: Job) -> _Begun:
        """Read and plan a batch, and decode the images that DALI does not decode."""
        assert self._maker is not None
        samples = self._maker.samples
        kept = np.array([row not in self._damaged for row in job.rows.tolist()], bool)
        left_out = [self._damaged[row] for row in job.rows[~kept].tolist()]
        batch = self._made(job._replace(rows=job.rows[kept], positions=job.positions[kept]))
        images = batch.made.undecoded
        row_at = dict(zip(job.positions.tolist(), job.rows.tolist(), strict=True))
        rows = [row_at[position] for position in batch.value["position"][: len(images)].tolist()]
        pixels: dict[int, Pixels] = {}
        for number, (row, image) in enumerate(zip(rows, images, strict=True)):
            if row not in self._refused and decodes(image):
                continue
            try:
                left, top, width, height = image.plan.source
                pixels[number] = samples.pixels(row, image)[top : top + height, left : left + width]
            except CorruptRecord as error:
                if not self._maker.skip:
                    raise
                self._damaged[row] = str(error)
        if not self._damaged.keys().isdisjoint(rows):
            # Once more, without those that are damaged.
            return self._planned(job)
        refused = [
            f"DALI refuses {samples.describe(row)}, so packtrain decodes it: {self._refused[row]}"
            for row in rows
            if row in self._refused
        ]
        made = batch.made._replace(skipped=[*batch.made.skipped, *left_out], refused=refused, undecoded=())
        given = [STAND_IN if number in pixels else image for number, image in enumerate(images)]
        inputs = inputs_of(given or [STAND_IN], resizes=self._options.device is not None)
        return _Begun(Batch(job, made, batch.value), rows, inputs, [image.plan for image in images], pixels)

    def _next(self) -> list[Batch]:
        """Wait for the batch that was begun first; empty if DALI failed, and the batches are to be begun again."""
        assert self._pipeline is not None
        self._timer.begin_batch()
        try:
            images = self._pipeline.next()
        except Exception as error:
            self._refuse(error)
            return []
        except BaseException:
            # Ctrl-C: it may or may not have taken the batch.
            self._abandon()
            raise
        finally:
            self._timer.end_stage(Stage.DECODE)
            self._timer.idle()
        begun = self._begun.popleft()
        return [self._handed_out(begun, images)]

    def _handed_out(self, begun: _Begun, images: Any) -> Batch:
        if self._options.device is not None:
            return self._on_device(begun, images)
        out = np.empty((self.layout.batch_size, *self.layout.fields[IMAGE].shape), np.uint8)

        def finish(number: int) -> None:
            own = begun.pixels.get(number)
            pixels = np.asarray(images[number]) if own is None else own
            self._elsewhere.finish(begun.plans[number], pixels, out[number])

        # The extension resizes without Python's lock.
        deque(self._threads.map(finish, range(len(begun.plans))), maxlen=0)
        self._timer.end_stage(Stage.RESIZE)
        return begun.batch._replace(value={**begun.batch.value, IMAGE: out})

    def _on_device(self, begun: _Begun, images: Any) -> Batch:
        """Return a batch on the GPU. DALI has waited for its own stream, so that any stream may read the images."""
        tensor = from_dlpack(images.as_tensor())
        for number, pixels in begun.pixels.items():
            finished = np.empty(tensor.shape[1:], np.uint8)
            self._elsewhere.finish(begun.plans[number], pixels, finished)
            tensor[number].copy_(torch.from_numpy(finished))
        while self._lent and self._lent[0][0].query():
            self._lent.popleft()

        def after(event: Event) -> None:
            # DALI uses the memory again as soon as nothing refers to it.
            self._lent.append((event, images))

        return begun.batch._replace(value={**begun.batch.value, IMAGE: tensor}, after=after)

    def _refuse(self, error: Exception) -> None:
        """After a failure, leave the images that DALI refused to packtrain, and begin all batches again.

        Raises:
            LoaderError: The failure is not about an image.
        """
        first = self._begun[0]
        self._jobs = chain([begun.batch.job for begun in self._begun], self._jobs)
        self._abandon()
        # What DALI says need not tell which image it was, and never tells of a second one.
        found = self._tried(first.inputs)
        if not found:
            raise _failed(error) from error
        self._refused |= {first.rows[number]: reason for number, reason in found.items()}

    def _tried(self, inputs: Inputs) -> dict[int, str]:
        """Have DALI decode each image of a batch by itself. Return the reasons for its refusals, by number."""
        found: dict[int, str] = {}
        pipeline: DaliPipeline | None = None
        for number in range(len(inputs[0])):
            pipeline = pipeline or self._built(1, replace(self._options, threads=1, depth=1))
            try:
                pipeline.begin([tuple(each[number : number + 1] for each in inputs)])
                pipeline.next()
            except Exception as error:
                found[number], pipeline = _reason(error), None
        return found

    def _built(self, batch_size: int, options: DaliOptions) -> DaliPipeline:
        height, width, _ = self.layout.fields[IMAGE].shape
        return DaliPipeline((width, height), batch_size, options)

    def _abandon(self) -> None:
        """Drop the batches that DALI works on, and wait until it no longer reads them."""
        if self._begun:
            # After an error it cannot be used any more, and a new one takes less time than waiting for the old one.
            self._pipeline = None
        self._begun.clear()

    @override
    def change(self, maker: BatchMaker, probe: Probe) -> bool:
        self._abandon()
        assert self._maker is not None
        before, stores = self.layout, self._maker.samples.stores
        self._adopt(maker, probe)
        if maker.samples.stores != stores:
            # The rows may be other samples.
            self._refused.clear()
            self._damaged.clear()
        if (before.batch_size, before.fields.get(IMAGE)) != (self.layout.batch_size, self.layout.fields.get(IMAGE)):
            self._pipeline = None
        return True

    @override
    def close(self) -> None:
        super().close()
        self._pipeline = None
        self._threads.shutdown()
        self._begun.clear()
        self._jobs = iter(())
        for event, _ in self._lent:
            event.synchronize()
        self._lent.clear()


def _failed(error: Exception) -> LoaderError:
    return LoaderError(f"DALI failed: {_reason(error)}")


def _reason(error: Exception) -> str:
    """The message of an error of DALI's, without places in a graph that is not the user's."""
    text = str(error).rpartition("encountered:")[2]
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and "no longer valid" not in line).rstrip(" :")
