"""Ctrl-C at a moment when it would do harm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def postponed_ctrl_c() -> Iterator[None]:
    """Holds Ctrl-C back until the block ends. Processes started inside the block never receive it.

    The terminal sends Ctrl-C to the whole process group, including workers that are still importing. Only the parent is
    to act on it.
    """
    received: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    # A thread that does not block the signal may still receive it; Python then raises KeyboardInterrupt in this one.
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)

    try:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            if handler is not None:
                signal.signal(signal.SIGINT, lambda number, _: received.append(number))
            yield
        finally:
            restore()
    finally:
        # Again: the handler of another signal, such as one that exits on SIGTERM, may have raised before that was done.
        restore()
        if received:
            signal.raise_signal(signal.SIGINT)
