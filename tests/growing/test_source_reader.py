"""A source may fail, stall, yield garbage or never return: what fits arrives, in order, and the rest is told."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packtrain._core.errors import FillError, MissingDependency, UsageError
from packtrain._core.schema import Schema
from packtrain._growing import source_reader as module
from packtrain._growing.options import FillOptions
from packtrain._growing.source_reader import SourceReader
from packtrain._growing.status import FillFigures
from packtrain._packer.sample_schemas import schema_of
from packtrain._packer.samples import SampleEncoder

OPTIONS = FillOptions(budget="64MiB", shard_size="1MiB")
MANY = 200


class Time:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    monkeypatch.setattr(module, "time", fake)
    return fake


def sample(number: int) -> dict[str, Any]:
    return {"x": np.full(3, number, np.float32), "n": number}


def numbers(*stretches: int) -> Callable[[], Iterator[dict[str, Any]]]:
    """A source that yields so many samples and then fails, again and again, and ends after the last stretch."""
    left, count = list(stretches), iter(range(10**6))

    def source() -> Iterator[dict[str, Any]]:
        for _ in range(left.pop(0)):
            yield sample(next(count))
        if left:
            raise ValueError("the line is busy")

    return source


def nothing() -> None:
    """Idles."""


def taken(
    source: Any, figures: FillFigures | None = None, idle: Callable[[], None] = nothing, schema: Schema | None = None
) -> Generator[int, None, None]:
    """The number in each sample that arrives."""
    with SourceReader(source, OPTIONS, figures or FillFigures(), idle) as reader:
        found = reader.schema(schema)
        for each in reader.samples(SampleEncoder(found, bare=True)):
            first, last = each.records[0], each.records[-1]
            assert first is not None and last is not None
            number = int(np.frombuffer(last.payload, "<i8")[0])
            if "x" in [field.name for field in found.fields]:
                assert np.frombuffer(first.payload, "<f4").tolist() == [number] * 3
            yield number


def test_a_source_may_yield_the_same_buffer_again_and_again() -> None:
    def source() -> Iterator[dict[str, Any]]:
        kept = sample(0)
        kept["n"] = np.zeros((), np.int64)
        for number in range(MANY):
            kept["x"][:] = number
            kept["n"][...] = number
            yield kept

    assert list(taken(source)) == list(range(MANY))


def test_a_source_goes_no_step_ahead() -> None:
    made = []

    def source() -> Iterator[dict[str, Any]]:
        for number in range(MANY):
            made.append(number)
            yield sample(number)

    found = taken(source, schema=schema_of(sample(0)))
    for number in range(10):
        assert next(found) == number
        assert made == list(range(number + 1))
    found.close()


def test_a_source_that_fails_is_called_again_and_the_place_is_told(clock: Time) -> None:
    figures, told = FillFigures(), set()
    found = list(taken(numbers(70, 3, 5), figures, lambda: told.add(figures.problem)))
    assert found == list(range(78))
    assert (figures.failures, figures.refused) == (2, 0)
    line = numbers.__code__.co_firstlineno + 8
    assert "raise" in Path(__file__).read_text().splitlines()[line - 1]
    assert all(f"ValueError: the line is busy ({__file__}:{line})" in problem for problem in told if problem)
    assert figures.problem in told


def test_pauses_grow_to_half_a_minute_and_begin_anew_after_a_sample(clock: Time) -> None:
    figures = FillFigures()
    pauses: list[float] = []

    def idle() -> None:
        found = re.search(r"after ([0-9.]+) s", figures.problem)
        if found and figures.failures > len(pauses):
            pauses.append(float(found[1]))

    list(taken(numbers(1, *[0] * 10, 1, 0, 0), figures, idle))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 0.1, 0.2]
    assert sum(clock.slept) == pytest.approx(sum(pauses))
    assert max(clock.slept) <= 0.1


def test_a_source_that_never_yields_a_sample_is_given_up(clock: Time) -> None:
    figures = FillFigures()
    with pytest.raises(FillError, match=r"ValueError: the line is busy \(.*test_source.*failed 8 times") as caught:
        list(taken(numbers(*[0] * 100), figures))
    assert isinstance(caught.value.__cause__, ValueError)
    assert figures.failures == 8


@pytest.mark.parametrize("error", [UsageError("no such dataset"), MissingDependency("pip install it")])
def test_what_the_user_has_to_mend_ends_it_at_once(error: Exception, clock: Time) -> None:
    def source() -> Iterator[Any]:
        raise error
        yield

    with pytest.raises(type(error), match=str(error)):
        list(taken(source))
    assert not clock.slept


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError()])
def test_a_source_cannot_end_the_filler_by_what_it_raises(error: BaseException, clock: Time) -> None:
    calls = []

    def source() -> Iterator[Any]:
        calls.append(1)
        yield sample(len(calls))
        if len(calls) < 3:
            raise error

    assert list(taken(source)) == [1, 2, 3]


@pytest.mark.parametrize("result", [None, 7, {"x": 1}, "text"])
def test_a_function_that_does_not_yield_is_told_so(result: Any, clock: Time) -> None:
    with pytest.raises(FillError, match=f"type {type(result).__name__}: it is to yield"):
        list(taken(lambda: result))


def test_lists_classes_and_factories_are_sources() -> None:
    class Samples:
        def __iter__(self) -> Iterator[Any]:
            return iter([sample(0), sample(1)])

    class Callables:
        def __call__(self) -> Iterator[Any]:
            return iter([sample(0), sample(1)])

    for source in (lambda: [sample(0), sample(1)], Samples, Callables, Callables(), lambda: Callables()):
        assert list(taken(source)) == [0, 1]


def test_garbage_is_refused_counted_and_told() -> None:
    garbage = [None, 7, {"x": 1}, sample(1) | {"y": 1}, {"n": 1}, sample(1) | {"x": np.zeros(3)}, {"x": object()}]

    def source() -> Iterator[Any]:
        yield from garbage[:2]
        for number in range(MANY):
            yield sample(number)
            if number > 100:
                yield garbage[number % len(garbage)]

    figures = FillFigures()
    assert list(taken(source, figures)) == list(range(MANY))
    assert figures.refused == 2 + MANY - 101
    assert f"{figures.refused} samples were refused" in figures.problem
    assert "it has a field y" in figures.problem
    assert "fill another folder" not in figures.problem, "one in a row is no reason to"


def test_a_source_that_yields_other_fields_for_good_is_told_and_does_not_run_hot(clock: Time) -> None:
    def source() -> Iterator[Any]:
        yield sample(0)
        for _ in range(1000):
            yield {"x": np.zeros(4, np.float32), "n": 0}
        yield sample(1)

    figures, told = FillFigures(), set()
    schema = schema_of(sample(0))
    assert list(taken(source, figures, lambda: told.add(figures.problem), schema)) == [0, 1]
    assert figures.refused == 1000
    assert any("1000 in a row" in each and "float32 [4]" in each and "another folder" in each for each in told)
    assert sum(clock.slept) > 10


def test_a_source_of_nothing_but_garbage_ends_with_the_reason(clock: Time) -> None:
    def source() -> Iterator[Any]:
        while True:
            yield {"x": np.array([None])}

    with pytest.raises(FillError, match=r"first 1000 samples.*x: arrays of"):
        list(taken(source))
    with pytest.raises(FillError, match=r"first 1000 samples.*x is object"):
        list(taken(source, schema=schema_of({"x": np.zeros(1)})))


def test_a_source_without_a_sample_is_an_error_only_where_its_form_is_needed() -> None:
    with pytest.raises(FillError, match="without a sample"):
        list(taken(lambda: iter(())))
    with pytest.raises(FillError, match=r"without a sample.*NoneType"):
        list(taken(lambda: iter([None])))
    assert list(taken(lambda: iter(()), schema=schema_of(sample(0)))) == []


def test_first_samples_that_differ_are_an_error() -> None:
    with pytest.raises(FillError, match="field x"):
        list(taken(lambda: iter([sample(0), sample(1) | {"x": np.zeros(3, "f8")}])))


def test_the_fields_of_a_cache_bind() -> None:
    schema = schema_of(sample(0))
    with SourceReader(numbers(1), OPTIONS, FillFigures()) as reader:
        assert reader.schema(schema) == schema

    class Stating:
        def sample_schema(self) -> Schema:
            return schema_of({"y": 1})

        def __call__(self) -> Iterator[Any]:
            return iter([{"y": 1}])

    with SourceReader(Stating(), OPTIONS, FillFigures()) as reader:
        assert reader.schema(None) == schema_of({"y": 1})
        with pytest.raises(UsageError, match=r"y: int64 \[\].*x: float32 \[3\].*another folder"):
            reader.schema(schema)


def test_problems_have_a_length_that_can_be_shown() -> None:
    def source() -> Iterator[Any]:
        yield sample(0)
        yield sample(1) | {"y" * 10**6: 1}

    figures = FillFigures()
    assert list(taken(source, figures, schema=schema_of(sample(0)))) == [0]
    assert "yyyyy" in figures.problem
    assert len(figures.problem) < 3000


def test_others_are_served_while_a_source_stalls() -> None:
    go_on = threading.Event()

    def source() -> Iterator[Any]:
        yield sample(0)
        assert go_on.wait(60)
        yield sample(1)

    assert list(taken(source, None, go_on.set, schema_of(sample(0)))) == [0, 1]


def test_a_generator_is_closed_when_nobody_wants_more() -> None:
    ended: list[str] = []

    def source() -> Iterator[Any]:
        try:
            while True:
                yield sample(0)
        finally:
            ended.append(threading.current_thread().name)

    found = taken(source)
    next(found)
    found.close()
    assert ended == ["packtrain source"]


def test_an_error_while_a_source_is_closed_is_nobodys(clock: Time) -> None:
    def source() -> Iterator[Any]:
        try:
            yield sample(0)
            yield sample(1)
        finally:
            raise SystemExit(1)

    found = taken(source, schema=schema_of(sample(0)))
    next(found)
    found.close()
    assert "packtrain source" not in [thread.name for thread in threading.enumerate()]


BLOCKED = """
import sys, time
from packtrain._growing.status import FillFigures
from packtrain._growing.source_reader import SourceReader
from packtrain._growing.options import FillOptions

def source():
    print("blocked", flush=True)
    time.sleep(1000)
    yield {}

with SourceReader(source, FillOptions(budget="64MiB"), FillFigures()) as intake:
    intake.schema(None)
"""


@pytest.mark.complete
def test_a_source_that_never_returns_does_not_keep_the_process_alive() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"blocked\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()
