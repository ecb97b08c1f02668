"""Ctrl-C at any moment: no batch is lost from the state, and the loader can be used again."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from helpers.hazards import Numbered
from helpers.support import soon, with_modules

from packtrain import Loader

pytestmark = pytest.mark.usefixtures("no_process_left")

ROWS, BATCH = 64, 4


def loader_of(workers: int, **options: Any) -> Loader:
    options = {"seed": 0, "multiprocessing_context": "fork", **options}
    return Loader(Numbered(ROWS), BATCH, shuffle=False, num_workers=workers, **options)


@contextmanager
def interrupted_at(line: int) -> Iterator[list[int]]:
    """Raises KeyboardInterrupt when this many lines of the loader's code have been run. Yields a count of the lines."""
    count = [0]

    def trace(frame: Any, event: str, _: object) -> Any:
        if not frame.f_globals["__name__"].startswith(("packtrain._readers.loader", "packtrain._readers.monitoring")):
            return None
        if event == "line":
            count[0] += 1
            if count[0] == line:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(None)


@pytest.mark.complete
def test_wherever_it_comes_every_batch_is_handed_out_once() -> None:
    """Between any two lines of the loader's code: what the consumer had, and what the state counts, is the same."""
    lines = 1
    with soon(60), loader_of(0) as loader:
        while True:
            loader.load_state_dict({**loader.state_dict(), "epoch": 0, "consumed": 8 * BATCH})
            found: list[int] = []
            batches: Any = ()
            try:
                with interrupted_at(lines) as count:
                    batches = iter(loader)
                    for _, labels in itertools.islice(batches, 3):
                        found += labels.tolist()
            except KeyboardInterrupt:
                pass
            else:
                assert count[0] < lines
                break
            at = loader.state_dict()["consumed"]
            # The last line of all is the one that hands the batch out: a tracer, unlike a signal, can come there.
            assert at - (8 * BATCH + len(found)) in (0, BATCH), lines
            loader.load_state_dict(loader.state_dict())
            rest = [label for _, labels in loader for label in labels.tolist()]
            assert rest == list(range(at, ROWS)), lines
            lines += 1
    assert lines > 100


Profile = Callable[[FrameType, str, Any], None]


def read_on(loader: Loader, profile: Profile) -> None:
    """An epoch whose first batch is not watched: with it come the workers, and what is imported late."""
    batches = iter(loader)
    next(batches)
    sys.setprofile(profile)
    try:
        for _ in batches:
            pass
    finally:
        sys.setprofile(None)


def functions_of(workers: int) -> list[CodeType]:
    """Every function that is called in this process while an epoch is read, also those that C code calls."""
    called: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called[frame.f_code] = None

    with loader_of(workers) as loader:
        read_on(loader, note)
    return [*called]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.complete)])
def test_it_is_not_lost_in_any_function(workers: int) -> None:
    """C code may drop the error: NumPy does when it asks a foreign object for attributes."""
    lost = []
    functions = functions_of(workers)
    for function in functions:

        def interrupt(frame: FrameType, event: str, _: object, function: CodeType = function) -> None:
            if event == "call" and frame.f_code is function:
                raise KeyboardInterrupt

        with loader_of(workers) as loader:
            try:
                read_on(loader, interrupt)
            except KeyboardInterrupt:
                continue
        lost.append(f"{function.co_filename}:{function.co_firstlineno} {function.co_qualname}")
    assert not lost
    assert len(functions) > 10


@pytest.mark.parametrize("workers", [0, 2])
def test_a_second_ctrl_c_while_it_closes_leaves_a_loader_that_works(workers: int) -> None:
    loader = loader_of(workers, prefetch_factor=1)
    for line in (1, 2, 3, 5, 8, 13, 21, 34):
        with soon(30):
            next(iter(loader))
            try:
                with interrupted_at(line):
                    loader.close()
            except KeyboardInterrupt:
                pass
            loader.set_epoch(loader.state_dict()["epoch"] + 1)
            assert len(list(loader)) == ROWS // BATCH
    loader.close()
    assert multiprocessing.active_children() == []


# Python's own socketpair() leaves two sockets to the garbage collector if it is interrupted.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.stress
@pytest.mark.parametrize("seed", range(10))
def test_real_signals_at_random_times(seed: int) -> None:
    chance = random.Random(seed)
    loader = loader_of(2)
    found: list[int] = []
    with soon(60):
        for _ in range(50):
            killer = threading.Timer(chance.uniform(0, 0.03), os.kill, (os.getpid(), signal.SIGINT))
            try:
                killer.start()
                for _, labels in loader:
                    # The list as a whole, so that an interrupt comes before it or after it.
                    found.extend(labels.tolist())
                    if loader.state_dict()["consumed"] == ROWS:
                        found.clear()
                time.sleep(0.1)
            except KeyboardInterrupt:
                state = loader.state_dict()
                assert state["consumed"] - len(found) % ROWS in (0, BATCH, ROWS)
                loader.load_state_dict(state)
                found = list(range(state["consumed"] % ROWS))
            finally:
                killer.join()
        loader.close()


STARTED = ("forkserver", "spawn")
START = """
import os, signal, sys, threading
from helpers.hazards import Numbered
from packtrain import Loader

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = Loader(Numbered(64), 8, num_workers=2, multiprocessing_context=sys.argv[1])
    threading.Timer(float(sys.argv[2]), os.killpg, (0, signal.SIGINT)).start()
    while True:
        list(loader)
"""


@pytest.mark.complete
@pytest.mark.parametrize(
    ("method", "delay"),
    [("forkserver", 0.05), ("spawn", 0.3), *(pytest.param(each, 1.0, marks=pytest.mark.stress) for each in STARTED)],
)
def test_ctrl_c_while_workers_start_is_told_once(method: str, delay: float, tmp_path: Any) -> None:
    script = tmp_path / "start.py"
    script.write_text(START)
    done = subprocess.run(
        [sys.executable, script, method, str(delay)],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        env=with_modules(Path(__file__).parents[2]),
    )
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr
