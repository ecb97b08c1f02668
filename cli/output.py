"""The output of all commands: progress, JSON, errors and exit codes.

Exit codes: 0 success; 1 failure, or damage found by `verify`; 2 wrong usage; 130 Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from packtrain._core.errors import PacktrainError, UsageError
from packtrain._core.installing import require_linux
from packtrain._core.printable import one_line, printable
from packtrain._core.sizes import size
from packtrain._storage.remote.urls import Url

from .words import as_typed, command_of

if TYPE_CHECKING:
    from packtrain._packer.changing import ChangeReport
    from packtrain._packer.removing import RemovalReport

_LOG_SECONDS: Final = 10.0
_CONTINUING: Final = ("pack", "merge", "index", "append", "add-field", "compact", "export", "stage", "fill")
"""Commands that keep what they have done when they are stopped; `verify` does so with ``--journal``."""
_ERASE: Final = "\r\x1b[K"


@contextmanager
def progress(
    verb: str, *, quiet: bool, unit: str = "images", note: Callable[[Any], str] = lambda state: ""
) -> Iterator[Callable[[Any], None]]:
    """Shows progress on standard error: as a bar on a terminal, elsewhere as a plain line every ten seconds.

    Args:
        verb: What is being done, such as ``"pack"``.
        quiet: True to show nothing.
        unit: What is counted: ``"images"`` or ``"bytes"``.
        note: Says what else a state is to show.

    Yields:
        A function for `on_progress` of the library: it shows a state, which has `done` and `total`, and `resumed` if
        some of it may have been done before this run.
    """
    if quiet:
        yield lambda state: None
        return
    with _bar(verb, unit) if sys.stderr.isatty() else nullcontext(_Lines(verb, unit)) as show:
        yield lambda state: show(state.done, state.total, getattr(state, "resumed", 0), note(state))


@contextmanager
def _bar(verb: str, unit: str) -> Iterator[Callable[[int, int, int, str], None]]:
    from tqdm import tqdm

    name, thousand = ("B", 1024) if unit == "bytes" else (f" {unit}", 1000)
    with ExitStack() as stack:
        bar = stack.enter_context(tqdm(desc=verb, bar_format="{desc}: ...", leave=False))
        before = 0

        def show(done: int, total: int, resumed: int, note: str) -> None:
            nonlocal bar, before
            if total != bar.total:
                # Another total is other work. The clock starts with it: neither reading a list nor starting workers
                # may count towards the rate.
                stack.close()
                before = done - resumed
                bar = stack.enter_context(
                    tqdm(
                        desc=verb,
                        total=total,
                        initial=done,
                        unit=name,
                        unit_scale=True,
                        unit_divisor=thousand,
                        dynamic_ncols=True,
                        # Workers report in bursts. Only the average since the start does not jump with them.
                        smoothing=0,
                        miniters=0,
                    )
                )
            bar.initial = min(done, before + resumed)
            bar.set_postfix_str(one_line(note), refresh=False)
            bar.update(done - bar.n)

        yield show


class _Lines:
    def __init__(self, verb: str, unit: str) -> None:
        self._verb, self._unit = verb, unit
        self._start = self._last = time.monotonic()
        self._total: int | None = None
        self._before = 0

    def __call__(self, done: int, total: int, resumed: int, note: str) -> None:
        now = time.monotonic()
        if total != self._total:
            self._total, self._start, self._before = total, now, done - resumed
        if now - self._last < _LOG_SECONDS:
            return
        self._last = now
        rate = max(0, done - resumed - self._before) / (now - self._start) if now > self._start else 0
        left = f", {(total - done) / rate:,.0f} s left" if rate and total else ""
        if not done and not total:
            amount = ""
        elif not total:
            # Of samples that come one by one, nobody knows how many there are.
            amount = f"{done:,} ({rate:,.0f} {self._unit}/s)"
        elif self._unit == "bytes":
            amount = f"{size(done)} of {size(total)} ({size(rate)}/s{left})"
        else:
            amount = f"{done:,} of {total:,} ({rate:,.0f} {self._unit}/s{left})"
        say(f"{self._verb}: {f'{amount} {one_line(note)}'.strip()}", err=True)


@contextmanager
def changing_line() -> Iterator[Callable[[str], None]]:
    """Shows a line that changes on standard error: in place on a terminal, elsewhere as it is every ten seconds."""
    terminal = sys.stderr.isatty()
    last = time.monotonic()

    def show(text: str) -> None:
        nonlocal last
        if terminal:
            # One that is broken in two could not be overwritten.
            shown = one_line(text)[: shutil.get_terminal_size().columns - 1]
            click.echo(_ERASE + shown, err=True, nl=False)
        elif time.monotonic() - last >= _LOG_SECONDS:
            last = time.monotonic()
            say(text, err=True)

    try:
        yield show
    finally:
        if terminal:
            click.echo(_ERASE, err=True, nl=False)


def say(text: str, *, err: bool = False, colour: str | None = None, end: str = "\n") -> None:
    """Prints `text`, as everything that people are to read is printed: without what could steer their terminal."""
    text = printable(text)
    click.echo((click.style(text, fg=colour) if colour else text) + end, err=err, nl=False)


def say_change(report: ChangeReport, done: str, *, as_json: bool) -> None:
    """Prints what a change has `done`, or would write."""
    if as_json:
        print_json(report)
        return
    # Only in a dry run, and not if there is nothing to do.
    if not report.written:
        say(done)
        return
    change = {"added": report.added, "dropped": report.dropped, "relabelled": report.relabelled}
    what = "".join(f", {count:,} {verb}" for verb, count in change.items() if count)
    what += "".join(f", {count:,} on {name}" for name, count in report.sides.items())
    say(f"dry run: version {report.version} of {report.dataset} would have {report.records:,} rows{what}")
    for path in report.written:
        say(f"  would write {path}")
    if report.bytes:
        say(f"  about {size(report.bytes)} of records")


def say_removal(report: RemovalReport) -> None:
    """Prints what was removed of a dataset, or would be."""
    for name in report.removed:
        say(f"  {'would remove' if report.dry_run else 'removed'} {name}")
    if report.removed:
        say(f"  {size(report.bytes)} in all")
    for name in report.waiting:
        say(f"  to be removed by `packtrain drop-version {report.dataset}` in a week: {name}")


def print_json(value: Any) -> None:
    """Prints a dataclass or a plain value as one JSON document, in ASCII."""
    click.echo(json.dumps(value, default=_plain, indent=2).replace("\x7f", "\\u007f"))


def warn(message: str | None) -> None:
    """Prints a warning on standard error; None prints nothing."""
    if message:
        if context := click.get_current_context(silent=True):
            message = as_typed(message, context.command, sys.argv[1:])
        say(f"warning: {message}", err=True, colour="yellow")


def fail(message: str, code: int) -> NoReturn:
    """Prints an error and ends the process."""
    say(f"error: {message}", err=True, colour="red")
    sys.exit(code)


def run(command: click.Command) -> NoReturn:
    """Runs a command and ends the process, with one line for an error and the exit codes above."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A locale may have no way to write what a dataset is called.
            stream.reconfigure(errors="backslashreplace")
    # Arguments after -- are for another program.
    as_json = "--json" in sys.argv[: sys.argv.index("--") if "--" in sys.argv else None]
    try:
        require_linux()
        code = command.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue().rstrip("\n"), err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        words = sys.argv[1:]
        journal = any(word.startswith("--journal") for word in words)
        continues = journal or command_of(command, words).name in _CONTINUING
        # click raises an error of its own in the place of one that says more.
        said = str(error.__cause__ or error)
        say(said or ("stopped; run the same command to continue" if continues else "stopped"), err=True)
        sys.exit(130)
    except PacktrainError as error:
        words = sys.argv[1:]
        _end(error, as_typed(str(error), command_of(command, words), words), as_json)
    except BrokenPipeError:
        # The reader of our output has gone, as with `| head`. There is nobody to print to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError as error:
        _end(error, "out of memory: stop other programs, or raise the limit of this process (`ulimit -v`)", as_json)
    except OSError as error:
        # Whatever was not foreseen: a path that is too long, a disk that fails, a file that somebody else removes.
        where = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        what = "a file" if _has_folder() else "the working folder has been removed (`cd` to another one)"
        _end(error, f"{', '.join(where) or what}: {error.strerror or error}", as_json)


def _has_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _end(error: Exception, message: str, as_json: bool) -> NoReturn:
    if as_json:
        # Standard output may be what failed.
        with suppress(OSError):
            print_json({"error": type(error).__name__, "message": message})
    fail(message, 2 if isinstance(error, UsageError) else 1)


def _plain(value: Any) -> Any:
    if isinstance(value, Url):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Not asdict, which would take apart an address, too.
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
