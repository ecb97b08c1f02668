"""`packtrain show`."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios
from pathlib import Path
from typing import Any, Final

import click

from packtrain._core.errors import UsageError

from .options import look_options
from .output import say
from .paths import PATH
from .rows import rows_of

_MOST: Final = 4096
"""Pictures in a sheet."""
_FORMATS: Final = (".png", ".jpg", ".jpeg")
_UNKNOWN_WIDTH: Final = 1000


@click.command("show", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("dataset", type=PATH)
@click.option("-n", "count", type=click.IntRange(1, _MOST), default=64, help="Number of rows, evenly spaced.")
@click.option("--rows", metavar="ROWS", help="These rows instead: 5,10-20.")
@look_options
@click.option("--epoch", type=click.IntRange(0), default=0, help="Epoch of the transform's random numbers.")
@click.option("--side", type=click.IntRange(16, 1024), default=160, help="Size of a picture in pixels.")
@click.option("--out", type=PATH, metavar="FILE.png", help="Write the sheet to a file.  [default: the terminal]")
def command(
    dataset: Path,
    count: int,
    rows: str | None,
    where: str | None,
    side: int,
    epoch: int,
    out: Path | None,
    **options: Any,
) -> None:
    """Show rows of DATASET in one image: labels, texts, masks and boxes.

    With --transform, each picture is what a Loader with this seed gives for the row, without shuffling.
    """
    from packtrain._extras.looking.looker import Looker, LookOptions
    from packtrain._extras.looking.sheet import evenly, sheet
    from packtrain._extras.looking.terminal import protocol_of, shown

    protocol = protocol_of(os.environ) if sys.stdout.isatty() else None
    if out is not None and out.suffix.lower() not in _FORMATS:
        raise UsageError(f"--out {out}: expected a file name that ends in .png or .jpg")
    if where is not None and rows is not None:
        raise UsageError("--where and --rows cannot be combined: a filter may name rows, as in row in (5, 10)")
    if out is None and protocol is None:
        reason = "this terminal is not known to show images" if sys.stdout.isatty() else "this is no terminal"
        raise UsageError(f"{reason}: write the sheet to a file, --out sheet.png")
    # For --transform module:attribute: like `python -m`, find modules in the current folder.
    sys.path.insert(0, "")
    looker = Looker(dataset, LookOptions(**options))
    total = len(looker.rows)
    taken = range(total) if where is None else looker.rows.where(where)
    chosen = evenly(taken, count) if rows is None else rows_of(rows, total, _MOST)
    pictures = (
        (row, looker.seen(row, side, epoch) if looker.transforms else looker.stored(row, side)) for row in chosen
    )
    if not chosen:
        raise UsageError(f"--where {where!r} takes none of the {total:,} rows")
    columns = None if out is not None else max(1, (_terminal_width() - 8) // (side + 8))
    made = sheet(pictures, side, columns)
    if looker.note is not None:
        say(looker.note, err=True)
    if out is not None:
        made.save(out, compress_level=1)
        say(f"{out}: {len(chosen):,} of {total:,} rows")
    elif protocol is not None:
        click.echo(shown(made, protocol), nl=False)


def _terminal_width() -> int:
    """Width of the terminal in pixels, as far as it tells."""
    try:
        _, _, width, _ = struct.unpack("HHHH", fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8)))
    except (OSError, ValueError):
        width = 0
    return width or _UNKNOWN_WIDTH
