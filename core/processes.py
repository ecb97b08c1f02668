"""Processes: how they ended, and names that hold on many machines, so that what one has left is known for its own."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_UNKNOWN = "0" * 12
_FORM = re.compile(r"([0-9a-f]{12})-([0-9]{1,10})-([0-9]{1,20})")


@dataclass(frozen=True)
class ProcessName:
    """A process of any machine, at any time.

    Attributes:
        machine: Stands for the machine since it was started, and for the container, if that counts processes anew; 12
            hexadecimal digits.
        process: Id of the process there.
        start: When it was started, in the kernel's own ticks; it tells a process from a later one with the same id.
    """

    machine: str
    process: int
    start: int

    @classmethod
    def mine(cls) -> Self:
        """This process."""
        process = os.getpid()
        machine = machine_name()
        return cls(machine or _UNKNOWN, process, _state(process)[1] if machine else 0)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The process that `str` wrote like this; None if it did not."""
        found = _FORM.fullmatch(text)
        return cls(found[1], int(found[2]), int(found[3])) if found else None

    def __str__(self) -> str:
        return f"{self.machine}-{self.process}-{self.start}"

    @property
    def ended(self) -> bool:
        """True if the process has ended for certain. Of processes of other machines, nothing is certain."""
        if self.machine != machine_name():
            return False
        try:
            os.kill(self.process, 0)
            state, start = _state(self.process)
        except ProcessLookupError:
            return True
        except OSError:
            # It is there, but belongs to somebody else, of whose processes the kernel may tell nothing.
            return False
        return start != self.start or state in "ZX"


def how_ended(code: int) -> str:
    """Describe, for messages, the end of a process with an exit code as `subprocess` has it.

    >>> how_ended(3), how_ended(-9), how_ended(-40)
    ('ended with exit code 3', 'was killed by SIGKILL', 'was killed by signal 40')
    """
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


def signal_name(number: int) -> str:
    """Returns the name of a signal; its number where it has no name, as most real-time signals.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


def boot_id() -> str:
    """Stands for this start of the machine; empty where there is no /proc that says which one it is."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


@functools.cache
def machine_name() -> str:
    """Stands for this machine, see `ProcessName`; empty where there is no /proc that says which one it is."""
    try:
        # Machines that were cloned may have the same boot id; hosts of one name, as localhost is, have different ones.
        known = [os.uname().nodename, os.readlink("/proc/self/ns/pid"), _BOOT.read_text().strip()]
    except OSError:
        return ""
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:12]


def _state(process: int) -> tuple[str, int]:
    """State of a process of this machine, in the kernel's letters, and its start time in the kernel's ticks."""
    stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    # The name, in parentheses, may hold blanks and parentheses itself.
    state, *rest = stat.rpartition(")")[2].split()
    return state, int(rest[18])
