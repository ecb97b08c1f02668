"""Runs independent tasks on a Ray cluster, one Ray task for each, as `run_tasks` does on one machine.

Ray says where a task runs. Which tasks are tried again is decided here, by the same laws as in `run_tasks`, so Ray
itself retries nothing. A task has two messages, the name of its node and its end, which come through a generator of
Ray's: there is no actor and no queue that could die, and what a lost node had to say is lost with it.

Only the public interface of Ray is used.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

from packtrain._core.arguments import checks_names
from packtrain._core.errors import MissingDependency, ShardFailed, UsageError
from packtrain._core.installing import extra_command
from packtrain._core.interrupts import postponed_ctrl_c

from .engine import ATTEMPTS, Report, Result, Task, TaskResult, failure

_LOST_NODES: Final = 10
"""The most nodes that a task may lose. On machines that the cloud takes back, that says nothing about the task."""
_CONNECT_SECONDS: Final = 5.0
_END_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 5.0
"""Seconds between two looks at the nodes of the cluster."""


@checks_names()
@dataclass(frozen=True)
class RayEngine:
    """An `Engine` that runs tasks on a Ray cluster. What a task reports arrives with its end.

    If the process is connected to a cluster already, that cluster is used, and stays connected.

    Attributes:
        address: ``HOST:PORT`` of a cluster, or ``"auto"`` for the one that runs on this machine. None: the cluster that
            the variable RAY_ADDRESS names.
        log: True to show what Ray logs.
    """

    address: str | None = None
    log: bool = False

    def __call__(
        self,
        function: Callable[[Task, Callable[[Report], None]], Result],
        tasks: Iterable[Task],
        *,
        workers: int,
        on_progress: Callable[[Report], None],
    ) -> Generator[Result, None, None]:
        """See `Engine`. At most two tasks per processor of the cluster wait or run at the same time.

        Raises:
            MissingDependency: Ray, or packtrain on a node, is missing or has another version.
            UsageError: There is no such cluster, or it cannot be used from here.
            ShardFailed: A task failed twice, or lost its node too often.
            PacktrainError: A task raised it; the other tasks are cancelled.
        """
        if workers < 1:
            return
        ray = _ray()
        with _connected(ray, self):
            run = _Scheduler(ray, function, iter(tasks), workers, on_progress)
            try:
                yield from run
            finally:
                with postponed_ctrl_c():
                    run.cancel()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingDependency(
            f"packing on a cluster needs Ray, which cannot be imported ({error}): `{extra_command('ray')}`"
        ) from error


@contextmanager
def _connected(ray: Any, engine: RayEngine) -> Iterator[None]:
    """Connects this process to the cluster for as long as the block takes, unless it is connected already."""
    if ray.is_initialized():
        yield
        return
    address = engine.address if engine.address not in (None, "auto") else os.environ.get("RAY_ADDRESS", engine.address)
    _require_reachable(address)
    main = threading.current_thread() is threading.main_thread()
    on_sigterm = signal.getsignal(signal.SIGTERM) if main else None
    try:
        try:
            level = "INFO" if engine.log else "ERROR"
            ray.init(address, log_to_driver=engine.log, logging_level=level)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise UsageError(f"cannot use the Ray cluster at {address}: {error}") from error
        yield
    finally:
        with postponed_ctrl_c():
            ray.shutdown()
        if on_sigterm is not None:
            signal.signal(signal.SIGTERM, on_sigterm)


def _require_reachable(address: str | None) -> None:
    """Refuses an address at which nothing answers: Ray itself would try for twelve minutes.

    Raises:
        UsageError: There is nothing.
    """
    if address in (None, "", "local"):
        raise UsageError(
            "which Ray cluster? Give `--address HOST:PORT`, or `--address auto` for one on this machine, which "
            "`ray start --head` starts"
        )
    if "://" in address:
        raise UsageError(
            f"{address}: packtrain has to run on a machine of the cluster. Give HOST:PORT there, or hand in a job: "
            "ray job submit --address http://HOST:8265 -- packtrain pack LIST OUT --engine ray"
        )
    if address == "auto":
        # Ray itself says at once if it finds none.
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no Ray cluster answers at {address} ({error}): is it running, and is this its GCS? "
            "Start one: ray start --head"
        ) from error


def _attempt() -> Callable[[str, bytes], Iterator[Any]]:
    """Return the function of a worker: it names its node, and carries out a task if it has the same packtrain."""

    # Being found nowhere by its name, it travels by value, and so arrives where there is no packtrain.
    def attempt(packtrain: str, call: bytes) -> Iterator[Any]:
        import pickle
        import socket
        import sys
        from importlib import import_module, metadata

        context = import_module("ray").get_runtime_context()
        where = context.get_node_id(), socket.gethostname()
        try:
            found = metadata.version("packtrain")
            outcome = import_module("packtrain._packer.engine").outcome
        except Exception as error:
            yield *where, f"{sys.executable} cannot import packtrain there ({type(error).__name__}: {error})"
            return
        if found != packtrain:
            yield *where, f"{sys.executable} has packtrain {found} there, and here it is {packtrain}"
            return
        yield *where, None
        function, task = pickle.loads(call)
        said: list[Any] = []
        end = outcome(function, task, said.append)
        yield [*said, end]

    return attempt


@dataclass
class _Trial:
    """A task and how it went so far.

    Attributes:
        task: The task.
        call: Function and task, pickled.
        attempts: How often it failed or lost its worker.
        lost: How often it lost its node.
        node: Ray's name of the node on which it runs, or ran; empty as long as it waits.
        host: Name of that machine.
    """

    task: Any
    call: bytes
    attempts: int = 0
    lost: int = 0
    node: str = ""
    host: str = ""

    @property
    def place(self) -> str:
        """The node on which the task runs or ran, for messages."""
        return f" on node {self.host}" if self.host else ""


class _Scheduler:
    """The tasks of one run: hands them to Ray, and tries again what failed."""

    def __init__(
        self, ray: Any, function: Callable[..., Any], tasks: Iterator[Any], workers: int, report: Callable[[Any], None]
    ) -> None:
        self._ray = ray
        self._function = function
        self._tasks = tasks
        self._workers = workers
        self._report = report
        self._again: deque[_Trial] = deque()
        self._running: dict[Any, _Trial] = {}
        self._packtrain = metadata.version("packtrain")
        self._remote = self._remote_attempt()
        self._processors = 1
        self._asked = -_LOOK_SECONDS
        self._dead: Set[str] = frozenset()

    def __iter__(self) -> Iterator[Any]:
        self._look()
        self._hand_out()
        while self._running:
            self._ray.wait(list(self._running), num_returns=1, timeout=_LOOK_SECONDS)
            ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
            for generator in ready:
                for message in self._heard(generator):
                    if isinstance(message, TaskResult):
                        yield message.value
                    else:
                        self._report(message)
            self._look()
            self._hand_out()

    def _hand_out(self) -> None:
        """Hands tasks to Ray until twice as many wait or run there as can run at the same time."""
        room = min(self._workers, 2 * self._processors) - len(self._running)
        for _ in range(room):
            if self._again:
                trial = self._again.popleft()
            else:
                task = next(self._tasks, self)
                if task is self:
                    return
                trial = _Trial(task, pickle.dumps((self._function, task), pickle.HIGHEST_PROTOCOL))
            self._running[self._remote.remote(self._packtrain, trial.call)] = trial
            trial.node = trial.host = ""

    def _look(self) -> None:
        """Looks now and then at which nodes there are."""
        if time.monotonic() - self._asked < _LOOK_SECONDS:
            return
        self._asked = time.monotonic()
        nodes = {node["NodeID"]: node for node in self._ray.nodes()}
        alive = [node for node in nodes.values() if node["Alive"]]
        # At least one, so that a cluster that grows on demand sees some.
        self._processors = max(1, int(sum(node["Resources"].get("CPU", 0) for node in alive)))
        dead = nodes.keys() - {node["NodeID"] for node in alive}
        more, self._dead = not dead <= self._dead, dead
        if more:
            self._remote = self._remote_attempt()
        self._take_back(dead, more=more)

    def _remote_attempt(self) -> Any:
        """Make a function for Ray. Each has a queue of its own, which may wait for a worker of a node that is dead."""
        return self._ray.remote(num_cpus=1, max_retries=0, num_returns="streaming", name="packtrain")(_attempt())

    def _take_back(self, dead: Set[str], *, more: bool) -> None:
        """Takes back the tasks of nodes that are dead. If a machine falls silent, Ray itself waits for it for minutes.

        Args:
            dead: The nodes.
            more: True if there are more of them now. They may have tasks that have not yet said where they are.
        """
        for generator, trial in list(self._running.items()):
            if trial.node in dead:
                del self._running[generator]
                self._lost_node(trial, "it is dead")
            elif more and not trial.node:
                del self._running[generator]
                self._ray.cancel(generator, force=True)
                self._again.append(trial)

    def _heard(self, generator: Any) -> Iterator[Any]:
        """Yields reports and result of a task that has something to say. Puts it among those to be tried again.

        Raises:
            PacktrainError: It failed for good.
        """
        trial = self._running[generator]
        try:
            said = self._ray.get(next(generator))
        except (self._ray.exceptions.RayError, StopIteration) as error:
            del self._running[generator]
            self._lost(trial, error)
            return
        if isinstance(said, tuple):
            trial.node, trial.host, missing = said
            if missing is not None:
                raise MissingDependency(f"node {trial.host}: {missing}. Install the same packtrain on all machines")
            return
        del self._running[generator]
        *reports, end = said
        yield from reports
        if isinstance(end, TaskResult):
            yield end
        elif end.retry:
            self._try_again(trial, ShardFailed(f"{end.error} ({trial.place.strip()})"))
        else:
            raise end.error

    def _lost(self, trial: _Trial, error: BaseException) -> None:
        """Decides about a task of which Ray says that it came to no end."""
        errors = self._ray.exceptions
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, errors.RayTaskError | errors.RuntimeEnvSetupError):
            raise ShardFailed(f"{trial.task} cannot run{trial.place}: {error}", shard=str(trial.task)) from error
        if isinstance(error, errors.NodeDiedError | errors.ObjectLostError):
            self._lost_node(trial, why)
        else:
            hint = ". Use fewer workers (--workers)" if isinstance(error, errors.OutOfMemoryError) else ""
            self._try_again(trial, ShardFailed(f"its worker{trial.place} died: {why}{hint}"))

    def _lost_node(self, trial: _Trial, why: str) -> None:
        trial.lost += 1
        if trial.lost >= _LOST_NODES:
            raise ShardFailed(
                f"{trial.task} lost its node {trial.lost} times, the last time{trial.place}: {why}",
                shard=str(trial.task),
            )
        self._again.append(trial)

    def _try_again(self, trial: _Trial, error: ShardFailed) -> None:
        trial.attempts += 1
        if trial.attempts >= ATTEMPTS:
            raise failure(trial.task, error)
        self._again.append(trial)

    def cancel(self) -> None:
        """Ends all tasks that wait or run, and waits for their end."""
        with suppress(self._ray.exceptions.RayError):
            for generator in self._running:
                self._ray.cancel(generator, force=True)
            ends = [generator.completed() for generator in self._running]
            if ends:
                self._ray.wait(ends, num_returns=len(ends), timeout=_END_SECONDS)
        self._running.clear()
