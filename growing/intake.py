"""Takes samples from a source, and survives what a source may do: fail, stall, yield garbage, never return.

The source runs in a thread of its own, so that the filler notices a stall and can do other things meanwhile. That
thread makes one step at a time, when it is asked to: as in a loop over the samples, a source may yield the same buffer
again and again, because nothing of a sample is needed when the next one is asked for.
"""

from __future__ import annotations

import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, cast, runtime_checkable

import numpy as np

from packtrain._core.errors import FillError, MissingDependency, UsageError
from packtrain._core.generations import CacheInfo
from packtrain._formats.writing import NewSample
from packtrain._packer.sources import Refused

from .encoding import SampleEncoder
from .figures import FillFigures
from .forms import Form, Sample, described, mapping_of
from .options import FillOptions

Source = Callable[[], Iterable[Sample]]
"""Called without arguments, returns an iterator of samples; it is called again when that fails."""

_IDLE_SECONDS: Final = 0.1
_STALL_SECONDS: Final = 10.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
_FAILURES: Final = 8
"""So many failures in a row, without any sample ever, end the filling."""
_REFUSED: Final = 100
"""So many refused samples in a row are cause for a pause."""
_HOPELESS: Final = 1000
"""So many end the filling, if there never was another one."""
_SETTLING_SAMPLES: Final = 64
_SETTLING_BYTES: Final = 64 << 20
_SHOWN_REASONS: Final = 3
_LONGEST_PROBLEM: Final = 2000
_CLOSING_SECONDS: Final = 1.0


@runtime_checkable
class Formed(Protocol):
    """A source that knows what its samples look like."""

    def sample_form(self) -> Form:
        """The form of all its samples."""


