"""Laws of the threads that copy: a machine that allows fewer of them is slower, and one that allows none says so."""

from __future__ import annotations

import threading

import pytest

from packtrain._storage.staging.pieces import ThreadTeam
from packtrain.errors import StagingError


def allow_threads(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Lets the next `number` threads start, and no others."""
    start, left = threading.Thread.start, [number]

    def start_or_not(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)


def test_fewer_threads_do_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_threads(monkeypatch, 2)
    done: list[int] = []
    ThreadTeam(5).run(range(40), lambda task, _: done.append(task))
    assert sorted(done) == list(range(40))


def test_no_thread_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_threads(monkeypatch, 0)
    with pytest.raises(StagingError, match=r"no thread can be started.*ulimit -u.*ulimit -v"):
        ThreadTeam(5).run(range(40), lambda task, _: None)
