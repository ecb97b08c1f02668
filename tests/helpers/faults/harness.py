"""Kill a real Python process, or make a call fail, at any of its changes to a directory.

``FaultServer`` is one Python process started under ``faultlib.c``. It imports the code under test, runs it once to warm
it up, and then forks a child per request, so that a crash costs milliseconds and hundreds of them are affordable.
`campaign.py` goes through all of a program's points.
"""

import ctypes
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, Self


class Action(IntEnum):
    """Faults at the chosen call. Numbers are those of ``faultlib.c``."""

    COUNT = 0  # nothing
    KILL = 1  # SIGKILL before the call is carried out
    TEAR = 2  # SIGKILL after half of a write; before a call that writes nothing
    FAIL = 3  # this call fails with the given errno, the next ones work
    FAIL_FROM = 4  # this and all later calls fail, except removals: a full disk
    SHORT = 5  # half of a write is carried out and reported, as the kernel may do at any time


@dataclass(frozen=True)
class Call:
    """One call that changes the watched directory; paths are relative to it if they lie in it."""

    name: str  # the libc function; pwrite64 is shown as pwrite, and so on
    bytes: int  # how many it would write; 0 for calls that write nothing
    path: str
    target: str  # of a rename or a link, else ""


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    returncode: int  # as in subprocess: the exit status, or minus the signal that killed it
    output: str  # stdout and stderr, with the traceback of an exception
    calls: tuple[Call, ...]  # up to and including the one that went wrong


class NoCompilerError(Exception):
    """There is no C compiler to build the library with."""


def build(folder: Path) -> Path:
    """Compile ``faultlib.c`` into ``folder`` and return the library's path."""
    if shutil.which("cc") is None:
        raise NoCompilerError("fault tests need a C compiler named cc (Debian: apt-get install gcc libc6-dev)")
    source, library = Path(__file__).with_name("faultlib.c"), folder / "faultlib.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def points(calls: Sequence[Call], *actions: Action) -> Iterator[tuple[Action, int]]:
    """Every (action, at) that is a case of its own: only a write of two bytes or more can be torn or cut short."""
    for at, call in enumerate(calls, start=1):
        for action in actions:
            if action not in (Action.TEAR, Action.SHORT) or call.bytes >= 2:
                yield action, at


def sample(calls: Sequence[Call], cases: Sequence[tuple[Action, int]], every: int = 16) -> list[tuple[Action, int]]:
    """A part of `cases` in which every kind of call occurs.

    A kind is the call's name, and the folder and suffix of the file; folders whose names are random are one. Of each
    kind it takes every sixteenth case; the first one taken differs from kind to kind, so that the sample also spreads
    over the run and over the actions.

    Args:
        calls: The calls of an undisturbed run.
        cases: What `points` gives for them.
        every: Takes one in so many cases of a kind, rounded up.
    """
    kinds: dict[tuple[str, str, str], list[tuple[Action, int]]] = {}
    for action, at in cases:
        path = PurePath(calls[at - 1].path)
        suffix = "".join(path.suffixes[:1])  # the rest is random in the name of a temporary file
        folder = re.sub("[0-9a-f]{16}", "*", str(path.parent))
        kinds.setdefault((calls[at - 1].name, folder, suffix), []).append((action, at))
    chosen = [kind[number % min(every, len(kind)) :: every] for number, kind in enumerate(kinds.values())]
    return sorted(itertools.chain(*chosen), key=lambda case: (case[1], case[0]))


