"""`packtrain drop-rows`."""

from __future__ import annotations

from pathlib import Path

import click

from .output import print_json, say
from .paths import PATH


@click.command("drop-rows", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH)
@click.option("--rows", required=True, metavar="ROWS", help="Rows of the newest version, as in 5,10-20.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path, rows: str, as_json: bool) -> None:
    """Leave rows of DATASET out, in a new version.

    The records stay on disk, and earlier versions have them.
    """
    from packtrain._packer.changing import drop_rows

    report = drop_rows(dataset, row_ranges(rows))
    if as_json:
        print_json(report)
    else:
        say(f"{dataset}: version {report.version} has {report.records:,} rows, {report.dropped:,} fewer than before")


def row_ranges(text: str) -> list[int]:
    """The rows that a text such as ``5,10-20`` names, both ends included."""
    rows: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isascii() or not first.isdigit() or (dash and not (last.isascii() and last.isdigit())):
            raise click.UsageError(f"--rows: expected rows such as 5,10-20, found {part.strip()!r}")
        rows += range(int(first), int(last if dash else first) + 1)
    return rows
