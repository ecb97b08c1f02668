"""Status of a filler, which the filler writes to ``status.json`` about once a second, and which others read."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from packtrain._core.document import dump_document, load_document, parse_document
from packtrain._core.errors import DatasetError
from packtrain._core.files import write_file
from packtrain._core.generations import STATUS
from packtrain._core.manifest import Count, Time
from packtrain._core.printable import one_line
from packtrain._core.problems import reason
from packtrain._core.reader_reports import reports
from packtrain._core.sizes import duration, size
from packtrain._core.typed import MOST, Between, OneOf

from .cache_folder import is_filled

_VERSION: Final = 1
_EVERY: Final = 1.0
"""Seconds between two versions of the document."""
_WINDOW: Final = 10.0
"""Seconds over which the present rate is measured, and after which a source that gives nothing counts as stalled."""
_SILENT_NS: Final = 10 * 10**9
RUNNING: Final = ("filling", "waiting", "stalled")
STATES: Final = (*RUNNING, "ended", "failed")


@dataclass
class FillFigures:
    """Counters of a filler since it was started; the loop that fills keeps them.

    Attributes:
        samples: Samples taken into shards.
        sample_bytes: Size of their records.
        shards: Shards published.
        written_bytes: Bytes of published files, in allocated blocks.
        evicted_shards: Shards deleted.
        evicted_bytes: Their size, in allocated blocks.
        refused: Samples that did not fit the cache.
        failures: How often the source failed or ended too early, so that it was called again.
        generation: Number of the newest generation; -1 before the first one.
        first_sample: Number of the oldest sample of the newest generation.
        end_sample: One past the number of its last sample.
        oldest_ns: When the oldest shard of the newest generation was published, in nanoseconds since 1970.
        used_bytes: Bytes that the cache's folder takes, in allocated blocks.
        waiting: What the filler waits for; empty if it does not.
        waited_seconds: How long it has waited for anything but its source.
        problem: The last thing that went wrong; empty if nothing has.
        taken: Samples that all readers have taken.
    """

    samples: Count = 0
    sample_bytes: Count = 0
    shards: Count = 0
    written_bytes: Count = 0
    evicted_shards: Count = 0
    evicted_bytes: Count = 0
    refused: Count = 0
    failures: Count = 0
    generation: Annotated[int, Between(-1, MOST)] = -1
    first_sample: Count = 0
    end_sample: Count = 0
    oldest_ns: Time = 0
    used_bytes: Count = 0
    waiting: str = ""
    waited_seconds: float = 0.0
    problem: str = ""
    taken: Count = 0


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
    """Status of the filler of a cache; ``print(status)`` shows it as a table.

    Attributes:
        root: The cache's folder.
        state: ``"starting"``, ``"filling"``, ``"waiting"``, ``"stalled"`` (the source gives nothing), ``"ended"``,
            ``"failed"``, ``"killed"``, or ``"none"``: nothing has filled it yet.
        why: Obstacle that the filler waits for, how long its source has given nothing, or why it ended; may be empty.
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
        """State and reason, in a few words."""
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
    """Writer of ``status.json``. Only the process that holds `lock_cache` may write it.

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
        self._hours = () if before is None else before.hours
        self._drive = drive_bytes(root)
        self._written = 0
        self._samples = 0
        self._due = 0.0
        self._past: deque[tuple[float, int]] = deque([(self._start, 0)])

    def update(self, figures: FillFigures) -> FillStatus | None:
        """Write the document if a second has passed since the last one, and return what it says; else None."""
        now = time.monotonic()
        if figures.samples != self._samples:
            self._samples, self._moved = figures.samples, now
        if now < self._due:
            return None
        self._due = now + _EVERY
        quiet = now - self._moved
        if figures.waiting:
            self._moved = now
            return self.write("waiting", figures.waiting, figures)
        if quiet >= _WINDOW:
            return self.write("stalled", f"its source has given nothing for {quiet:,.0f} s", figures)
        return self.write("filling", "", figures)

    def write(self, state: str, why: str, figures: FillFigures) -> FillStatus:
        """Write the document, and return what it says. A failure to write is a problem in the figures."""
        now, now_ns = time.monotonic(), time.time_ns()
        self._hours = with_writes(self._hours, figures.written_bytes - self._written, now_ns)
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
            self._hours,
            replace(figures),
        )
        try:
            # Not fsynced: after a crash of the machine, there is no filler to tell about.
            content = dump_document({"version": _VERSION, **asdict(document)})
            write_file(self._root / STATUS, [content], durable=False)
        except OSError as error:
            # Filling goes on without it.
            figures.problem = f"the status cannot be written: {reason(error)}"
        return _status(self._root, document, self._drive, alive=state in RUNNING)


def read_status(root: Path) -> FillStatus:
    """Read the status of the filler of a cache. A cache that is not there has the state ``"none"``."""
    document = _load(root)
    # In this order: a filler that ends meanwhile is not alive, and one that says how it ended has said so.
    alive = is_filled(root)
    if document is None or not alive:
        document = _load(root)
    if document is None:
        return FillStatus(root, "starting" if alive else "none", alive=alive, readers=_readers(root))
    return _status(root, document, drive_bytes(root), alive=alive)


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
    same = {name: value for name, value in vars(document).items() if name != "hours"}
    return replace(
        FillStatus(root, **same),
        state=state,
        why=why,
        alive=alive,
        bytes_per_second=document.bytes_per_second if alive else 0.0,
        oldest_seconds=max(0, now_ns - figures.oldest_ns) / 1e9 if figures.oldest_ns else None,
        written_day_bytes=written,
        bytes_per_day=per_day,
        drive_bytes=drive,
        drive_writes_per_day=None if drive is None else per_day / drive,
        samples_per_insert=figures.taken / figures.end_sample if figures.end_sample else None,
        readers=_readers(root),
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
    yield "written", describe_writes(status)
    taken = "" if status.samples_per_insert is None else f", {status.samples_per_insert:.2f} for each published"
    yield "taken", f"{figures.taken:,} samples{taken}"
    for reader in status.readers:
        yield "reader", f"process {reader.process}: generation {reader.generation}, {reader.taken:,} samples taken"
    if figures.refused or figures.failures:
        yield "trouble", f"{figures.refused:,} samples refused, {figures.failures:,} failures of the source"
    if figures.problem:
        yield "last", figures.problem


def describe_writes(status: FillStatus) -> str:
    """Describe what is written per day, for people."""
    text = f"{size(status.bytes_per_day)} a day"
    return text if status.drive_writes_per_day is None else f"{text} (DWPD {status.drive_writes_per_day:.2f})"


_SECOND_NS: Final = 10**9
_HOUR_NS: Final = 3600 * _SECOND_NS
_DAY_NS: Final = 24 * _HOUR_NS
# What a few seconds say about a day is worth nothing.
_LEAST_NS: Final = 60 * _SECOND_NS
_SECTOR: Final = 512


@dataclass(frozen=True)
class Hour:
    """Bytes written in one hour of the clock.

    Attributes:
        start_ns: Time of the first write, in nanoseconds since 1970.
        bytes: Number of bytes, in allocated blocks.
    """

    start_ns: Time
    bytes: Count


def with_writes(hours: Iterable[Hour], count: int, now_ns: int) -> tuple[Hour, ...]:
    """Count bytes that were written, and forget what is older than a day. The hours come oldest first."""
    by_number = {hour.start_ns // _HOUR_NS: hour for hour in hours}
    now = now_ns // _HOUR_NS
    before = by_number.get(now, Hour(now_ns, 0))
    by_number[now] = Hour(before.start_ns, before.bytes + count)
    # A clock that was put back leaves hours of the future.
    return tuple(by_number[number] for number in sorted(by_number) if now - 24 < number <= now)


def written_in_a_day(hours: Iterable[Hour], now_ns: int) -> tuple[int, int]:
    """Return the bytes written in the last 24 hours, and the bytes per day at the rate of the time that is known."""
    known = [hour for hour in hours if now_ns - hour.start_ns < _DAY_NS]
    if not known:
        return 0, 0
    total = sum(hour.bytes for hour in known)
    covered = max(_LEAST_NS, now_ns - min(hour.start_ns for hour in known))
    return total, total * _DAY_NS // covered


def drive_bytes(path: Path, sysfs: Path = Path("/sys")) -> int | None:
    """Return the size of the drive, or of all drives together, that hold a path; None if the system does not say.

    A partition counts as its whole drive. A file system in memory has none.
    """
    try:
        device = os.stat(path).st_dev
        node = sysfs / "dev/block" / f"{os.major(device)}:{os.minor(device)}"
        sizes = [int((drive / "size").read_text()) for drive in _drives(node.resolve(strict=True))]
    except (OSError, ValueError):
        return None
    return sum(sizes) * _SECTOR or None


def _drives(node: Path) -> set[Path]:
    """Return the drives below a device, which may be a partition, a volume or an array."""
    drive = node.parent if (node / "partition").exists() else node
    below = drive / "slaves"
    parts = [each.resolve() for each in below.iterdir()] if below.is_dir() else []
    return {found for part in parts for found in _drives(part)} or {drive}