class FaultServer:
    """A Python process under the library, which forks one child per run. A context manager.

    Args:
        library: what `build` returned.
        prepare: Python source to run once, before the first fork; it sees ``args`` as a variable.
        args: anything JSON can carry.
        timeout: seconds after which a run is killed by SIGALRM (whole seconds; 0: never).
    """

    def __init__(self, library: Path, prepare: str = "", args: dict[str, Any] | None = None, timeout: int = 60) -> None:
        self._timeout = timeout
        self._runs = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="faults-")
        # -P: this file's folder must not hide modules of the code under test.
        command = [sys.executable, "-P", __file__, str(library), prepare, json.dumps(args or {})]
        environment = {**os.environ, "LD_PRELOAD": str(library)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()  # the end of its input ends it
        self._scratch.cleanup()

    def run(
        self,
        code: str,
        args: dict[str, Any],
        directory: Path,
        action: Action = Action.COUNT,
        at: int = 0,
        error: int = 0,
    ) -> Outcome:
        """Run ``code`` in a fresh child; let the ``at``-th (from 1) change under ``directory`` go wrong.

        Args:
            code: Python source; it sees ``args`` as a variable.
            args: anything JSON can carry.
            directory: watched; need not exist, but its parent must. Changes elsewhere do not count.
            action: what to do at the ``at``-th call.
            at: the number of the call.
            error: the errno of ``FAIL`` and ``FAIL_FROM``.
        """
        return self.start(code, args, directory, action, at, error)()

    def start(
        self,
        code: str,
        args: dict[str, Any],
        directory: Path,
        action: Action = Action.COUNT,
        at: int = 0,
        error: int = 0,
    ) -> Callable[[], Outcome]:
        """Begin a run, see ``run``. What is returned waits for its end; call it before the next run is begun."""
        self._runs += 1
        log, output = (Path(self._scratch.name, f"{name}-{self._runs % 2}") for name in ("calls", "output"))
        request = {"code": code, "args": args, "directory": os.path.realpath(directory), "action": action, "at": at}
        request |= {"error": error, "log": str(log), "output": str(output), "timeout": self._timeout}
        assert self._process.stdin
        with suppress(BrokenPipeError):  # it has died, and so the next line is empty
            print(json.dumps(request), file=self._process.stdin, flush=True)

        def end() -> Outcome:
            assert self._process.stdout
            reply = self._process.stdout.readline()
            if not reply:
                raise RuntimeError(f"the fault server has died with exit status {self._process.wait()}; see its stderr")
            return Outcome(os.waitstatus_to_exitcode(int(reply)), output.read_text(errors="replace"), _read_calls(log))

        return end


def _read_calls(log: Path) -> tuple[Call, ...]:
    fields = (line.split("\t") for line in log.read_text().splitlines())
    return tuple(Call(name, int(size), path, target) for name, size, path, target in fields)


def _run_child(library: ctypes.CDLL, request: dict[str, Any]) -> int:
    """Run a request in the process just forked, and return its exit status."""
    os.setpgid(0, 0)  # so that the server can take down what the child leaves behind
    signal.alarm(request["timeout"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    output, log = os.open(request["output"], flags), os.open(request["log"], flags)
    os.dup2(output, 1)
    os.dup2(output, 2)
    program = compile(request["code"], "<code under fault>", "exec")
    directory = os.fsencode(request["directory"])
    if library.fault_arm(request["action"], ctypes.c_long(request["at"]), request["error"], directory, log) != 0:
        raise FileNotFoundError(f"cannot watch {request['directory']}: its parent folder does not exist")
    # Armed until the process ends: libraries such as HDF5 go on writing while objects are finalised.
    exec(program, {"args": request["args"]})
    return 0


def _serve(library: ctypes.CDLL) -> None:
    """Answer each JSON request on stdin by the wait status of the child that carried it out."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the children's stdin and stdout are not the protocol's
    os.dup2(2, 1)
    for line in requests:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = _run_child(library, json.loads(line))
            except SystemExit as end:
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # not reaped, so that its group's number stays its own
        os.killpg(child, signal.SIGKILL)
        print(os.waitpid(child, 0)[1], file=replies)


if __name__ == "__main__":
    exec(compile(sys.argv[2], "<preparation>", "exec"), {"args": json.loads(sys.argv[3])})
    _serve(ctypes.CDLL(sys.argv[1]))
