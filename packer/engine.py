"""Runs independent tasks in this process or in several worker processes of this machine.

Every worker is a spawned process with its own pipe. It inherits no lock, no descriptor and no thread. If it dies, the
parent knows which task died with it. If the parent dies, so does the worker.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, Generic, TypeVar

from packtrain._core.errors import PacktrainError, ShardFailed
from packtrain._core.interrupts import postponed_ctrl_c
from packtrain._core.launching import Lifeline, depend_on
from packtrain._core.processes import how_ended

Task = TypeVar("Task")
Report = TypeVar("Report")
Result = TypeVar("Result")

ATTEMPTS: Final = 2
"""The most attempts at a task."""
Engine = Callable[..., Generator[Any, None, None]]
"""A function that runs tasks, here or elsewhere, with the parameters of `run_tasks`."""
_HINTS: Final = {
    # What a spawned process ends with if the script that it imports starts workers, too.
    1: '; does the calling script have `if __name__ == "__main__":`?',
    -signal.SIGKILL: "; out of memory?",
}


def run_tasks(
    function: Callable[[Task, Callable[[Report], None]], Result],
    tasks: Iterable[Task],
    *,
    workers: int,
    on_progress: Callable[[Report], None],
) -> Generator[Result, None, None]:
    """Runs `function` on every task and yields the results in the order in which they arrive.

    A task is tried a second time if it raises `ShardFailed` or MemoryError, or if its worker dies. Whoever cleans up
    after workers closes the generator first: until then they may be at work.

    Args:
        function: Takes a task and a callable to which it passes its reports. Workers import it by name.
        tasks: Tasks; the next one is taken when a worker becomes free.
        workers: Number of worker processes; with 1, everything runs in this process.
        on_progress: Called in this process with every report.

    Raises:
        ShardFailed: A task failed twice.
        PacktrainError: A task raised it; the other workers are stopped.
    """
    if workers <= 1:
        for task in tasks:
            yield _run_here(function, task, on_progress)
        return
    pool = [_Worker(function) for _ in range(workers)]
    try:
        yield from _dispatch(pool, iter(tasks), on_progress)
    finally:
        with postponed_ctrl_c():
            for worker in pool:
                worker.stop()


def _run_here(
    function: Callable[[Task, Callable[[Report], None]], Result], task: Task, on_progress: Callable[[Report], None]
) -> Result:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return function(task, on_progress)
        except (ShardFailed, MemoryError) as error:
            if attempt == ATTEMPTS:
                raise failure(task, error) from error
    raise AssertionError


def failure(task: Any, error: BaseException) -> ShardFailed:
    """Make the error for a task that failed as often as it was tried."""
    return ShardFailed(f"{task} failed twice: {str(error) or type(error).__name__}", shard=str(task))


@dataclass(frozen=True)
class Raised:
    """A failure, sent from a worker to the parent.

    Attributes:
        error: The error. Only packtrain's own errors are sent, because they are known to pickle.
        retry: True if a second attempt might succeed.
    """

    error: PacktrainError
    retry: bool


@dataclass(frozen=True)
class TaskResult(Generic[Result]):
    """A result, sent from a worker to the parent."""

    value: Result


def outcome(
    function: Callable[[Task, Callable[[Report], None]], Result], task: Task, report: Callable[[Report], None]
) -> TaskResult[Result] | Raised:
    """Runs `function` on a task. Returns what came of it, as it travels to the process that hands out the tasks.

    Raises:
        BrokenPipeError: `report` raised it, because nobody listens any more.
        ConnectionResetError: The same.
    """
    try:
        return TaskResult(function(task, report))
    except (BrokenPipeError, ConnectionResetError):
        raise
    except (ShardFailed, MemoryError) as error:
        return Raised(ShardFailed(str(error) or "out of memory"), retry=True)
    except PacktrainError as error:
        return Raised(error, retry=False)
    except Exception:
        unforeseen = ShardFailed(f"{task} failed unexpectedly:\n{traceback.format_exc()}", shard=str(task))
        return Raised(unforeseen, retry=False)


class _Worker:
    """A worker process and the task it is working on.

    Attributes:
        task: The current task, or the last one.
        attempt: Number of the current attempt at `task`, from 1; 0 while the worker has nothing to do.
        pipe: The parent's end of the pipe.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.task: Any = None
        self.attempt = 0
        self.pipe: Connection
        self._process: BaseProcess
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._lifeline = Lifeline()
        arguments = self._function, theirs, self._lifeline.child
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        # The first worker would start the resource tracker, and starting that unblocks Ctrl-C.
        resource_tracker.ensure_running()
        with postponed_ctrl_c():
            self._process.start()
        theirs.close()
        self._lifeline.child.close()

    def give_next(self, tasks: Iterator[Any]) -> None:
        """Sends the next task to the process, if there is one."""
        self.attempt = 0
        for self.task in tasks:
            self._try()
            break

    def retry(self, raised: Raised) -> None:
        """Sends a task that has failed once more, unless that was often enough."""
        if not raised.retry:
            raise raised.error
        if self.attempt >= ATTEMPTS:
            raise failure(self.task, raised.error)
        self._try()

    def _try(self) -> None:
        self.attempt += 1
        # A process that died while it was idle leaves a broken pipe. The dispatcher sees that, and retries the task.
        with suppress(BrokenPipeError):
            self.pipe.send(self.task)

    def replace(self) -> str:
        """Starts a new process in place of one that died. Returns how the old one ended."""
        self._process.join()
        code = self._process.exitcode or 0
        self.pipe.close()
        self._start()
        return f"its worker {how_ended(code)}{_HINTS.get(code, '')}"

    def stop(self) -> None:
        """Ends the process, whatever it is doing."""
        # Not SIGTERM, which a stopped process does not receive.
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _dispatch(pool: list[_Worker], tasks: Iterator[Any], on_progress: Callable[[Any], None]) -> Iterator[Any]:
    """Gives tasks to free workers, and retries those that failed. Yields the results."""
    for worker in pool:
        worker.give_next(tasks)
    while busy := {worker.pipe: worker for worker in pool if worker.attempt}:
        for pipe in wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                message = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                message = Raised(ShardFailed(worker.replace()), retry=True)
            if isinstance(message, TaskResult):
                worker.give_next(tasks)
                yield message.value
            elif isinstance(message, Raised):
                worker.retry(message)
            else:
                on_progress(message)


def _serve(function: Callable[..., Any], pipe: Connection, lifeline: Connection) -> None:
    """Main loop of a worker: receives tasks and sends reports and results until the parent closes the pipe."""
    # Otherwise it might begin a task that waits in the pipe while the next run is at work on that shard.
    depend_on(lifeline)
    while True:
        try:
            task = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            pipe.send(outcome(function, task, pipe.send))
        except (BrokenPipeError, ConnectionResetError):
            return
