"""The part of the Ray engine that runs on the nodes: one attempt at a task, and what it has to say.

Nothing here imports Ray.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

from packtrain._core.errors import ShardFailed

from .engine import Done, Raised, outcome


def messages(call: bytes, seconds: float) -> Iterator[list[Any]]:
    """Runs a task, and yields its reports as they are made. Last comes its `Done` or `Raised`.

    Args:
        call: The pickled function and task.
        seconds: Reports that follow each other faster than this come together.
    """
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # A generator cannot yield from inside a call, so the task has a thread of its own.
    threading.Thread(target=_carry_out, args=(call, said), daemon=True).start()
    spoken = -seconds
    while True:
        batch = [said.get()]
        until = spoken + seconds
        while not isinstance(batch[-1], Done | Raised):
            try:
                batch.append(said.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                break
        spoken = time.monotonic()
        yield batch
        if isinstance(batch[-1], Done | Raised):
            return


def _carry_out(call: bytes, said: queue.SimpleQueue[Any]) -> None:
    try:
        function, task = pickle.loads(call)
        end = outcome(function, task, said.put)
    except BaseException:
        end = Raised(ShardFailed(f"a task failed unexpectedly:\n{traceback.format_exc()}"), retry=False)
    said.put(end)