class Intake:
    """The samples of a source, as they can be written.

    Args:
        source: Yields the samples.
        options: How the cache is filled.
        figures: Where failures and refused samples are counted, and the last problem is told.
    """

    def __init__(self, source: Source, options: FillOptions, figures: FillFigures) -> None:
        self._source: Final = source
        self._settling_bytes: Final = min(options.shard_bytes, _SETTLING_BYTES)
        self._figures: Final = figures
        self._feed: _Feed | None = None
        self._first: list[Sample] = []
        self._pause = _FIRST_PAUSE
        self._accepted = False
        self._failures = 0
        self._reasons: dict[str, None] = {}
        self._refused_in_row = 0
        self._refused_since = ""
        self._idled = 0.0

    def form(self, known: CacheInfo | None, idle: Callable[[], None] = lambda: None) -> Form:
        """What samples look like: as in the cache, if there is one, or as the source or its first samples say.

        Args:
            known: What the cache holds; None if there is no cache yet.
            idle: Called at least every 0.1 s while the source has nothing.

        Raises:
            FillError: The first samples differ, or none of them can be stored, or the source has none.
            UsageError: What the source says that it yields does not fit the cache.
        """
        source: object = self._source
        stated = source.sample_form() if isinstance(source, Formed) else None
        if known is not None:
            held = Form(known.schema.fields, known.schema.labels)
            if stated is not None and stated != held:
                raise UsageError(
                    f"the source yields samples of {described(stated)}, and the cache holds {described(held)}: fill "
                    "another folder, or delete this one"
                )
            return held
        return stated or self._settled(idle)

    def samples(self, encoder: SampleEncoder, idle: Callable[[], None]) -> Iterator[NewSample]:
        """Yields samples until the source ends; each must be written before the next is asked for.

        Args:
            encoder: Encodes them.
            idle: Called at least every 0.1 s while the source has nothing.

        Raises:
            FillError: The source has failed again and again, and never yielded a sample.
        """
        try:
            for sample in self._all(idle):
                try:
                    encoded = encoder.encode(sample)
                except Refused as refusal:
                    self._refuse(str(refusal), idle)
                else:
                    self._accept()
                    yield encoded
        finally:
            self.close()

    def close(self) -> None:
        """Ends the source. One that does not return is left to itself."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _settled(self, idle: Callable[[], None]) -> Form:
        """The form of the first samples, which are kept."""
        form, size = None, 0
        for sample in self._raw(idle):
            try:
                found = Form.of(sample)
            except Refused as refusal:
                self._refuse(str(refusal), idle)
                continue
            form = found if form is None else form.joined(found)
            self._accept()
            copied, count = _copied(sample)
            self._first.append(copied)
            size += count
            if len(self._first) == _SETTLING_SAMPLES or size >= self._settling_bytes:
                break
        if form is None:
            why = f": {self._figures.problem}" if self._figures.problem else ""
            raise FillError(f"the source ended without a sample{why}")
        return form

    def _all(self, idle: Callable[[], None]) -> Iterator[Sample]:
        while self._first:
            yield self._first.pop(0)
        yield from self._raw(idle)

    def _raw(self, idle: Callable[[], None]) -> Iterator[Sample]:
        """Yields what the source yields, and calls it again where it fails."""
        if self._feed is None:
            self._feed = _Feed(self._source)
        while not self._feed.ended:
            answer = self._next(self._feed, idle)
            if answer.error is not None:
                self._fail(answer.error, idle)
            elif not self._feed.ended:
                yield answer.sample

    def _next(self, feed: _Feed, idle: Callable[[], None]) -> _Answer:
        feed.ask()
        started, since = time.monotonic(), ""
        while (answer := feed.answer(_IDLE_SECONDS)) is None:
            seconds = time.monotonic() - started
            if seconds >= _STALL_SECONDS:
                since = since or _ago(seconds)
                self._tell(f"the source has yielded nothing since {since} ({seconds:.0f} s)")
            idle()
        if since:
            self._tell(f"the source yielded nothing from {since} to {_ago(0)}")
        return answer

    def _fail(self, error: BaseException, idle: Callable[[], None]) -> None:
        self._failures += 1
        self._figures.failures += 1
        if not self._accepted and isinstance(error, UsageError | MissingDependency):
            raise error
        what = f"the source failed at {_ago(0)}, {_told(error)}"
        if not self._accepted and self._failures >= _FAILURES:
            raise FillError(f"{what}. It failed {self._failures} times, and never yielded a sample") from error
        self._tell(f"{what}. It is called again after {self._pause:.1f} s")
        self._wait(idle)

    def _refuse(self, reason: str, idle: Callable[[], None]) -> None:
        self._figures.refused += 1
        self._refused_in_row += 1
        if self._refused_in_row == 1:
            self._refused_since = _ago(0)
        if len(self._reasons) < _SHOWN_REASONS:
            self._reasons[reason[:_LONGEST_PROBLEM]] = None
        if self._refused_in_row < _REFUSED:
            shown = "; ".join(self._reasons)
            self._tell(f"{self._figures.refused} samples were refused, among them: {shown}")
            if time.monotonic() - self._idled >= _IDLE_SECONDS:
                self._idle(idle)
            return
        if not self._accepted and self._refused_in_row >= _HOPELESS:
            raise FillError(f"the first {self._refused_in_row} samples of the source were refused. The last: {reason}")
        self._tell(
            f"all {self._refused_in_row} samples since {self._refused_since} were refused. The last: {reason}. If the "
            "source is to stay as it is, fill another folder"
        )
        if self._refused_in_row % _REFUSED == 0:
            self._wait(idle)
        else:
            self._idle(idle)

    def _tell(self, problem: str) -> None:
        """Notes a problem. What it quotes of the source may be of any length."""
        more = len(problem) - _LONGEST_PROBLEM
        self._figures.problem = problem if more <= 0 else f"{problem[:_LONGEST_PROBLEM]}... ({more:,} characters more)"

    def _accept(self) -> None:
        self._accepted = True
        self._failures = self._refused_in_row = 0
        self._pause = _FIRST_PAUSE

    def _wait(self, idle: Callable[[], None]) -> None:
        """Waits, the next time longer."""
        until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        while (left := until - time.monotonic()) > 0:
            idle()
            time.sleep(min(left, _IDLE_SECONDS))

    def _idle(self, idle: Callable[[], None]) -> None:
        self._idled = time.monotonic()
        idle()


class _Answer(NamedTuple):
    """What a step of a source has brought.

    Attributes:
        sample: What it has yielded.
        error: What it has raised.
    """

    sample: Any = None
    error: BaseException | None = None


_END: Final = _Answer()


class _Feed:
    """A source that runs in a thread of its own, which does not keep the process alive.

    Attributes:
        ended: True if the source has ended.
    """

    def __init__(self, source: Source) -> None:
        self.ended = False
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._thread = threading.Thread(
            target=_run, args=(source, self._asked, self._answers), name="packtrain source", daemon=True
        )
        self._thread.start()

    def ask(self) -> None:
        """Asks for a sample."""
        self._asked.put(True)

    def answer(self, seconds: float) -> _Answer | None:
        """What has come of it; None if nothing has in this time."""
        try:
            answer = self._answers.get(timeout=seconds)
        except Empty:
            return None
        self.ended = answer is _END
        return answer

    def close(self) -> None:
        """Ends the thread, if the source returns soon."""
        self._asked.put(False)
        self._thread.join(_CLOSING_SECONDS)


def _run(source: Source, asked: SimpleQueue[bool], answers: SimpleQueue[_Answer]) -> None:
    """Makes steps of a source as long as they are asked for."""
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
    """Ends a generator, which runs what it has in ``finally``. What that raises is nobody's any more."""
    if hasattr(samples, "close"):
        with suppress(BaseException):
            cast(Any, samples).close()


def _copied(sample: Sample) -> tuple[Sample, int]:
    """A sample that does not change when the source goes on, and roughly its size in bytes."""
    copied: dict[str, Any] = {}
    size = 0
    for name, value in mapping_of(sample).items():
        if isinstance(value, bytearray | memoryview):
            value = bytes(value)
        elif hasattr(value, "__array__"):
            value = np.array(value)
        size += getattr(value, "nbytes", 0) or (len(value) if isinstance(value, str | bytes) else 0)
        copied[name] = value
    return copied, size


def _told(error: BaseException) -> str:
    """Type, message and place of an error, for messages."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    paths = sysconfig.get_paths()
    libraries = tuple(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    own = [frame for frame in frames if not frame.filename.startswith(libraries)] or frames[:1]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    message = str(error)
    return f"{type(error).__name__}{': ' if message else ''}{message}{where}"


def _ago(seconds: float) -> str:
    """The time of day so many seconds ago."""
    return f"{datetime.now() - timedelta(seconds=seconds):%H:%M:%S}"
