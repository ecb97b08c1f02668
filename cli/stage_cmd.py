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
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from packtrain._core.arguments import unexpected
from packtrain._core.errors import UsageError
from packtrain._core.sizes import parse_bytes

from .output import fail, print_json, progress, warn
from .paths import PATH, PATH_OR_URL

if TYPE_CHECKING:
    from packtrain._storage.staging.options import StageProgress
    from packtrain._storage.staging.stager import Staged

PLACE: Final = "/dev/shm"
VARIABLE: Final = "PACKTRAIN_STAGED"
# The exit codes of shells for a command that does not exist, or cannot be run.
_NOT_FOUND, _NOT_RUN = 127, 126
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_VERBS: Final = {"wait": "waiting", "copy": "staging", "check": "checking", "warm": "warming"}


class _WithCommand(click.Command):
    """A command line in which everything after ``--`` is another command."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        words = None
        if "--" in args:
            cut = args.index("--")
            args, words = args[:cut], args[cut + 1 :]
            if not words:
                raise click.UsageError("-- must be followed by a command to run", context)
        rest = super().parse_args(context, args)
        context.params["words"] = words
        return rest

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(context), "[-- CMD ...]"]


@click.command(
    "stage", cls=_WithCommand, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.argument("dataset", type=PATH_OR_URL)
@click.option("--to", type=PATH, default=PLACE, metavar="DIR", help="Folder for staged copies.")
@click.option("--budget", metavar="SIZE", help="Maximum size of all copies there.  [default: as much as fits]")
@click.option(
    "--reserve", metavar="SIZE", help="Space to leave free.  [default: 1/16 of the file system, at most 2GiB]"
)
@click.option(
    "--grace",
    metavar="TIME",
    help="Do not evict the copy for this long: 30m, 1h, 90 (seconds).  [default: 1h; 0 with CMD]",
)
@click.option(
    "--partial",
    is_flag=True,
    help="If the dataset does not fit, copy the first shards and link the others; not from an object store.",
)
@click.option("--warm", is_flag=True, help="Also read a copy on a disk into memory.")
@click.option(
    "--threads", type=click.IntRange(1), help="Number of threads that copy.  [default: 8; 16 from an object store]"
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document instead of the path.")
def command(dataset: Path | str, grace: str | None, as_json: bool, words: list[str] | None, **choices: Any) -> None:
    """Copy DATASET to fast storage of this machine, unless it is already there, and print the path of the copy.

    DATASET is a folder, or its address in an object store, such as s3://bucket/imagenet.

    Only the path goes to standard output: DATA=$(packtrain stage DATASET).

    With a command CMD, nothing is printed and CMD is run instead. The path replaces {} in an argument {} or NAME={},
    and is in the variable PACKTRAIN_STAGED. The copy is safe from eviction until CMD and all processes it starts have
    ended. The exit code is that of CMD; 127 if CMD is not found, 126 if it cannot be run.
    """
    from packtrain._storage.staging.options import StageOptions
    from packtrain._storage.staging.stager import stage

    if words and as_json:
        raise UsageError("--json cannot be combined with a command: standard output belongs to the command")
    if words and "{}" not in words[0] and shutil.which(words[0]) is None:
        # Checked before anything is copied for it.
        if shutil.which(words[0], os.F_OK) is not None or ("/" in words[0] and os.path.exists(words[0])):
            _cannot_run(words[0], "not executable", _NOT_RUN)
        _cannot_run(words[0], "not found", _NOT_FOUND)
    for name in ("budget", "reserve"):
        choices[name] = None if choices[name] is None else parse_bytes(name, choices[name])
    options = StageOptions(grace=parse_seconds(grace or ("0" if words else "1h")), **choices)
    with stage_progress(quiet=as_json) as report:
        staged = stage(dataset, options, on_progress=report, on_warning=warn)
    if words:
        _run(words, staged)
    elif as_json:
        names = ("path", "id", "bytes", "copied", "local_shards", "shards")
        print_json({name: getattr(staged, name) for name in names})
    else:
        # As bytes, because a path need not be valid text.
        click.echo(os.fsencode(staged.path))


@contextmanager
def stage_progress(*, quiet: bool) -> Iterator[Callable[[StageProgress], None]]:
    """Shows the progress of staging, with a separate bar for each phase."""
    with ExitStack() as stack:
        phase = None
        bar = None

        def report(state: StageProgress) -> None:
            nonlocal phase, bar
            if bar is None or state.phase != phase:
                stack.close()
                bar = stack.enter_context(
                    progress(_VERBS[state.phase], quiet=quiet, unit="bytes", note=lambda state: state.note)
                )
                phase = state.phase
            bar(state)

        yield report


def parse_seconds(text: str) -> float:
    """Parses a duration such as ``30m``, ``1.5h``, ``2d``, ``90s`` or ``90`` into seconds.

    Raises:
        UsageError: `text` is not a duration.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text, re.IGNORECASE)
    if not found:
        raise unexpected("grace", text, "seconds, or a number with a unit such as 30m or 1h")
    return float(found[1]) * _UNITS[found[2].lower()]


def _run(words: list[str], staged: Staged) -> NoReturn:
    """Replaces this process with the command, which inherits the lease."""
    path = os.fspath(staged.path)
    words = [re.sub(r"(?s)\A([\w.+/-]+=)?\{\}\Z", lambda found: (found[1] or "") + path, word) for word in words]
    for lease in staged.leases:
        os.set_inheritable(lease.fileno(), True)
    os.environ[VARIABLE] = path
    # Python ignores SIGPIPE, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(words[0], words)
    except OSError as error:
        _cannot_run(words[0], error.strerror or str(error), _NOT_RUN)


def _cannot_run(word: str, why: str, code: int) -> NoReturn:
    fail(f"cannot run {word!r}: {why}", code)
