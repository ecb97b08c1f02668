"""Laws of running tasks: each is done once, what failed is tried once more, and an error says what went wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.fates import OddError, Report, work
from helpers.processes import children, read_proc

from packtrain._packer.engine import run_tasks
from packtrain.errors import NoSpace, ShardFailed, UsageError

WORKERS = pytest.mark.parametrize("workers", [1, 2])


def run(folder: Path, fates: list[str], workers: int, reports: list[str] | None = None) -> list[int]:
    """Runs a task per fate; returns the results."""
    tasks = ((folder, number, fate) for number, fate in enumerate(fates))
    on_progress: Report = (lambda _: None) if reports is None else reports.append
    return list(run_tasks(work, tasks, workers=workers, on_progress=on_progress))


def attempts(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


@WORKERS
def test_every_task_is_done_once_and_every_report_arrives(tmp_path: Path, workers: int) -> None:
    reports: list[str] = []
    assert sorted(run(tmp_path, [""] * 7, workers, reports)) == [number * number for number in range(7)]
    assert sorted(reports) == [f"{number}.1" for number in range(7)]
    assert run(tmp_path, [], workers) == []


@pytest.mark.parametrize(
    ("fate", "workers"), [("fails", 1), ("memory", 1), ("fails", 2), ("memory", 2), ("exits", 2), ("killed", 2)]
)
def test_what_fails_once_is_done_again(tmp_path: Path, fate: str, workers: int) -> None:
    assert sorted(run(tmp_path, ["", f"{fate} once", f"{fate} once", ""], workers)) == [0, 1, 4, 9]
    assert attempts(tmp_path) == {"0": 1, "1": 2, "2": 2, "3": 1}


@pytest.mark.parametrize(
    ("fate", "workers", "message"),
    [
        ("fails", 1, "failed twice: the disk is on holiday"),
        ("fails", 2, "failed twice: the disk is on holiday"),
        ("memory", 1, "failed twice: (MemoryError|out of memory)"),
        ("memory", 2, "failed twice: out of memory"),
        ("exits", 2, "failed twice: its worker ended with exit code 3"),
        ("killed", 2, "failed twice: its worker was killed by SIGKILL; out of memory?"),
    ],
)
def test_what_fails_twice_is_the_end(tmp_path: Path, fate: str, workers: int, message: str) -> None:
    with pytest.raises(ShardFailed, match=message):
        run(tmp_path, [fate], workers)
    assert attempts(tmp_path) == {"0": 2}


@WORKERS
@pytest.mark.parametrize(
    ("fate", "error", "told"),
    [("full", NoSpace, ["no space left for us"]), ("odd", (OddError, ShardFailed), ["something odd (7)", "break_odd"])],
)
def test_what_a_second_attempt_cannot_mend_is_the_end_at_once(
    tmp_path: Path, workers: int, fate: str, error: Any, told: list[str]
) -> None:
    with pytest.raises(error) as caught:
        run(tmp_path, [fate], workers)
    traceback = str(caught.getrepr(chain=True))
    assert all(each in traceback for each in told)
    assert attempts(tmp_path) == {"0": 1}


def test_the_other_workers_are_stopped_with_the_failed_one(tmp_path: Path) -> None:
    before = started()
    with pytest.raises(NoSpace):
        run(tmp_path, ["full", *[""] * 50], 2)
    assert started() == before


@WORKERS
def test_an_error_of_the_caller_stops_the_run(tmp_path: Path, workers: int) -> None:
    def refuse(_: str) -> None:
        raise UsageError("enough")

    before = started()
    tasks = ((tmp_path, number, "") for number in range(9))
    with pytest.raises(UsageError, match="enough"):
        list(run_tasks(work, tasks, workers=workers, on_progress=refuse))
    assert started() == before


@WORKERS
def test_tasks_are_taken_as_workers_become_free(tmp_path: Path, workers: int) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[Any]:
        for number in range(20):
            taken.append(number)
            yield tmp_path, number, ""

    results = run_tasks(work, tasks(), workers=workers, on_progress=lambda _: None)
    next(results)
    assert len(taken) <= 1 + workers
    assert len(list(results)) == 19


def started() -> set[int]:
    """Processes that this one has started and not reaped, but for multiprocessing's own helper."""
    return {pid for pid in children() if b"resource_tracker" not in read_proc(pid, "cmdline")}


def test_a_script_that_starts_workers_while_it_is_imported_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from packtrain._packer.engine import run_tasks\nlist(run_tasks(print, ['a'], workers=2, on_progress=print))\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    last = ended.stderr.splitlines()[-1]
    assert last.endswith('ended with exit code 1; does the calling script have `if __name__ == "__main__":`?')
