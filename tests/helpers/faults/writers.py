"""Processes that change datasets at the same time, each on request.

with Writers(2) as writers:
    answers = writers.ask(("append", out, "more.txt", 0.0), ("compact", out, None, 0.1))
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from packtrain import FieldColumn, add_field, append, compact, drop_rows, drop_version, merge_datasets, purge
from packtrain.errors import PacktrainError


def _add(place: str, listing: str) -> object:
    name = Path(listing).stem
    return add_field(place, listing, [FieldColumn(name, "text", name, by_path=False, optional=True)])


CHANGES: dict[str, Callable[..., Any]] = {
    "append": lambda place, given: append(place, given),
    "add-field": _add,
    "drop-rows": lambda place, given: drop_rows(place, where=given),
    "compact": lambda place, given: compact(place),
    "purge": lambda place, given: purge(place, where=given or None),
    "drop-version": lambda place, given: drop_version(place, given),
    "merge": lambda place, given: merge_datasets([place, given], f"{place}-merged"),
}
"""Changes of a dataset; the second argument says with what. `purge` without finishes one that was begun."""


@dataclass(frozen=True)
class Answer:
    """The result of a change.

    Attributes:
        error: Name of the error that it ended in, with ``!`` before it if it is none of packtrain's; empty if it did
            what it was asked.
        said: Its message.
        seconds: How long it took.
    """

    error: str = ""
    said: str = ""
    seconds: float = 0.0


class Writers:
    """So many processes. A context manager.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        command = [sys.executable, "-P", "-c", code]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]

    def ask(self, *jobs: tuple[str, str, object, float]) -> list[Answer]:
        """Has one process do each of these at the same time.

        Args:
            jobs: For each of them a change, the place of a dataset, with what to change it, and seconds to wait before.
        """
        pairs = list(zip(self._processes, jobs, strict=False))
        for process, job in pairs:
            assert process.stdin is not None
            print(json.dumps(job), file=process.stdin, flush=True)
        return [Answer(**json.loads(_line(process))) for process, _ in pairs]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def serve() -> None:
    """Answers requests until there are none."""
    for line in sys.stdin:
        change, place, given, wait = json.loads(line)
        time.sleep(wait)
        begun, answer = time.monotonic(), {}
        try:
            CHANGES[change](place, given)
        except PacktrainError as error:
            answer = {"error": type(error).__name__, "said": str(error)}
        except BaseException as error:
            answer = {"error": f"!{type(error).__name__}", "said": repr(error)}
        print(json.dumps({**answer, "seconds": time.monotonic() - begun}), flush=True)
