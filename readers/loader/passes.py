"""A pass through an epoch, as the consumer sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from typing_extensions import override

from packtrain._core.errors import UsageError

from .progress import Progress


class Token:
    """Stands for a pass, in the process that began it."""

    def __init__(self) -> None:
        self._process: Final = os.getpid()

    def require_own_process(self) -> None:
        """Requires that the pass was begun by this process.

        Raises:
            UsageError: It was not.
        """
        if self._process != os.getpid():
            raise UsageError("this pass was begun by the parent of this process: begin another one here")


class Pass(Iterator[Any]):
    """A pass. A batch counts as consumed at the very moment at which it is handed out.

    Args:
        progress: How far the loader is.
        batches: The batches, each with the number of positions consumed once it has been handed out.
    """

    def __init__(self, progress: Progress, batches: Iterator[tuple[Any, int]]) -> None:
        self._progress = progress
        self._batches = batches

    @override
    def __next__(self) -> Any:
        progress = self._progress
        try:
            value, consumed = next(self._batches)
        except BaseException as error:
            if getattr(self._batches, "gi_running", False):
                # It goes on in the other thread.
                raise UsageError(
                    "another thread is taking a batch from this pass: take batches in one thread and hand them on, for "
                    "example through a queue.Queue"
                ) from error
            # After an interrupt, the next batch would not be the one that follows the last one handed out.
            self._batches = iter(())
            raise
        # Python looks for signals when a function is called or a loop is repeated, so not from here to the consumer.
        if not progress.under_way:
            progress.began = progress.consumed
        progress.look, progress.again = not progress.under_way, False
        progress.consumed, progress.under_way = consumed, True
        return value
