"""Waiting for what another process, another thread or the kernel will soon do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(look: Callable[[], Found | None], what: str, seconds: float = 60) -> Found:
    """Looks again and again until there is something to see.

    Args:
        look: Returns something true as soon as there is.
        what: What is waited for, for the message: "a worker has begun a shard".
        seconds: Time after which the test fails. What is waited for takes a moment, on a busy machine a few seconds.

    Returns:
        What `look` found.
    """
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain until {what}"
        time.sleep(0.005)
    return found
