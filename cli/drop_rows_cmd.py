"""`packtrain drop-rows`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import dry_run_option
from .output import say_change
from .paths import PATH_OR_URL
from .rows import row_numbers


@click.command("drop-rows", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@click.option("--rows", metavar="ROWS", help="Rows of the newest version, as in 5,10-20.")
@click.option("--where", metavar="CONDITION", help="Rows that a condition holds for, as in 'width < 32'.")
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path | str, rows: str | None, where: str | None, dry_run: bool, as_json: bool) -> None:
    """Leave rows of DATASET out, in a new version.

    The records stay on disk, and earlier versions have them.
    """
    from packtrain._packer.changing import drop_rows

    report = drop_rows(dataset, None if rows is None else row_numbers(rows), where=where, dry_run=dry_run)
    done = f"{dataset}: version {report.version} has {report.records:,} rows, {report.dropped:,} fewer than before"
    say_change(report, done, as_json=as_json)
