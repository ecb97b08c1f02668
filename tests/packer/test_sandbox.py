"""Laws of a process with limits: what it says arrives, and whatever it does ends in a message, never in the caller."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.support import soon

from packtrain._packer.sandbox import Died, Limits, Send, run_sandboxed
from packtrain.errors import ShardFailed

LIMITS = Limits(memory=64 << 20, seconds=30)


@dataclass(frozen=True)
class Number:
    value: int


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = os.listdir("/proc/self/fd"), children.read_text()
    yield
    assert (os.listdir("/proc/self/fd"), children.read_text()) == before


def outcome(work: Callable[[Send], None], limits: Limits = LIMITS) -> tuple[list[int], str]:
    """Returns what a process said, and how it died."""
    said = []
    try:
        with soon(20):
            for number in run_sandboxed(work, Number, limits):
                said.append(number.value)  # noqa: PERF401 - what was said before the end counts
    except Died as death:
        return said, str(death)
    pytest.fail("it came to its end")


def test_what_it_says_arrives_in_order() -> None:
    def work(send: Send) -> None:
        for number in range(10_000):
            send({"value": number})

    assert [number.value for number in run_sandboxed(work, Number, LIMITS)] == list(range(10_000))


def killed_by(number: int) -> Callable[[Send], None]:
    def work(send: Send) -> None:
        send({"value": 1})
        os.kill(os.getpid(), number)

    return work


def greedy(send: Send) -> None:
    send({"value": len(bytearray(32 << 20))})
    send({"value": len(bytearray(1 << 30))})


def failing(send: Send) -> None:
    raise TypeError("no such thing")


SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGTERM)


@pytest.mark.parametrize(
    ("work", "said", "how"),
    [
        *((killed_by(number), [1], f"crashed with {number.name}") for number in SIGNALS),
        (killed_by(40), [1], "crashed with signal 40"),
        (greedy, [32 << 20], "needed more than 64.0 MiB of memory"),
        (failing, [], "raised TypeError: no such thing"),
    ],
)
def test_what_ends_it_is_named(work: Callable[[Send], None], said: list[int], how: str) -> None:
    there, why = outcome(work)
    assert there == said
    assert why.startswith(how)


@pytest.mark.complete
def test_processor_time_is_limited_and_waiting_is_free() -> None:
    def work(send: Send) -> None:
        time.sleep(1.5)
        send({"value": 1})
        while True:
            pass

    said, how = outcome(work, Limits(LIMITS.memory, seconds=1))
    assert (said, how) == ([1], "needed more than 1 s of processor time")


@pytest.mark.parametrize("message", [{"value": "x"}, {"other": 1}, {}, {"value": "long" * 10**6}])
def test_only_messages_of_the_right_form_count(message: dict[str, Any]) -> None:
    assert outcome(lambda send: send(message)) == ([], "sent something that is no message")


def test_it_ends_with_the_loop_over_what_it_says() -> None:
    def work(send: Send) -> None:
        send({"value": os.getpid()})
        time.sleep(60)

    with soon():
        running = run_sandboxed(work, Number, LIMITS)
        child = next(running).value
        running.close()
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_the_terminals_ctrl_c_is_for_the_caller_only() -> None:
    def work(send: Send) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        send({"value": 1})

    assert [number.value for number in run_sandboxed(work, Number, LIMITS)] == [1]


def test_it_leaves_no_core_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome(lambda send: os.abort())
    assert not list(tmp_path.iterdir())


def test_without_proc_only_the_memory_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path, *arguments: object, **options: object) -> str:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))

    monkeypatch.setattr(Path, "read_text", missing)
    sent = run_sandboxed(lambda send: send({"value": len(bytearray(128 << 20))}), Number, LIMITS)
    assert [number.value for number in sent] == [128 << 20]


@pytest.mark.parametrize("call", ["pipe", "fork"])
def test_where_no_process_can_be_started_that_is_said(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def failing() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(ShardFailed, match=r"cannot start a process: Too many open files.*ulimit -n"):
        next(run_sandboxed(lambda send: None, Number, LIMITS))
