"""What all commands share: progress, JSON output, errors and exit codes.

Exit codes: 0 success; 1 failure, or damage found by `verify`; 2 wrong usage; 130 Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import click

from packtrain._core.errors import PacktrainError, UsageError
from packtrain._core.sizes import size

_LOG_SECONDS: Final = 10.0


class ShowProgress(Protocol):
    """Shows the progress of a run."""

    def __call__(self, done: int, total: int, resumed: int, note: str = "") -> None:
        """Shows that `done` of `total` images or bytes are done, `resumed` of them before this run."""


@contextmanager
def progress(verb: str, *, quiet: bool, unit: str = "images") -> Iterator[ShowProgress]:
    """Shows progress on standard error: as a bar on a terminal, elsewhere as a plain line every ten seconds.

    Args:
        verb: What is being done, such as ``"pack"``.
        quiet: True to show nothing.
        unit: What is counted: ``"images"`` or ``"bytes"``.
    """
    if quiet:
        yield lambda done, total, resumed, note="": None
    elif sys.stderr.isatty():
        with _bar(verb, unit) as show:
            yield show
    else:
        yield _Lines(verb, unit)


@contextmanager
def _bar(verb: str, unit: str) -> Iterator[ShowProgress]:
    from tqdm import tqdm

    name, thousand = ("B", 1024) if unit == "bytes" else (f" {unit}", 1000)
    with tqdm(desc=verb, unit=name, unit_scale=True, unit_divisor=thousand, dynamic_ncols=True) as bar:

        def show(done: int, total: int, resumed: int, note: str = "") -> None:
            bar.total, bar.initial = total, resumed
            # What was done before this run must not count towards its rate.
            bar.n = bar.last_print_n = max(bar.n, resumed)
            bar.set_postfix_str(note, refresh=False)
            bar.update(done - bar.n)

        yield show


class _Lines:
    def __init__(self, verb: str, unit: str) -> None:
        self._verb, self._unit = verb, unit
        self._start = self._last = time.monotonic()

    def __call__(self, done: int, total: int, resumed: int, note: str = "") -> None:
        now = time.monotonic()
        if now - self._last < _LOG_SECONDS:
            return
        self._last = now
        rate = (done - resumed) / (now - self._start)
        left = f", {(total - done) / rate:,.0f} s left" if rate else ""
        if not total:
            amount = ""
        elif self._unit == "bytes":
            amount = f"{size(done)} of {size(total)} ({size(rate)}/s{left})"
        else:
            amount = f"{done:,} of {total:,} ({rate:,.0f} {self._unit}/s{left})"
        click.echo(f"{self._verb}: {f'{amount} {note}'.strip()}", err=True)


def print_json(value: Any) -> None:
    """Prints a dataclass or a plain value as one JSON document."""
    click.echo(json.dumps(value, default=_plain, indent=2))


def warn(message: str | None) -> None:
    """Prints a warning on standard error; None prints nothing."""
    if message:
        click.secho(f"warning: {message}", fg="yellow", err=True)


def run(command: click.Command) -> NoReturn:
    """Runs a command and ends the process, with one line for an error and the exit codes above."""
    # Arguments after -- are for another program.
    as_json = "--json" in sys.argv[: sys.argv.index("--") if "--" in sys.argv else None]
    try:
        code = command.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped; run the same command to continue", err=True)
        sys.exit(130)
    except PacktrainError as error:
        if as_json:
            print_json({"error": type(error).__name__, "message": str(error)})
        click.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:
        # The reader of our output has gone, as with `| head`. There is nobody to print to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
