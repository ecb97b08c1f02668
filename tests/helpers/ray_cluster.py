"""A Ray cluster of several nodes on 127.0.0.1: real raylets, which can be killed.

What Ray leaves behind in a process does not survive a fork, so the process of the tests never loads it: the cluster has
a process of its own, and `a_driver` gives one to a test.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, ParamSpec

import pytest
from helpers.processes import children, read_proc

Parameters = ParamSpec("Parameters")

LOOPBACK: Final = "127.0.0.1"
_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "0",
    # A node counts as dead after three seconds without a sign of life; by default, after half a minute.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


def stay_on_loopback() -> None:
    """Keeps Ray in this process, and all that it starts, on 127.0.0.1, and from sending reports.

    Wherever Ray is given 127.0.0.1, it takes this machine's address in the network instead, at which nobody listens.
    """
    os.environ.update(_ENVIRONMENT)
    # Nodes and their workers import helpers by name.
    tests = str(Path(__file__).parents[1])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*(path for path in paths if path != tests), tests]))
    services: Any = import_module("ray._private.services")
    services.get_node_ip_address = lambda address=None: LOOPBACK


class RayCluster:
    """A cluster: a head without processors, which drivers connect to, and nodes, each named by its raylet's process.

    A node's workers are the children of its raylet.

    Attributes:
        address: Its address, for drivers on this machine.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address: str = self._ask("address")
        assert self.address.startswith(f"{LOOPBACK}:"), self.address

    def _ask(self, *question: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def add_node(self, cpus: int = 1) -> int:
        """Starts a node with so many processors, and returns it."""
        node: int = self._ask("add", cpus)
        return node

    def kill(self, node: int) -> None:
        """Kills a node's raylet, as if the machine had gone."""
        self._ask("kill", node)

    @property
    def nodes(self) -> list[int]:
        """All nodes but the head."""
        return list(self._ask("nodes"))

    def workers(self) -> list[int]:
        """Ids of the processes that carry out a task."""
        return [child for node in self.nodes for child in children(node) if title(child).startswith("ray::packtrain")]


def title(process: int) -> str:
    """The name of a process; empty if it has ended."""
    return read_proc(process, "cmdline").rstrip(b"\0").decode(errors="replace")


@contextmanager
def ray_cluster(*cpus: int) -> Iterator[RayCluster]:
    """Starts a cluster of a head and nodes with so many processors. Ends it and all its processes."""
    command = [sys.executable, "-m", "helpers.ray_nodes"]
    pipe, tests = subprocess.PIPE, Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=tests, stdin=pipe, stdout=pipe, text=True) as process:
        it = RayCluster(process)
        for count in cpus:
            it.add_node(count)
        yield it


def a_driver(test: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """The same test, in a forked process. It fails here with what it said there."""

    @functools.wraps(test)
    def forked(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        received, sent = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                stay_on_loopback()
                test(*arguments, **named)
                code = 0
            except BaseException:
                os.write(sent, traceback.format_exc().encode())
            finally:
                os._exit(code)
        os.close(sent)
        with open(received, errors="replace") as said:
            failure = said.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            pytest.fail(f"the process of the test ended with {code}\n{failure}", pytrace=False)

    return forked


def main() -> None:
    """Runs `packtrain` with these arguments, on 127.0.0.1."""
    stay_on_loopback()
    from packtrain._cli.main import main as packtrain

    packtrain()


def command(*arguments: str | os.PathLike[str]) -> list[str]:
    """The command line of `main`."""
    return [sys.executable, "-m", "helpers.ray_cluster", *(os.fspath(each) for each in arguments)]


if __name__ == "__main__":
    main()
