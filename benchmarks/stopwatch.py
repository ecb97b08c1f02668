"""Where time goes inside packtrain: functions that stand for a stage are replaced by ones that also keep time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Final
from unittest.mock import patch

REST: Final = "everything else"


class StageError(RuntimeError):
    """What was measured does not go through the stages that it should go through."""


class Stopwatch:
    """Own time of each stage, in seconds, without that of the stages it calls.

    Attributes:
        seconds: By stage.
        called: The names of functions that were called.
    """

    def __init__(self, stages: Sequence[str]) -> None:
        self.seconds = dict.fromkeys([*stages, REST], 0.0)
        self.called: set[str] = set()
        self._running = [REST]
        self._since = time.perf_counter()

    def switch(self, to: str | None) -> None:
        """Enters a stage, or with None leaves the one entered last."""
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now
        if to is None:
            self._running.pop()
        else:
            self._running.append(to)

    def timed(self, stage: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, of this name, its time counted for `stage`."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.switch(stage)
            self.called.add(name)
            try:
                return function(*arguments, **options)
            finally:
                self.switch(None)

        return call


@contextmanager
def watching(stages: Mapping[str, Sequence[str]], absent: Collection[str] = ()) -> Iterator[Stopwatch]:
    """Keeps the time of each stage while the context lasts.

    Args:
        stages: For each stage the functions that stand for it, as ``"_codec.cut:cut"``, in `packtrain`.
        absent: Those that take no part.

    Raises:
        StageError: Another one took no part, or one of these did: packtrain no longer does it with these functions.
    """
    watch = Stopwatch(list(stages))
    with ExitStack() as patches:
        for stage, functions in stages.items():
            for name in functions:
                _patch(patches, watch, stage, name)
        watch.switch(REST)
        watch.seconds = dict.fromkeys(watch.seconds, 0.0)
        yield watch
        watch.switch(None)
    for stage, functions in stages.items():
        if watch.called.isdisjoint(functions) != (stage in absent):
            what = "takes part" if stage in absent else "takes no part"
            raise StageError(f"{stage!r} {what} in what is measured: are {', '.join(functions)} still what does it?")


def _patch(patches: ExitStack, watch: Stopwatch, stage: str, name: str) -> None:
    module, _, path = name.partition(":")
    owner: Any = import_module(f"packtrain.{module}")
    *outer, attribute = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    patches.enter_context(patch.object(owner, attribute, watch.timed(stage, name, getattr(owner, attribute))))
