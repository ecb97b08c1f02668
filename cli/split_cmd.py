"""`packtrain split`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import dry_run_option
from .output import say_change, warn
from .paths import PATH_OR_URL


@click.command("split", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@click.option("--val", metavar="SHARE", help="Share of the rows for val, as in 10%; the rest is train.")
@click.option("--test", metavar="SHARE", help="Share of the rows for test, as in 5%.")
@click.option("--folds", metavar="K", type=int, help="In place of shares, the number of folds: fold-0 and so on.")
@click.option("--seed", type=int, help="Another seed gives another split.  [default: 0]")
@click.option(
    "--by",
    metavar="KEY",
    multiple=True,
    help="What rows on the same side have in common: path, path:REGEX for a part of the path, or a field of texts, "
    "strings or whole numbers; several times for several keys.  [default: path]",
)
@click.option("--not-stratified", is_flag=True, help="Split all rows together, not each class by itself.")
@click.option("--replace", is_flag=True, help="Split all rows anew, whatever side they are on.")
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    dataset: Path | str,
    val: str | None,
    test: str | None,
    folds: int | None,
    seed: int | None,
    by: tuple[str, ...],
    not_stratified: bool,
    replace: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Split DATASET into train, val and test, or into folds, in a new version.

    packtrain split out --val 10%

    Rows that are on a side stay there. Without options, rows that were appended since are put on a side.
    """
    from packtrain._packer.split import split

    report = split(
        dataset,
        val=val,
        test=test,
        folds=folds,
        seed=seed,
        by=by or None,
        stratified=False if not_stratified else None,
        replace_existing=replace,
        dry_run=dry_run,
    )
    counts = ", ".join(f"{count:,} on {name}" for name, count in report.sides.items())
    say_change(report, f"{dataset}: version {report.version} has {counts}", as_json=as_json)
    if empty := [name for name, count in report.sides.items() if not count]:
        warn(
            f"no row is on {', '.join(empty)}: a class keeps a row in train, and rows with one key stay together. "
            "With --replace, give larger shares, or --not-stratified, which takes all rows as one class"
        )
