"""`packtrain stage`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from packtrain._core.errors import UsageError
from packtrain._core.sizes import parse_bytes

from .output import print_json, progress, warn

if TYPE_CHECKING:
    from packtrain._staging import Staged, StageProgress

PLACE: Final = "/dev/shm"
VARIABLE: Final = "PACKTRAIN_STAGED"
# What shells say of a command that is not there, or cannot be run.
_NOT_FOUND, _NOT_RUN = 127, 126
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_VERBS: Final = {"wait": "waiting", "copy": "staging", "check": "checking", "warm": "warming"}


class _WithCommand(click.Command):
    """What follows ``--`` is a command of its own."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        words = None
        if "--" in args:
            cut = args.index("--")
            args, words = args[:cut], args[cut + 1 :]
            if not words:
                raise click.UsageError("-- is followed by a command to run", context)
        rest = super().parse_args(context, args)
        context.params["words"] = words
        return rest

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(context), "[-- CMD ...]"]


@click.command(
    "stage", cls=_WithCommand, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), default=PLACE, metavar="DIR", help="Where copies lie.")
@click.option("--budget", metavar="SIZE", help="All copies there may take so much.  [default: what fits]")
@click.option("--reserve", metavar="SIZE", help="Leave so much free.  [default: a sixteenth, at most 2GiB]")
@click.option(
    "--grace",
    metavar="TIME",
    help="The printed path is safe from eviction for so long: 30m, 1h, 90.  [default: 1h; 0 with CMD]",
)
@click.option("--partial", is_flag=True, help="If it does not fit, copy the first shards and link the others.")
@click.option("--warm", is_flag=True, help="Read a copy on a disk into memory, too.")
@click.option("--threads", type=click.IntRange(1), help="Threads that copy.  [default: 8]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document in place of the path.")
def command(
    dataset: Path,
    to: Path,
    budget: str | None,
    reserve: str | None,
    grace: str | None,
    partial: bool,
    warm: bool,
    threads: int | None,
    as_json: bool,
    words: list[str] | None,
) -> None:
    """Copy DATASET to fast storage of this machine, if it is not there yet, and print where it is.

    Nothing but the path goes to standard output: DATA=$(packtrain stage DATASET). With a command CMD nothing is
    printed: it is run with the path in place of an argument {} or NAME={}, and in the variable PACKTRAIN_STAGED; the
    copy is safe from eviction until CMD and what it starts have ended. Exit codes are CMD's, or 127 if it is not found.
    """
    from packtrain._staging import StageOptions, stage

    if words and as_json:
        raise UsageError("--json and a command contradict each other: standard output is the command's")
    if words and "{}" not in words[0] and shutil.which(words[0]) is None:
        # Before anything is copied for it.
        _cannot_run(words[0], "not found, or not executable", _NOT_FOUND)
    options = StageOptions(
        to=to,
        budget=None if budget is None else parse_bytes(budget),
        reserve=None if reserve is None else parse_bytes(reserve),
        grace=parse_seconds(grace or ("0" if words else "1h")),
        partial=partial,
        warm=warm,
        **({} if threads is None else {"threads": threads}),
    )
    with stage_progress(quiet=as_json) as show:
        staged = stage(dataset, options, on_progress=show, on_warning=warn)
    if words:
        _run(words, staged)
    elif as_json:
        names = ("path", "id", "bytes", "copied", "local_shards", "shards")
        print_json({name: getattr(staged, name) for name in names})
    else:
        # As bytes: a path need not be text.
        click.echo(os.fsencode(staged.path))


@contextmanager
def stage_progress(*, quiet: bool) -> Iterator[Callable[[StageProgress], None]]:
    """Shows how far staging is, each phase with a bar of its own."""
    with ExitStack() as stack:
        shown = None
        bar = None

        def show(state: StageProgress) -> None:
            nonlocal shown, bar
            if bar is None or state.phase != shown:
                stack.close()
                bar = stack.enter_context(progress(_VERBS[state.phase], quiet=quiet, unit="bytes"))
                shown = state.phase
            bar(state.done, state.total, state.resumed, state.note)

        yield show


def parse_seconds(text: str) -> float:
    """Reads ``30m``, ``1.5h``, ``2d``, ``90s`` or ``90`` as a number of seconds.

    Raises:
        UsageError: It is none of these.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text, re.IGNORECASE)
    if not found:
        raise UsageError(f"time {text!r}: expected seconds, or a number with a unit, as 30m or 1h")
    return float(found[1]) * _UNITS[found[2].lower()]


def _run(words: list[str], staged: Staged) -> NoReturn:
    """Becomes the command, which inherits the lease."""
    path = os.fspath(staged.path)
    words = [re.sub(r"(?s)\A([\w.+/-]+=)?\{\}\Z", lambda found: (found[1] or "") + path, word) for word in words]
    os.set_inheritable(staged.lease.fileno(), True)
    os.environ[VARIABLE] = path
    # Python ignores it, and the command would, too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(words[0], words)
    except OSError as error:
        _cannot_run(words[0], error.strerror or str(error), _NOT_RUN)


def _cannot_run(word: str, why: str, code: int) -> NoReturn:
    click.secho(f"error: cannot run {word!r}: {why}", fg="red", err=True)
    sys.exit(code)
