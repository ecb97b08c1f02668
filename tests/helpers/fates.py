"""Tasks that succeed or fail as their arguments say.

A module of its own, because spawned processes import it by name.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from packtrain.errors import NoSpace, ShardFailed

Report = Callable[[str], None]
Task = tuple[Path, int, str]


def work(task: Task, report: Report) -> int:
    """Carries out a task (folder, number, what is to happen); counts its attempts in the folder."""
    folder, number, what = task
    attempts = folder / str(number)
    attempt = attempts.stat().st_size + 1 if attempts.exists() else 1
    attempts.write_bytes(bytes(attempt))
    report(f"{number}.{attempt}")
    name, _, first_only = what.partition(" ")
    if name and not (first_only and attempt > 1):
        FATES[name]()
    return number * number


class OddError(Exception):
    """An exception that cannot be created from its message only. Some libraries have such exceptions."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} ({code})")


def fail() -> None:
    raise ShardFailed("the disk is on holiday")


def run_out_of_memory() -> None:
    raise MemoryError


def fill_the_disk() -> None:
    raise NoSpace("no space left for us")


def break_odd() -> None:
    raise OddError(7, "something odd")


def exit_at_once() -> None:
    os._exit(3)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep() -> None:
    time.sleep(600)


FATES: dict[str, Callable[[], None]] = {
    "fails": fail,
    "memory": run_out_of_memory,
    "full": fill_the_disk,
    "odd": break_odd,
    "exits": exit_at_once,
    "killed": be_killed,
    "sleeps": sleep,
}
