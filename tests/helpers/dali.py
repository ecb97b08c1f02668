"""Tells whether DALI is there, and what forked processes do with it."""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import signal
import sys
from collections.abc import Callable

import pytest
from helpers.support import require_module


def require_dali() -> None:
    """Skips the test without DALI. With PACKTRAIN_REQUIRE_TOOLS=1 it fails, but only on machines that DALI runs on."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.importorskip("nvidia.dali")
    elif importlib.util.find_spec("nvidia") is None:
        require_module("nvidia")
    else:
        require_module("nvidia.dali")


def succeeds_in_child(work: Callable[[], bool]) -> bool:
    """True if `work`, called in a forked process, returns True soon, and the process ends as Python ends one."""
    assert "ray" not in sys.modules, "what Ray leaves behind in a process does not survive a fork: see ray_cluster.py"
    child = os.fork()
    if not child:
        # A process that waits for threads it does not have ends here.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            atexit._run_exitfuncs()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
