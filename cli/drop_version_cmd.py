"""`packtrain drop-version`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import dry_run_option
from .output import print_json, say, say_removal
from .paths import PATH_OR_URL


@click.command("drop-version", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@click.argument("versions", metavar="[N]...", type=click.IntRange(1), nargs=-1)
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path | str, versions: tuple[int, ...], dry_run: bool, as_json: bool) -> None:
    """Drop versions of DATASET, a folder or an address, for ever, and remove what no other version needs.

    A version that somebody has open is not dropped, and neither is the newest one. What runs left that were stopped is
    removed as well; without a number, only that. In an object store, which has no locks, files go a week later.
    """
    from packtrain._packer.removing import drop_version

    report = drop_version(dataset, versions, dry_run=dry_run)
    if as_json:
        print_json(report)
        return
    numbers = ", ".join(map(str, report.versions))
    say(f"{dataset}: {f'versions dropped: {numbers}' if numbers else 'no version dropped'}{' (dry run)' * dry_run}")
    say_removal(report)
