"""Run code that parses a stranger's bytes in a process of its own, with limits.

liblmdb, libhdf5 and the libraries that decode images are written in C and trust what they read more than they should. A
crafted file can crash them, let them take all memory, or keep them busy for hours. Here that costs a process which
holds nothing.

The process is forked: it starts in milliseconds and has whatever the caller has opened. It gives its results as lines
of JSON, which the caller checks, and has no other way to the caller.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import signal
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from packtrain._core.errors import ShardFailed
from packtrain._core.problems import reason
from packtrain._core.processes import how_ended, signal_name
from packtrain._core.sizes import size
from packtrain._core.typed import parse

T = TypeVar("T")
Send = Callable[[dict[str, Any]], None]
_LONGEST_LINE: Final = 1 << 20
_LONGEST_REASON: Final = 1000
_OUT_OF_MEMORY: Final = 71
_RAISED: Final = 70


@dataclass(frozen=True)
class Limits:
    """The resources that the process may use.

    Attributes:
        memory: Bytes of memory, in addition to what the caller has.
        seconds: Processor time in seconds. A slow disk does not count.
    """

    memory: int
    seconds: int


class Died(Exception):
    """The process did not come to its end; the message says why."""


def run_sandboxed(work: Callable[[Send], None], message: type[T], limits: Limits) -> Generator[T, None, None]:
    """Runs `work` in a process of its own.

    Args:
        work: Gets a function that sends a message: a dict that JSON can hold.
        message: Type of the messages, a dataclass.
        limits: The resources that the process may use.

    Yields:
        The messages, as they arrive.

    Raises:
        ShardFailed: The process cannot be started.
        Died: The process was killed, used up its memory or time, raised an error, or sent something else.
    """
    try:
        reading, writing = os.pipe()
        child = _fork(reading, writing)
    except OSError as error:
        raise ShardFailed(f"cannot start a process: {reason(error)}") from error
    if child == 0:
        os.close(reading)
        _work(work, writing, limits)
    os.close(writing)
    status = None
    try:
        with os.fdopen(reading, "rb") as lines:
            while line := lines.readline(_LONGEST_LINE):
                yield _received(message, line)
        _, status = os.waitpid(child, 0)
    finally:
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise Died(_cause(code, limits))


def _fork(*pipe: int) -> int:
    try:
        return os.fork()
    except OSError:
        for descriptor in pipe:
            os.close(descriptor)
        raise


def _received(message: type[T], line: bytes) -> T:
    try:
        sent = json.loads(line)
        if isinstance(sent, str):
            raise Died(f"raised {sent}")
        return parse(message, sent)
    except (ValueError, RecursionError) as error:
        raise Died("sent something that is no message") from error


def _cause(code: int, limits: Limits) -> str:
    if code in (_OUT_OF_MEMORY, -signal.SIGKILL):
        return f"needed more than {size(limits.memory)} of memory" if code > 0 else "was killed; out of memory?"
    if code == -signal.SIGXCPU:
        return f"needed more than {limits.seconds:,} s of processor time"
    if code == -signal.SIGBUS:
        return "crashed with SIGBUS: the disk failed, the file became shorter meanwhile, or it is made to do harm"
    return f"crashed with {signal_name(-code)}" if code < 0 else how_ended(code)


def _work(work: Callable[[Send], None], descriptor: int, limits: Limits) -> NoReturn:
    code = _RAISED
    try:
        _confine(limits)
        work(lambda message: _send(descriptor, message))
        code = 0
    except MemoryError:
        code = _OUT_OF_MEMORY
    except Exception as error:
        _send(descriptor, f"{type(error).__name__}: {error}"[:_LONGEST_REASON])
    finally:
        # Nothing that the caller has prepared for its own end is for this process.
        os._exit(code)


def _send(descriptor: int, message: dict[str, Any] | str) -> None:
    rest = json.dumps(message).encode() + b"\n"
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _confine(limits: Limits) -> None:
    # The terminal sends Ctrl-C to both processes; the caller ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.disable()
    gc.freeze()
    _limit(resource.RLIMIT_CORE, 0, 0)
    _limit(resource.RLIMIT_CPU, limits.seconds, limits.seconds + 5)
    used = _data_bytes()
    if used is not None:
        _limit(resource.RLIMIT_DATA, used + limits.memory, used + limits.memory)


def _limit(kind: int, soft: int, hard: int) -> None:
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def _data_bytes() -> int | None:
    """Memory of this process that counts for RLIMIT_DATA; None where /proc is not mounted."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:")), None)
