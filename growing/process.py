"""Runs a filler: in this process, or in a process of its own, which ends with the process that started it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Final

from packtrain._core.errors import FillError, OutputConflict, PacktrainError
from packtrain._core.errors_as_json import error_from_json, error_to_json
from packtrain._core.files import file_errors
from packtrain._core.generations import LOG
from packtrain._core.launching import Answer, Launched, NotBegun, launch
from packtrain._core.printable import printable
from packtrain._packer.user_code import described

from .cache_folder import lock_cache, make_own_folder
from .filler import fill
from .options import FillOptions
from .source_loading import PickledSource, load_source
from .source_reader import Source
from .status import FillFigures, FillStatus, StatusFile, read_status

_MOST_LOG: Final = 32 << 10
_NICE: Final = 5
_GRACE: Final = 5.0
"""Seconds for which a filler may finish what it is writing."""
_MAIN: Final = "packtrain._growing.process:main"


class _Stopped(BaseException):
    """SIGTERM came."""


def run(
    root: Path,
    source: Source | str,
    options: FillOptions,
    on_status: Callable[[FillStatus], None] = lambda _: None,
) -> FillStatus:
    """Fill a cache in this process, until its source ends or SIGTERM comes, and keep its ``status.json``.

    Args:
        root: The cache's folder; made if it is missing.
        source: Called without arguments, returns an iterator of samples; or its name, ``"MODULE:FUNCTION"``.
        options: How the cache is filled.
        on_status: Called about once a second, for the first time when the filling begins.

    Returns:
        The last status.

    Raises:
        OutputConflict: Another filler works there, others can change the folder, or it holds something else.
        UsageError: There is no such source.
        FillError: The folder cannot be made, or the source has never yielded a sample that can be stored.
    """
    with file_errors(root, FillError, verb="make"):
        make_own_folder(root)
        try:
            lock = lock_cache(root)
        except BlockingIOError as error:
            raise _another(root) from error
    with lock:
        return _Filling(root, options, on_status).fill(load_source(source) if isinstance(source, str) else source)


def _another(root: Path) -> OutputConflict:
    status = read_status(root)
    return OutputConflict(
        f"another filler works in {root} (process {status.process or 'unknown'}, {status.doing}). Read what it writes: "
        f"packtrain.GrowingCache({os.fspath(root)!r}).dataset(); or stop it: kill {status.process or 'PID'}"
    )


class _Filling:
    """One filling of a cache, with its status."""

    def __init__(self, root: Path, options: FillOptions, on_status: Callable[[FillStatus], None]) -> None:
        self._root = root
        self._options = options
        self._on_status = on_status
        self._file = StatusFile(root, options.budget_bytes)
        self._figures = FillFigures()
        self._begun = self._stopped = False

    def fill(self, source: Source) -> FillStatus:
        """Fill the cache; see `run`."""
        try:
            with self._stoppable():
                fill(self._root, source, self._options, self._progress)
        except _Stopped:
            return self._end("ended", "SIGTERM")
        except KeyboardInterrupt:
            self._end("ended", "Ctrl-C")
            raise
        except Exception as error:
            self._end("failed", described(error))
            raise
        return self._end("ended", "its source has ended")

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Let SIGTERM end the block, at the next look."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _stop(self, number: int, frame: object) -> None:
        self._stopped = True
        if not self._begun:
            raise _Stopped

    def _progress(self, figures: FillFigures) -> None:
        if self._stopped:
            raise _Stopped
        self._figures, self._begun = figures, True
        if (status := self._file.update(figures)) is not None:
            self._on_status(status)

    def _end(self, state: str, why: str) -> FillStatus:
        # Before it has begun, the folder may hold something else.
        if not self._begun:
            return FillStatus(self._root, state, why, figures=self._figures)
        return self._file.write(state, why, self._figures)


def start(root: Path, source: Source | str, options: FillOptions, *, outlive: bool) -> Launched | None:
    """Start a filler in a new interpreter, which inherits nothing, and wait until it has begun.

    Args:
        root: The cache's folder.
        source: As for `run`; a function is sent by its name.
        options: How the cache is filled.
        outlive: True to let the filler live on when this process ends. Its output goes to ``filler.log`` in the folder.

    Returns:
        The process; None if it outlives this one.

    Raises:
        OutputConflict: Another filler works there, others can change the folder, or it holds something else.
        UsageError: There is no such source.
        FillError: The folder cannot be made, or the filler cannot begin.
    """
    load = partial(load_source, source) if isinstance(source, str) else PickledSource.of(source).load
    job = bytes(ForkingPickler.dumps((root, load, options, outlive)))
    try:
        launched, answer = launch(_MAIN, job, detached=outlive, grace=_GRACE, users_code=True)
    except NotBegun as error:
        raise FillError(f"the filler of {root} did not begin: {error}") from None
    if answer:
        if launched is not None:
            launched.close()
        raise error_from_json(answer)
    return launched


def main(channel: int, job: bytes) -> None:
    """Run a filler's process, and answer over `channel` once it has begun or failed."""
    answer = Answer(channel)
    # The kernel derives the priority of reading and writing from it.
    os.nice(_NICE)
    try:
        root, load, options, outlive = ForkingPickler.loads(job)

        def begun(_: FillStatus) -> None:
            if outlive:
                _log_output(root / LOG)
            answer.give()

        run(root, load(), options, begun)
    except (Exception, SystemExit) as error:
        said = described(error)
        if not answer.give(**error_to_json(error if isinstance(error, PacktrainError) else FillError(said))):
            warnings.warn(printable(f"filling {root} has failed: {said}"), RuntimeWarning, stacklevel=1)
        sys.exit(1)


def _log_output(path: Path) -> None:
    """Let the output of this process go to a log, and remove the older part of a long one."""
    with path.open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
        if log.tell() > _MOST_LOG:
            kept = path.read_bytes()[-_MOST_LOG // 2 :]
            log.truncate(0)
            log.write(kept)
