"""The rate limit: never more than the rate and one burst, and no less than the rate over minutes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.filling import fill
from hypothesis import given
from hypothesis import strategies as st

from packtrain._growing.options import FillOptions
from packtrain._growing.throttles import TokenBucket

RATE = 1000.0


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def passed(pieces: list[tuple[int, float, float]], rate: float, burst: float | None) -> list[tuple[float, int]]:
    """When each piece passes, if its sender is late by some seconds, and each sleep takes longer by some."""
    clock = Clock()
    limit = TokenBucket(rate, burst, clock)
    found = []
    for size, late, overslept in pieces:
        clock.now += late
        if wait := limit.wait_for(size):
            clock.now += wait + overslept
        found.append((clock.now, size))
    return found


PIECES = st.lists(
    st.tuples(
        st.integers(1, 700),
        st.one_of(st.just(0.0), st.floats(0, 20)),
        st.one_of(st.just(0.0), st.floats(0, 0.3)),
    ),
    min_size=1,
    max_size=200,
)


@given(PIECES, st.one_of(st.none(), st.integers(0, 2000)))
def test_no_stretch_of_time_sees_more_than_the_rate_and_a_burst(
    pieces: list[tuple[int, float, float]], burst: int | None
) -> None:
    times = passed(pieces, RATE, burst)
    most = min(RATE / 2, RATE / 2 if burst is None else burst)
    sums = [0, *accumulate(size for _, size in times)]
    for first in range(len(times)):
        for last in range(first, len(times)):
            # Of the first piece, nothing says when it began.
            seconds, size = times[last][0] - times[first][0], sums[last + 1] - sums[first + 1]
            assert size <= most + RATE * seconds + 1e-6


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=20),
    st.floats(0, 0.3),
)
def test_over_minutes_the_rate_is_reached_though_every_sleep_takes_too_long(sizes: list[int], overslept: float) -> None:
    count = int(120 * RATE / sum(sizes)) + 1
    times = passed([(size, 0.0, overslept) for size in sizes] * count, RATE, None)
    total = sum(sizes) * count
    assert total / (times[-1][0] - 100.0) == pytest.approx(RATE, rel=0.02)


@pytest.mark.complete
def test_a_filler_keeps_to_its_rate_and_reports_meanwhile(tmp_path: Path) -> None:
    def source() -> Iterator[Any]:
        for _ in range(20):
            yield {"x": np.zeros(100_000, np.uint8)}

    options = FillOptions(budget="64MiB", shard_size="256KiB", rate="2MB")
    reports: list[int] = []
    start = time.monotonic()
    figures = fill(tmp_path / "cache", source, options, lambda figures: reports.append(figures.samples))
    # No upper limit: a busy machine may take longer, but never less.
    assert time.monotonic() - start >= (2_000_000 - 256 * 1024) / 2_000_000
    assert figures.samples == 20
    assert figures.waited_seconds > 0
    assert len(set(reports)) > 3
