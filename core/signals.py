"""Names of signals, for messages about processes that were killed."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """Returns the name of a signal; its number where it has no name, as most real-time signals.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")
