"""Laws of the status: it says what the filler does, whether it lives, and how much it writes in a day."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from packtrain import GrowingCache
from packtrain._core.document import dump_document, load_document
from packtrain._core.generations import READERS, STATUS
from packtrain._core.locks import Lock
from packtrain._core.reader_reports import ReaderReport
from packtrain._growing import cache_folder
from packtrain._growing import status as module
from packtrain._growing.cache_folder import is_filled, lock_cache
from packtrain._growing.status import (
    FillFigures,
    FillStatus,
    Hour,
    StatusFile,
    drive_bytes,
    read_status,
    with_writes,
    written_in_a_day,
)

HOUR = 3600 * 10**9
BUDGET = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / READERS).mkdir()
    return tmp_path


def told(root: Path, **figures: object) -> FillStatus:
    """The first status that a filler with these figures writes."""
    status = StatusFile(root, BUDGET).update(FillFigures(**figures))  # type: ignore[arg-type]
    assert status is not None
    return status


def after(monkeypatch: pytest.MonkeyPatch, clock: str, passed: int) -> None:
    """Puts a clock forward, and stops it."""
    now = getattr(time, clock)() + passed
    monkeypatch.setattr(time, clock, lambda: now)


class TestDocument:
    def test_what_is_written_is_what_is_read(self, root: Path) -> None:
        with lock_cache(root):
            written = told(root, samples=5, end_sample=5, sample_bytes=100, used_bytes=7, problem="a problem")
            read = read_status(root)
        assert (written.state, written.alive, written.process) == ("filling", True, os.getpid())
        assert (read.figures, read.budget_bytes, read.started_ns) == (written.figures, BUDGET, written.started_ns)

    def test_it_is_rewritten_once_a_second(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = StatusFile(root, BUDGET)
        assert file.update(FillFigures()) is not None
        assert file.update(FillFigures(samples=1)) is None
        after(monkeypatch, "monotonic", 2)
        assert file.update(FillFigures(samples=1)) is not None

    def test_it_fits_the_room_that_is_reserved_for_it(self, root: Path) -> None:
        file = StatusFile(root, BUDGET)
        now = time.time_ns()
        for hour in range(30):
            file._hours = with_writes(file._hours, 1 << 60, now - (29 - hour) * HOUR)
        largest = {name: 1 << 62 for name, value in asdict(FillFigures()).items() if type(value) is int}
        file.update(FillFigures(**largest, waiting="w" * 500, problem="p" * 2000))
        assert 2 * (root / STATUS).stat().st_blocks * 512 < 32 << 10

    @pytest.mark.parametrize("content", [b"", b"{}", b"nonsense", b'{"version": 99}'])
    def test_a_damaged_one_is_none(self, root: Path, content: bytes) -> None:
        (root / STATUS).write_bytes(content)
        assert read_status(root).state == "none"
        assert told(root).state == "filling"

    @pytest.mark.parametrize(
        "name", ["started_ns", "budget_bytes", "taken", "oldest_ns", "used_bytes", "evicted_bytes"]
    )
    def test_one_with_a_number_that_no_filler_writes_is_none(self, root: Path, name: str) -> None:
        """Such as one that is too large for a float, or for a date."""
        told(root, samples=1, end_sample=1)
        body = load_document(root / STATUS, newest=1)
        (body["figures"] if name in body["figures"] else body)[name] = 10**400
        (root / STATUS).write_bytes(dump_document(body))
        assert str(read_status(root)).endswith("nothing has filled it yet")

    def test_a_folder_in_which_it_cannot_be_written_leaves_nothing(self, root: Path) -> None:
        (root / STATUS).mkdir()
        figures = FillFigures()
        assert StatusFile(root, BUDGET).update(figures) is not None
        assert figures.problem == "the status cannot be written: Is a directory"
        assert {path.name for path in root.iterdir()} == {READERS, STATUS}


class TestState:
    def test_one_that_has_not_said_anything_is_starting(self, root: Path) -> None:
        with lock_cache(root):
            assert (read_status(root).state, read_status(root).alive) == ("starting", True)

    def test_one_that_waits_says_for_what(self, root: Path) -> None:
        assert told(root, waiting="somebody to make room").doing == "waiting: somebody to make room"

    def test_a_source_that_gives_nothing_is_stalled(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = StatusFile(root, BUDGET)
        file.update(FillFigures(samples=3))
        after(monkeypatch, "monotonic", 11)
        status = file.update(FillFigures(samples=3))
        assert status is not None
        assert status.doing == "stalled: its source has given nothing for 11 s"

    def test_a_filler_that_waited_is_not_stalled(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = StatusFile(root, BUDGET)
        start = time.monotonic()
        states = []
        for seconds, waiting in ((0, ""), (11, "room"), (13, "")):
            monkeypatch.setattr(time, "monotonic", lambda now=start + seconds: now)
            status = file.update(FillFigures(waiting=waiting))
            states.append(status and status.state)
        assert states == ["filling", "waiting", "filling"]

    def test_without_its_lock_it_was_killed(self, root: Path) -> None:
        told(root)
        status = read_status(root)
        assert (status.state, status.alive) == ("killed", False)
        assert "it was killed" in status.why

    @pytest.mark.parametrize("state", ["ended", "failed"])
    def test_one_that_has_ended_says_why(self, root: Path, state: str) -> None:
        StatusFile(root, BUDGET).write(state, "the reason", FillFigures())
        assert read_status(root).doing == f"{state}: the reason"
        with lock_cache(root):
            assert read_status(root).state == "starting"

    def test_one_that_says_nothing_is_stalled(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with lock_cache(root):
            told(root)
            after(monkeypatch, "time_ns", 12 * 10**9)
            assert read_status(root).doing == "stalled: it has said nothing for 12 s"


class TestPlace:
    def test_looking_does_not_take_it(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        looking = Lock(root, shared=True, wait=False, opener=cache_folder._open_folder)
        monkeypatch.setattr(time, "sleep", lambda seconds: looking.close())
        with lock_cache(root):
            assert is_filled(root)


class TestFigures:
    def test_rates_are_of_the_last_seconds_and_of_all(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        start = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: start)
        file = StatusFile(root, BUDGET)
        first = file.update(FillFigures(samples=1, sample_bytes=10))
        # One sample after a millisecond says nothing about a second.
        assert first is not None and first.bytes_per_second == first.mean_bytes_per_second == 10
        status = None
        for second in range(1, 41):
            monkeypatch.setattr(time, "monotonic", lambda now=start + 2 * second: now)
            # 100 bytes a second for 40 seconds, then 300.
            count = 200 * min(second, 20) + 600 * max(0, second - 20)
            status = file.update(FillFigures(samples=second, sample_bytes=count))
        assert status is not None
        assert status.bytes_per_second == pytest.approx(300)
        assert status.mean_bytes_per_second == pytest.approx(200)

    def test_samples_per_insert(self, root: Path) -> None:
        status = told(root, taken=300, end_sample=120)
        assert status.samples_per_insert == 2.5
        assert told(root, taken=0, end_sample=0).samples_per_insert is None

    def test_the_age_of_the_oldest_sample(self, root: Path) -> None:
        assert told(root).oldest_seconds is None
        age = told(root, oldest_ns=time.time_ns() - 5 * 10**9).oldest_seconds
        assert age is not None and 5 <= age < 60

    def test_readers_that_live_are_listed(self, root: Path) -> None:
        one, other = ReaderReport(root), ReaderReport(root)
        one.begin(7)
        one.take(32)
        other.close()
        # Until then its mapping holds the lock.
        del other
        (reader,) = read_status(root).readers
        assert (reader.process, reader.generation, reader.taken) == (os.getpid(), 7, 32)
        one.close()

    def test_it_shows_itself(self, root: Path) -> None:
        told(root, generation=3, end_sample=1234, first_sample=234, evicted_shards=2, refused=1, problem="bad sample")
        text = str(read_status(root))
        for part in ("1,000 in generation 3, 1,234 ever", "2 shards", "1 samples refused", "bad sample", "a day"):
            assert part in text


class TestDiskWrites:
    def test_it_is_kept_across_restarts(self, root: Path) -> None:
        told(root, written_bytes=100)
        told(root, written_bytes=20)
        assert read_status(root).written_day_bytes == 120

    def test_a_day_is_forgotten_by_the_hour(self) -> None:
        hours: tuple[Hour, ...] = ()
        for hour in range(100, 140):
            hours = with_writes(hours, 10, hour * HOUR + 5)
        assert [hour.start_ns for hour in hours] == [hour * HOUR + 5 for hour in range(116, 140)]

    def test_a_clock_that_is_put_back_does_no_harm(self) -> None:
        assert with_writes([Hour(500 * HOUR, 10)], 5, 100 * HOUR) == (Hour(100 * HOUR, 5),)

    def test_less_than_a_day_is_extrapolated(self) -> None:
        now = 1000 * HOUR
        assert written_in_a_day([Hour(now - 6 * HOUR, 100), Hour(now - HOUR, 50)], now) == (150, 600)
        assert written_in_a_day([Hour(now - 30 * HOUR, 100)], now) == (0, 0)
        assert written_in_a_day([Hour(now, 100)], now) == (100, 144_000)

    @pytest.mark.parametrize("kind", ["drive", "partition", "volume"])
    def test_the_drive_is_found(self, tmp_path: Path, kind: str) -> None:
        sysfs = tmp_path / "sys"
        sizes = {"one": 1000, "two": 3000}
        for name, sectors in sizes.items():
            part = sysfs / "devices" / name / f"{name}p1"
            part.mkdir(parents=True)
            (part / "partition").write_text("1\n")
            (part / "size").write_text("17\n")
            (part.parent / "size").write_text(f"{sectors}\n")
        volume = sysfs / "devices/volume"
        (volume / "slaves").mkdir(parents=True)
        for name in sizes:
            (volume / "slaves" / name).symlink_to(sysfs / "devices" / name / f"{name}p1")
        device = tmp_path.stat().st_dev
        place = sysfs / "dev/block" / f"{os.major(device)}:{os.minor(device)}"
        place.parent.mkdir(parents=True)
        targets = {"drive": "one", "partition": "one/one" + "p1", "volume": "volume"}
        place.symlink_to(sysfs / "devices" / targets[kind])
        assert drive_bytes(tmp_path, sysfs) == 512 * {"drive": 1000, "partition": 1000, "volume": 4000}[kind]

    def test_memory_has_no_drive(self, tmp_path: Path) -> None:
        assert drive_bytes(tmp_path, tmp_path) is None
        assert drive_bytes(tmp_path / "missing") is None

    def test_writes_of_the_whole_drive_are_counted(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "drive_bytes", lambda root: 1000)
        status = told(root, written_bytes=500)
        # Half of it in what counts as a minute.
        assert status.drive_writes_per_day == pytest.approx(0.5 * 24 * 60)
        assert "DWPD 720.00" in str(status)


@pytest.mark.parametrize("text", ["\x1b[31mred", "\u202egpj", "no\nfiller    filling"])
def test_texts_of_strangers_steer_no_terminal_and_make_no_lines(text: str) -> None:
    said = FillStatus(Path("/cache"), "failed", text, process=1, figures=FillFigures(problem=text))
    plain = FillStatus(Path("/cache"), "failed", "why", process=1, figures=FillFigures(problem="what"))
    assert text not in str(said)
    assert str(said).count("\n") == str(plain).count("\n")
    assert text not in repr(GrowingCache(f"/{text}"))
