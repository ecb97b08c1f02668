"""Laws of the progress that commands show: rate and time left are those of the work of this run."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import tqdm.std
from hypothesis import given
from hypothesis import strategies as st

from packtrain._cli import output
from packtrain._storage.staging.options import StageProgress

FRAME = re.compile(r"pack: +(\d+)%\|.*\[[\d:]+<([\d:]+|\?), +(\S+?)(s/)? images(/s)?(, .*)?\]")
THOUSANDS = {"k": 1e3, "M": 1e6, "G": 1e9}
MOST = 10**9

Steps = list[tuple[float, int]]


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        """Says that it is one."""
        return True

    def frame(self) -> re.Match[str] | None:
        """The text that the bar shows now."""
        return FRAME.fullmatch(self.getvalue().rsplit("\r", 1)[-1].strip())


def number(text: str) -> float:
    return float(text.rstrip("kMG")) * THOUSANDS.get(text[-1], 1)


def seconds(text: str) -> int:
    parts = [int(part) for part in text.split(":")]
    return sum(part * 60**power for power, part in enumerate(reversed(parts)))


def shown_rate(frame: re.Match[str]) -> float:
    """Images per second."""
    return 0 if frame[3] == "?" else number(frame[3]) if frame[5] else 1 / number(frame[3])


def on_screen(check: Callable[[Terminal, list[float]], None]) -> None:
    """Calls `check` with a terminal and a clock that stands still until it is changed."""
    clock = [1000.0]
    with pytest.MonkeyPatch.context() as patch:
        terminal = Terminal()
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(tqdm.std, "time", lambda: clock[0])
        check(terminal, clock)


@contextmanager
def progress() -> Iterator[Callable[..., None]]:
    """Shows what is done, the total, what was done before, and a note."""
    with output.progress("pack", quiet=False, note=lambda state: state.note) as show:
        yield lambda *figures: show(StageProgress("copy", *figures))


steps = st.lists(st.tuples(st.floats(0.11, 5000), st.integers(0, MOST)), min_size=1, max_size=12)


@given(steps, st.integers(0, MOST), st.integers(1, MOST), st.floats(0, 1000))
def test_rate_and_time_left_are_those_since_the_work_began(
    steps: Steps, resumed: int, left: int, preparing: float
) -> None:
    """In steps of any size, and whatever earlier runs have done, and however long it took to begin."""
    total = resumed + sum(count for _, count in steps) + left

    def check(terminal: Terminal, clock: list[float]) -> None:
        with progress() as show:
            clock[0] += preparing
            began = clock[0]
            show(resumed, total, resumed)
            done = 0
            for passed, count in steps:
                clock[0] += passed
                done += count
                show(resumed + done, total, resumed)
                frame = terminal.frame()
                assert frame is not None
                rate = done / (clock[0] - began)
                assert shown_rate(frame) == pytest.approx(rate, rel=0.01, abs=0.01)
                assert int(frame[1]) == pytest.approx(100 * (resumed + done) / total, abs=1)
                if rate:
                    assert seconds(frame[2]) == pytest.approx((total - resumed - done) / rate, abs=1)

    on_screen(check)


@given(steps)
def test_what_was_done_when_the_clock_started_does_not_count(steps: Steps) -> None:
    """As when the first report comes only after the first step."""

    def check(terminal: Terminal, clock: list[float]) -> None:
        total = 1000 + sum(count for _, count in steps)
        began, done = clock[0], 0
        with progress() as show:
            show(1000, total, 0)
            for passed, count in steps:
                clock[0] += passed
                done += count
                show(1000 + done, total, 0)
            frame = terminal.frame()
            assert frame is not None
            assert shown_rate(frame) == pytest.approx(done / (clock[0] - began), rel=0.01, abs=0.01)

    on_screen(check)


def test_other_work_has_a_clock_of_its_own() -> None:
    """An update that reads old shards and then new ones counts both from 0."""

    def check(terminal: Terminal, clock: list[float]) -> None:
        with progress() as show:
            show(0, 100, 0)
            clock[0] += 100
            show(100, 100, 0)
            show(0, 5000, 0)
            clock[0] += 10
            show(1000, 5000, 0)
            frame = terminal.frame()
            assert frame is not None
            assert (frame[1], frame[2], frame[3]) == ("20", "00:40", "100")

    on_screen(check)


def test_what_is_found_done_and_what_is_taken_back_is_no_work() -> None:
    """A resumed copy finds what is there while it copies, and copies a damaged file again."""

    def check(terminal: Terminal, clock: list[float]) -> None:
        with progress() as show:
            show(0, 10_000, 0)
            clock[0] += 10
            show(6000, 10_000, 5000)
            frame = terminal.frame()
            assert frame is not None
            assert (frame[1], frame[2], frame[3]) == ("60", "00:40", "100")
            clock[0] += 1
            show(2000, 10_000, 5000)
            frame = terminal.frame()
            assert frame is not None
            assert (frame[1], frame[2], frame[3]) == ("20", "?", "?")

    on_screen(check)


def test_a_run_without_work_leaves_nothing_on_the_screen() -> None:
    def check(terminal: Terminal, clock: list[float]) -> None:
        with progress():
            assert "pack: ..." in terminal.getvalue()
        assert terminal.getvalue().endswith("\r") and not terminal.getvalue().rsplit("\r", 2)[-2].strip()

    on_screen(check)


def test_a_note_is_shown_when_nothing_else_changes() -> None:
    def check(terminal: Terminal, clock: list[float]) -> None:
        with progress() as show:
            for note in ("1 rejects", "2 rejects"):
                show(5, 10, 0, note)
                clock[0] += 1
                show(5, 10, 0, note)
                assert note in terminal.getvalue().rsplit("\r", 1)[-1]

    on_screen(check)


@given(steps, st.integers(0, MOST))
def test_a_log_says_the_same(steps: Steps, resumed: int) -> None:
    total = resumed + sum(count for _, count in steps)
    clock = [1000.0]
    with pytest.MonkeyPatch.context() as patch:
        log = io.StringIO()
        patch.setattr(sys, "stderr", log)
        patch.setattr("packtrain._cli.output.time.monotonic", lambda: clock[0])
        with progress() as show:
            clock[0] += 7
            began, done, last = clock[0], 0, 1000.0
            show(resumed, total, resumed)
            for passed, count in steps:
                clock[0] += passed
                done += count
                before = log.getvalue()
                show(resumed + done, total, resumed)
                line = log.getvalue().removeprefix(before)
                assert bool(line) == (clock[0] - last >= 10)
                if line and total:
                    last = clock[0]
                    rate = done / (clock[0] - began)
                    left = f", {(total - resumed - done) / rate:,.0f} s left" if rate else ""
                    assert line == f"pack: {resumed + done:,} of {total:,} ({rate:,.0f} images/s{left})\n"
                elif line:
                    last = clock[0]
