"""Makes batches with DALI, in the place of the loader's workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from typing_extensions import override

from packtrain._core.schema import IMAGE

from ..loader.batches import BatchMaker, Probe
from ..loader.engine import Batch, Engine, Job
from ..loader.randomness import preserved
from ..monitoring.counters import Words, blank
from ..monitoring.timing import StageTimer
from .graph import Inputs, built, inputs_of


@dataclass(frozen=True)
class DaliOptions:
    """How DALI works.

    Attributes:
        threads: Number of threads that decode.
        depth: Number of batches that it works on ahead of the consumer.
        device: Number of the GPU that decodes; None: the CPU does.
        hints: Further arguments of DALI's decoder, about memory.
    """

    threads: int
    depth: int
    device: int | None = None
    hints: Mapping[str, int] = field(default_factory=dict)


class DaliEngine(Engine):
    """Reads and plans batches in this process, and has DALI's threads decode them ahead of the consumer.

    Args:
        options: How DALI works.
        maker: Makes batches of undecoded images.
        probe: The samples that show what a batch looks like.

    Raises:
        PacktrainError: None of them can be made.
    """

    def __init__(self, options: DaliOptions, maker: BatchMaker, probe: Probe) -> None:
        self._options: Final = options
        self._maker: BatchMaker | None = maker
        with preserved():
            self.layout = maker.layout(probe)
        self._words = blank()
        self._timer = StageTimer(self._words, maker.samples.opened)
        height, width, _ = self.layout.fields[IMAGE].shape
        self._jobs: Iterator[Job] = iter(())
        self._begun: deque[tuple[Batch, Inputs]] = deque()
        """What DALI works on, with the memory that it reads."""
        self._error: Exception | None = None
        self._pipeline = built(
            self._next,
            (width, height),
            self.layout.batch_size,
            options.threads,
            options.depth,
            options.device,
            options.hints,
        )

    @override
    def run(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        self._drain()
        self._jobs, self._error = jobs, None
        while (images := self._output()) is not None:
            batch, _ = self._begun.popleft()
            yield batch._replace(value={**batch.value, IMAGE: np.asarray(images.as_tensor())})
        if self._error is not None:
            raise self._error

    def _output(self) -> Any:
        """The next images; None after the last ones."""
        try:
            return self._pipeline.run()[0]
        except StopIteration:
            self._pipeline.reset()
            return None

    def _drain(self) -> None:
        """Waits for what is left of an earlier run."""
        self._jobs = iter(())
        while self._begun and self._output() is not None:
            self._begun.popleft()

    def _next(self) -> Inputs:
        """Reads and plans the next batch."""
        try:
            job = next(self._jobs)
            arrays = self.layout.new()
            arrays["row"][: len(job.rows)], arrays["position"][: len(job.rows)] = job.rows, job.positions
            assert self._maker is not None
            made = self._maker.make(job.key, len(job.rows), self.layout, arrays, self._timer)
        except StopIteration:
            raise
        except Exception as error:
            # The batches before it are good.
            self._error = error
            raise StopIteration from None
        inputs = inputs_of(made.undecoded)
        self._begun.append((Batch(job, made._replace(undecoded=()), arrays), inputs))
        return inputs

    @override
    def change(self, maker: BatchMaker, probe: Probe) -> bool:
        return False

    @override
    def ready(self) -> bool:
        return False

    @override
    def memory(self) -> Any:
        return None

    @override
    def counters(self) -> Words:
        return np.frombuffer(self._words, np.int64)[np.newaxis]

    @override
    def close(self) -> None:
        self._maker = None
        self._pipeline = None
