"""Runs independent tasks in this process or in several.

Every worker is a spawned process with a pipe of its own: it inherits no lock, no descriptor and no thread, the parent
knows which task died with it, and a worker whose parent is gone ends at its next word on the pipe.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from packtrain._core.errors import PacktrainError, ShardFailed

Task = TypeVar("Task")
Report = TypeVar("Report")
Result = TypeVar("Result")

_ATTEMPTS = 2


def run_tasks(
    function: Callable[[Task, Callable[[Report], None]], Result],
    tasks: Iterable[Task],
    *,
    workers: int,
    on_progress: Callable[[Report], None],
) -> Iterator[Result]:
    """Runs `function` on every task; yields results as they come.

    A task that raises `ShardFailed` or MemoryError, or that dies with its worker, is tried once more.

    Args:
        function: Importable by name; gets a task and a callable for reports on the way.
        tasks: Taken one by one as workers become free.
        workers: Processes; 1 runs everything in this one.
        on_progress: Called here with every report.

    Raises:
        ShardFailed: A task failed twice.
        PacktrainError: A task raised it; the others are stopped.
    """
    if workers <= 1:
        for task in tasks:
            yield _run_here(function, task, on_progress)
        return
    pool = [_Worker(function) for _ in range(workers)]
    try:
        yield from _Dispatcher(pool, iter(tasks), on_progress)
    finally:
        for worker in pool:
            worker.stop()


def _run_here(
    function: Callable[[Task, Callable[[Report], None]], Result], task: Task, on_progress: Callable[[Report], None]
) -> Result:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return function(task, on_progress)
        except (ShardFailed, MemoryError) as error:
            if attempt == _ATTEMPTS:
                raise _failure(task, error) from error
    raise AssertionError


def _failure(task: Any, error: BaseException) -> ShardFailed:
    return ShardFailed(f"{task} failed twice: {str(error) or type(error).__name__}")


@dataclass(frozen=True)
class _Raised:
    """A failure on its way from a worker to the parent.

    Attributes:
        error: One of ours: those are known to survive the way.
        retry: Whether another attempt might succeed.
    """

    error: PacktrainError
    retry: bool


@dataclass(frozen=True)
class _Done(Generic[Result]):
    """A result on that way."""

    value: Result


class _Worker:
    """A process, its pipe, and what it is at work on."""

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
        self._process = context.Process(target=_serve, args=(self._function, theirs), daemon=True)
        with _postponed_ctrl_c():
            self._process.start()
        theirs.close()

    def give(self, task: Any, attempt: int) -> None:
        """Starts on a task."""
        self.task, self.attempt = task, attempt
        try:
            self.pipe.send(task)
        except BrokenPipeError:
            # It died while idle; whoever waits on the pipe sees that and starts the task anew.
            return

    def replace(self) -> str:
        """Starts a new process for one that died. Returns how that one ended."""
        self._process.join()
        code = self._process.exitcode or 0
        self.pipe.close()
        self._start()
        if code >= 0:
            return f"its worker ended with exit code {code}"
        hint = "; out of memory?" if code == -signal.SIGKILL else ""
        return f"its worker was killed by {signal.Signals(-code).name}{hint}"

    def stop(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.terminate()
        self._process.join()
        self.pipe.close()


class _Dispatcher:
    """Hands tasks to free workers, and failed ones out once more."""

    def __init__(self, pool: list[_Worker], tasks: Iterator[Any], on_progress: Callable[[Any], None]) -> None:
        self._pool = pool
        self._tasks = tasks
        self._on_progress = on_progress

    def __iter__(self) -> Iterator[Any]:
        for worker in self._pool:
            self._give_next(worker)
        while busy := {worker.pipe: worker for worker in self._pool if worker.attempt}:
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                try:
                    message = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    message = _Raised(ShardFailed(worker.replace()), retry=True)
                if isinstance(message, _Done):
                    self._give_next(worker)
                    yield message.value
                elif isinstance(message, _Raised):
                    self._retry(worker, message)
                else:
                    self._on_progress(message)

    def _give_next(self, worker: _Worker) -> None:
        worker.attempt = 0
        for task in self._tasks:
            worker.give(task, 1)
            break

    def _retry(self, worker: _Worker, raised: _Raised) -> None:
        if not raised.retry:
            raise raised.error
        if worker.attempt >= _ATTEMPTS:
            raise _failure(worker.task, raised.error)
        worker.give(worker.task, worker.attempt + 1)


@contextmanager
def _postponed_ctrl_c() -> Iterator[None]:
    """Puts Ctrl-C off for a while; processes started meanwhile never see it.

    It reaches the whole process group, also workers that are still importing; but the parent decides.
    """
    # To start it, as the first worker would, would unblock the signal.
    resource_tracker.ensure_running()
    came: list[int] = []
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # A thread that does not block it may get it all the same, and then Python raises KeyboardInterrupt in the main one.
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if handler is not None:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if came:
            signal.raise_signal(signal.SIGINT)


def _serve(function: Callable[..., Any], pipe: Connection) -> None:
    """A worker's life: tasks in, reports and results out, until the parent is gone."""
    parent = multiprocessing.parent_process()
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        if parent is None or not parent.is_alive():
            # The task has outlived it in the pipe; by now another run may be at work on it.
            return
        try:
            message: Any = _Done(function(task, pipe.send))
        except BrokenPipeError:
            return
        except (ShardFailed, MemoryError) as error:
            message = _Raised(ShardFailed(str(error) or "out of memory"), retry=True)
        except PacktrainError as error:
            message = _Raised(error, retry=False)
        except Exception:
            message = _Raised(ShardFailed(f"{task} failed unexpectedly:\n{traceback.format_exc()}"), retry=False)
        try:
            pipe.send(message)
        except BrokenPipeError:
            return
