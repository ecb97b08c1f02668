"""Reads samples from a source, and survives what a source may do: fail, stall, yield garbage, never return.

The source runs in a thread of its own, so that the filler notices a stall and can do other things meanwhile. That
thread makes one step at a time, when it is asked to: as in a loop over the samples, a source may yield the same buffer
again and again, because nothing of a sample is needed when the next one is asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Self, cast

from packtrain._core.errors import FillError, MissingDependency, UsageError
from packtrain._core.schema import Schema
from packtrain._formats.writing import NewSample
from packtrain._packer.sample_schemas import describe_schema, join_schemas, schema_of
from packtrain._packer.sample_values import Sample, copied
from packtrain._packer.samples import SampleEncoder
from packtrain._packer.sources import Refused
from packtrain._packer.user_code import with_line

from .options import FillOptions
from .status import FillFigures

Source = Callable[[], Iterable[Sample]]
"""Called without arguments, returns an iterator of samples; it is called again when that fails."""

_IDLE_SECONDS: Final = 0.1
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
_FAILURES: Final = 8
"""Number of failures in a row that end the filling, if there never was a sample."""
_REFUSED: Final = 100
"""Number of refused samples in a row after which there is a pause."""
_HOPELESS: Final = 1000
"""Number of refused samples in a row that end the filling, if there never was another sample."""
_FIRST_SAMPLES: Final = 64
_FIRST_BYTES: Final = 64 << 20
"""So many samples or bytes show the schema of a new cache."""
_LONGEST_PROBLEM: Final = 2000
_CLOSING_SECONDS: Final = 1.0


class SourceReader:
    """Reads samples from a source, and encodes them. A context manager: its end ends the source.

    Args:
        source: The source.
        options: How the cache is filled.
        figures: Counts failures and refused samples, and holds the last problem.
        idle: Called at least every 0.1 s while there is no sample.
    """

    def __init__(
        self, source: Source, options: FillOptions, figures: FillFigures, idle: Callable[[], None] = lambda: None
    ) -> None:
        self.idle = idle
        self._source: Final = source
        self._most_first_bytes: Final = min(options.shard_bytes, _FIRST_BYTES)
        self._figures: Final = figures
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        # It makes one step of the source whenever it is asked to, and does not keep the process alive.
        self._thread: Final = threading.Thread(
            target=_run, args=(source, self._asked, self._answers), name="packtrain source", daemon=True
        )
        self._thread.start()
        self._ended = False
        self._first: list[Sample] = []
        self._pause = _FIRST_PAUSE
        self._accepted = False
        self._failures = 0
        self._refused_in_row = 0

    def schema(self, cache: Schema | None) -> Schema:
        """Return the schema of the samples: that of the cache, or what the source or its first samples say.

        Args:
            cache: The schema of the cache; None if there is no cache yet.

        Raises:
            FillError: The first samples differ, or none of them can be stored, or the source has none.
            UsageError: The schema of the source is not that of the cache.
        """
        # `RandomRecords` knows the schema of its samples.
        state: Callable[[], Schema] | None = getattr(self._source, "sample_schema", None)
        stated = None if state is None else state()
        if cache is None:
            return stated or self._schema_of_first()
        if stated is not None and stated != cache:
            raise UsageError(
                f"the source yields samples of {describe_schema(stated)}, and the cache holds "
                f"{describe_schema(cache)}: fill another folder, or delete this one"
            )
        return cache

    def samples(self, encoder: SampleEncoder) -> Iterator[NewSample]:
        """Yield samples until the source ends; each must be written before the next is asked for.

        Raises:
            FillError: The source has failed again and again, and never yielded a sample.
        """
        for sample in self._all():
            try:
                encoded = encoder.encode(sample)
            except Refused as refusal:
                self._refuse(str(refusal))
            else:
                self._accept()
                yield encoded

    def close(self) -> None:
        """End the source. A source that does not return is left to itself."""
        self._asked.put(False)
        self._thread.join(_CLOSING_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _schema_of_first(self) -> Schema:
        """Return the schema of the first samples, which are kept."""
        schema, size = None, 0
        for sample in self._raw():
            try:
                found = schema_of(sample)
            except Refused as refusal:
                self._refuse(str(refusal))
                continue
            try:
                schema = found if schema is None else join_schemas(schema, found)
            except Refused as refusal:
                raise FillError(str(refusal)) from refusal
            self._accept()
            kept, count = copied(sample)
            self._first.append(kept)
            size += count
            if len(self._first) == _FIRST_SAMPLES or size >= self._most_first_bytes:
                break
        if schema is None:
            why = f": {self._figures.problem}" if self._figures.problem else ""
            raise FillError(f"the source ended without a sample{why}")
        return schema

    def _all(self) -> Iterator[Sample]:
        while self._first:
            yield self._first.pop(0)
        yield from self._raw()

    def _raw(self) -> Iterator[Sample]:
        """Yield what the source yields, and call the source again where it fails."""
        while not self._ended:
            answer = self._next()
            self._ended = answer is _END
            if answer.error is not None:
                self._fail(answer.error)
            elif not self._ended:
                yield answer.sample

    def _next(self) -> _Answer:
        self._asked.put(True)
        while True:
            with suppress(Empty):
                return self._answers.get(timeout=_IDLE_SECONDS)
            self.idle()

    def _fail(self, error: BaseException) -> None:
        self._failures += 1
        self._figures.failures += 1
        if not self._accepted and isinstance(error, UsageError | MissingDependency):
            raise error
        what = f"the source failed at {datetime.now():%H:%M:%S}, {with_line(error, __file__)}"
        if not self._accepted and self._failures >= _FAILURES:
            raise FillError(f"{what}. It failed {self._failures} times, and never yielded a sample") from error
        self._report(f"{what}. It is called again after {self._pause:.1f} s")
        self._wait()

    def _refuse(self, reason: str) -> None:
        self._figures.refused += 1
        self._refused_in_row += 1
        if not self._accepted and self._refused_in_row >= _HOPELESS:
            raise FillError(f"the first {self._refused_in_row} samples of the source were refused. The last: {reason}")
        advice = ". If the source is to stay as it is, fill another folder"
        self._report(
            f"{self._figures.refused} samples were refused, the last {self._refused_in_row} in a row: {reason}"
            f"{advice if self._refused_in_row >= _REFUSED else ''}"
        )
        if self._refused_in_row % _REFUSED == 0:
            self._wait()
        else:
            self.idle()

    def _report(self, problem: str) -> None:
        """Report a problem in the figures. A quotation from the source may be of any length."""
        more = len(problem) - _LONGEST_PROBLEM
        self._figures.problem = problem if more <= 0 else f"{problem[:_LONGEST_PROBLEM]}... ({more:,} characters more)"

    def _accept(self) -> None:
        self._accepted = True
        self._failures = self._refused_in_row = 0
        self._pause = _FIRST_PAUSE

    def _wait(self) -> None:
        """Wait, and the next time for longer."""
        until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        while (left := until - time.monotonic()) > 0:
            self.idle()
            time.sleep(min(left, _IDLE_SECONDS))


class _Answer(NamedTuple):
    """Result of a step of a source: what the source has yielded, or what it has raised."""

    sample: Any = None
    error: BaseException | None = None


_END: Final = _Answer()


def _run(source: Source, asked: SimpleQueue[bool], answers: SimpleQueue[_Answer]) -> None:
    """Make steps of a source as long as they are asked for."""
    samples: Iterator[Any] | None = None
    while asked.get():
        try:
            if samples is None:
                samples = _iterator(source)
            answer = _Answer(next(samples))
        except StopIteration:
            answer = _END
        except BaseException as error:
            # Also what ends a process, such as SystemExit: it is the source that wanted to.
            answer = _Answer(error=error)
        if answer.error is not None or answer is _END:
            _close(samples)
            samples = None
        answers.put(answer)
    _close(samples)


def _iterator(source: Callable[[], Any]) -> Iterator[Any]:
    found = source()
    if callable(found) and not hasattr(found, "__iter__"):
        # A class or a factory, which makes the source.
        found = found()
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise TypeError(f"the source returned an object of type {type(found).__name__}: it is to yield samples")
    return iter(found)


def _close(samples: Iterator[Any] | None) -> None:
    """End a generator, which runs its ``finally`` clauses. Nobody is left to hear what they raise."""
    if hasattr(samples, "close"):
        with suppress(BaseException):
            cast(Any, samples).close()
