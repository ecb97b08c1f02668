"""`packtrain purge`."""

from __future__ import annotations

from pathlib import Path

import click

from packtrain._core.cores import available_cores

from .options import dry_run_option
from .output import progress, say, say_change, say_removal
from .paths import PATH_OR_URL
from .rows import row_numbers


@click.command("purge", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@click.option("--rows", metavar="ROWS", help="Rows of the newest version, as in 5,10-20.")
@click.option("--where", metavar="CONDITION", help="Rows that a condition holds for, as in 'width < 32'.")
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    dataset: Path | str, rows: str | None, where: str | None, workers: int | None, dry_run: bool, as_json: bool
) -> None:
    """Leave rows of DATASET, a folder or an address, out, and remove their bytes, with every version that has them.

    Without rows, this is about those that were dropped already, or that a purge was about which was stopped. If a
    version that would go is open in a process, or another dataset needs it, the message says so, and nothing changes.
    In an object store, `packtrain drop-version` removes the bytes, a week later.
    """
    from packtrain._packer.purging import purge

    with progress("purge", quiet=as_json) as show:
        report = purge(
            dataset,
            None if rows is None else row_numbers(rows),
            where=where,
            num_workers=workers or available_cores(),
            dry_run=dry_run,
            on_progress=show,
        )
    done = f"{dataset}: version {report.version} has {report.records:,} rows, {report.dropped:,} fewer than before"
    say_change(report, done, as_json=as_json)
    if report.removal is not None and not as_json:
        gone = ", ".join(map(str, report.removal.versions))
        say(f"  versions {'that would go' if report.dry_run else 'dropped'}: {gone}")
        say_removal(report.removal)
