"""Ends a child process when its parent ends, whatever either of them is doing, and even if it is stopped.

A lifeline is a pipe that nobody writes to. The parent holds one end, and the child asks the kernel for a SIGKILL when
that end is closed, which the kernel does when the parent ends. So it does not matter how the child was started, nor
from which thread. ``PR_SET_PDEATHSIG`` would mean something else: its signal comes when the *thread* that started the
child ends, and the parent of a process from a fork server is the server.
"""

from __future__ import annotations

import fcntl
import os
import signal
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection

_ends: weakref.WeakSet[Lifeline] = weakref.WeakSet()


class Lifeline:
    """The parent's end. The child is killed when it is closed or garbage-collected, or when the parent ends.

    Attributes:
        child: The child's end, to be sent to the child. Close it in the parent once the child has been started.
    """

    def __init__(self) -> None:
        self.child, self._parent = Pipe(duplex=False)
        _ends.add(self)

    def close(self) -> None:
        """Kills the child if it still lives."""
        self.child.close()
        self._parent.close()


def depend_on(end: Connection) -> None:
    """Makes this process end when the other end of a lifeline is closed. Keep `end` open."""
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
    # The parent may have ended before there was a signal for it.
    if end.poll():
        os.kill(os.getpid(), signal.SIGKILL)


def _leave_to_the_parent() -> None:
    # A forked process that held these ends, too, would keep the children alive after their parent.
    for line in list(_ends):
        line._parent.close()
    _ends.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)
