"""What a filler does, as it writes it into ``status.json`` about once a second, and as others read it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from packtrain._core.document import dump_document, load_document, parse_document
from packtrain._core.errors import DatasetError
from packtrain._core.files import temporary_path
from packtrain._core.generations import STATUS
from packtrain._core.locks import Lock
from packtrain._core.manifest import Count, Time
from packtrain._core.printable import one_line
from packtrain._core.reader_reports import reports
from packtrain._core.sizes import duration, size
from packtrain._core.typed import OneOf

from .figures import FillFigures
from .wear import Hour, Wear, drive_bytes, written_in_a_day

_VERSION: Final = 1
_EVERY: Final = 1.0
"""Seconds between two versions of the document."""
_WINDOW: Final = 10.0
"""Seconds over which the present rate is measured, and after which a source that gives nothing counts as stalled."""
_SILENT_NS: Final = 10 * 10**9
_TRIES: Final = 10
_TRY_SECONDS: Final = 0.02
RUNNING: Final = ("filling", "waiting", "stalled")
STATES: Final = (*RUNNING, "ended", "failed")


@dataclass(frozen=True)
class ReaderStatus:
    """A loader that reads a cache.

    Attributes:
        process: Id of its process.
        generation: Number of the generation that it reads.
        taken: Number of samples that it has handed out.
    """

    process: int
    generation: int
    taken: int


@dataclass(frozen=True)
class FillStatus:
    """What the filler of a cache does and has done; ``print(status)`` shows it as a table.

    Attributes:
        root: The cache's folder.
        state: ``"starting"``, ``"filling"``, ``"waiting"``, ``"stalled"`` (the source gives nothing), ``"ended"``,
            ``"failed"``, ``"killed"``, or ``"none"``: nothing has filled it yet.
        why: What it waits for, how long its source has given nothing, or why it ended or failed; may be empty.
        alive: True if a filler works on the cache.
        process: Id of its process, of the last one if none is alive; 0 if there was none.
        started_ns: When it was started, in nanoseconds since 1970.
        updated_ns: When it last said something.
        budget_bytes: The most bytes that the cache may take.
        bytes_per_second: Bytes of samples that came in per second, in the last 10 seconds.
        mean_bytes_per_second: The same since it was started.
        oldest_seconds: Age of the oldest sample of the newest generation; None if there is none.
        written_day_bytes: Bytes written in the last 24 hours, by this filler and those before it, in allocated blocks.
        bytes_per_day: Bytes written per day: the same, but at the rate up to now if less than a day is known.
        drive_bytes: Size of the drive that holds the cache; None if the system does not say, or it is memory.
        drive_writes_per_day: How often a day the whole drive is written over (DWPD). A data sheet says how often a
            drive endures this, every day of its warranty: often 0.3 to 3. None without `drive_bytes`.
        samples_per_insert: How many samples all readers have taken, for each that was published; None before the first.
        readers: The loaders that read it now.
        figures: Counters of the filler since it was started.
    """

    root: Path
    state: str = "none"
    why: str = ""
    alive: bool = False
    process: int = 0
    started_ns: int = 0
    updated_ns: int = 0
    budget_bytes: int = 0
    bytes_per_second: float = 0.0
    mean_bytes_per_second: float = 0.0
    oldest_seconds: float | None = None
    written_day_bytes: int = 0
    bytes_per_day: int = 0
    drive_bytes: int | None = None
    drive_writes_per_day: float | None = None
    samples_per_insert: float | None = None
    readers: tuple[ReaderStatus, ...] = ()
    figures: FillFigures = field(default_factory=FillFigures)

    @property
    def doing(self) -> str:
        """What the filler does or did, in a few words."""
        if self.state == "none":
            return "nothing has filled it yet"
        return f"{self.state}: {self.why}" if self.why else self.state

    def __str__(self) -> str:
        return "\n".join(f"{name:<9} {one_line(text)}" for name, text in _rows(self))


@dataclass(frozen=True)
class _Document:
    """The content of status.json."""

    state: Annotated[str, OneOf(STATES)]
    why: str
    process: Count
    started_ns: Time
    updated_ns: Time
    budget_bytes: Count
    bytes_per_second: float
    mean_bytes_per_second: float
    hours: tuple[Hour, ...]
    figures: FillFigures


class StatusFile:
    """Keeps the document of the filler that this process is. Only `be_the_filler` makes it ours.

    Args:
        root: The cache's folder.
        budget: The most bytes that the cache may take.
    """

    def __init__(self, root: Path, budget: int) -> None:
        self._root = root
        self._budget = budget
        self._started_ns = time.time_ns()
        self._start = self._moved = time.monotonic()
        before = _load(root)
        self._wear = Wear(() if before is None else before.hours)
        self._drive = drive_bytes(root)
        self._written = 0
        self._samples = 0
        self._due = 0.0
        self._past: deque[tuple[float, int]] = deque([(self._start, 0)])

    def update(self, figures: FillFigures) -> FillStatus | None:
        """Writes the document if a second has passed since the last one, and returns what it says; else None.

        Raises:
            OSError: It cannot be written.
        """
        now = time.monotonic()
        if figures.samples != self._samples:
            self._samples, self._moved = figures.samples, now
        if now < self._due:
            return None
        self._due = now + _EVERY
        quiet = now - self._moved
        if figures.waiting:
            self._moved = now
            return self._write("waiting", figures.waiting, figures)
        if quiet >= _WINDOW:
            return self._write("stalled", f"its source has given nothing for {quiet:,.0f} s", figures)
        return self._write("filling", "", figures)

    def end(self, state: str, why: str, figures: FillFigures) -> FillStatus:
        """Writes the last document.

        Args:
            state: ``"ended"`` or ``"failed"``.
            why: Why.
            figures: The counters.

        Raises:
            OSError: It cannot be written.
        """
        return self._write(state, why, figures)

    def _write(self, state: str, why: str, figures: FillFigures) -> FillStatus:
        now, now_ns = time.monotonic(), time.time_ns()
        self._wear.add(figures.written_bytes - self._written, now_ns)
        self._written = figures.written_bytes
        while len(self._past) > 1 and now - self._past[1][0] >= _WINDOW:
            self._past.popleft()
        then, count = self._past[0]
        self._past.append((now, figures.sample_bytes))
        document = _Document(
            state,
            why,
            os.getpid(),
            self._started_ns,
            now_ns,
            self._budget,
            (figures.sample_bytes - count) / max(now - then, _EVERY),
            figures.sample_bytes / max(now - self._start, _EVERY),
            self._wear.hours,
            replace(figures),
        )
        path = self._root / STATUS
        temporary = temporary_path(path)
        try:
            temporary.write_bytes(dump_document({"version": _VERSION, **asdict(document)}))
            # Not fsynced: after a crash of the machine, there is no filler to tell about.
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return _status(self._root, document, self._drive, alive=state in RUNNING)


def read_status(root: Path) -> FillStatus:
    """What the filler of a cache does; a cache that is not there has none."""
    document = _load(root)
    # In this order: a filler that ends meanwhile is not alive, and one that says how it ended has said so.
    alive = is_filled(root)
    if document is None or not alive:
        document = _load(root)
    if document is None:
        return FillStatus(root, "starting" if alive else "none", alive=alive, readers=_readers(root))
    return _status(root, document, drive_bytes(root), alive=alive)


def is_filled(root: Path) -> bool:
    """True if a filler works on a cache that says what it does."""
    try:
        # Shared, so that those who look do not disturb each other.
        Lock(root, shared=True, wait=False, inherited=False, opener=_open_folder).close()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def be_the_filler(root: Path) -> Lock:
    """Holds the place of the filler that writes the status, from before the first to after the last document.

    The lock is on the folder itself. The one of `fill` is given back before the last document is written, and nobody
    but fillers may touch it.

    Raises:
        BlockingIOError: Another filler holds it.
    """
    for _ in range(_TRIES):
        # Whoever looks with `is_filled` holds it for a moment.
        with suppress(BlockingIOError):
            return Lock(root, wait=False, opener=_open_folder)
        time.sleep(_TRY_SECONDS)
    return Lock(root, wait=False, opener=_open_folder)


def _open_folder(path: Path, flags: int, mode: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _load(root: Path) -> _Document | None:
    path = root / STATUS
    # Nothing depends on it: after a crash of the machine it may be empty, and the next filler writes it anew.
    with suppress(FileNotFoundError, NotADirectoryError, DatasetError):
        return parse_document(_Document, load_document(path, newest=_VERSION, below=root), path)
    return None


def _status(root: Path, document: _Document, drive: int | None, *, alive: bool) -> FillStatus:
    now_ns = time.time_ns()
    figures = document.figures
    state, why = _state(document, now_ns, alive=alive)
    written, per_day = written_in_a_day(document.hours, now_ns)
    insert = figures.taken / figures.end_sample if figures.end_sample else None
    return FillStatus(
        root=root,
        state=state,
        why=why,
        alive=alive,
        process=document.process,
        started_ns=document.started_ns,
        updated_ns=document.updated_ns,
        budget_bytes=document.budget_bytes,
        bytes_per_second=document.bytes_per_second if alive else 0.0,
        mean_bytes_per_second=document.mean_bytes_per_second,
        oldest_seconds=max(0, now_ns - figures.oldest_ns) / 1e9 if figures.oldest_ns else None,
        written_day_bytes=written,
        bytes_per_day=per_day,
        drive_bytes=drive,
        drive_writes_per_day=None if drive is None else per_day / drive,
        samples_per_insert=insert,
        readers=_readers(root),
        figures=figures,
    )


def _state(document: _Document, now_ns: int, *, alive: bool) -> tuple[str, str]:
    if not alive:
        if document.state in RUNNING:
            return "killed", "it was killed, or its machine was restarted (`dmesg` says whether memory ran out)"
        return document.state, document.why
    if document.state not in RUNNING:
        # Another one has begun, and not yet said anything.
        return "starting", ""
    silent = now_ns - document.updated_ns
    if silent > _SILENT_NS:
        return "stalled", f"it has said nothing for {silent / 1e9:,.0f} s"
    return document.state, document.why


def _readers(root: Path) -> tuple[ReaderStatus, ...]:
    with suppress(OSError):
        found = [report for report in reports(root) if report.alive]
        return tuple(ReaderStatus(report.process, report.generation, report.taken) for report in found)
    return ()


def _rows(status: FillStatus) -> Iterator[tuple[str, str]]:
    figures = status.figures
    yield "cache", os.fspath(status.root)
    yield "filler", status.doing
    if not status.process:
        return
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.started_ns / 1e9))
    yield "process", f"{status.process}, started {started}"
    if figures.generation >= 0:
        kept = figures.end_sample - figures.first_sample
        age = "" if status.oldest_seconds is None else f", the oldest {duration(status.oldest_seconds)} old"
        yield "samples", f"{kept:,} in generation {figures.generation}, {figures.end_sample:,} ever{age}"
    now, mean = status.bytes_per_second / 1e6, status.mean_bytes_per_second / 1e6
    yield "in", f"{now:,.1f} MB/s, {mean:,.1f} MB/s since it was started"
    yield "used", f"{size(figures.used_bytes)} of {size(status.budget_bytes)}"
    yield "evicted", f"{figures.evicted_shards:,} shards, {size(figures.evicted_bytes)}"
    yield "wear", wear(status)
    taken = "" if status.samples_per_insert is None else f", {status.samples_per_insert:.2f} for each published"
    yield "taken", f"{figures.taken:,} samples{taken}"
    for reader in status.readers:
        yield "reader", f"process {reader.process}: generation {reader.generation}, {reader.taken:,} samples taken"
    if figures.refused or figures.failures:
        yield "trouble", f"{figures.refused:,} samples refused, {figures.failures:,} failures of the source"
    if figures.problem:
        yield "last", figures.problem


def wear(status: FillStatus) -> str:
    """What is written per day, for people."""
    text = f"{size(status.bytes_per_day)} a day"
    return text if status.drive_writes_per_day is None else f"{text} (DWPD {status.drive_writes_per_day:.2f})"
