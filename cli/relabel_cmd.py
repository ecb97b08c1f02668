"""`packtrain relabel`."""

from __future__ import annotations

from pathlib import Path

import click

from packtrain._core.errors import UsageError

from .options import dry_run_option, labels_option
from .output import say_change
from .paths import PATH, PATH_OR_URL


@click.command("relabel", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@click.argument("source", metavar="[LIST]", type=PATH, required=False)
@click.option("--key", metavar="COL", help="Column of the paths that say which sample a row is about.  [default: path]")
@click.option("--label", metavar="COL", help="Column of the labels.  [default: label]")
@labels_option
@click.option(
    "--classes", type=PATH, help="File of class names: those of the dataset, perhaps with other names, then new ones."
)
@click.option("--rename", metavar="OLD=NEW", multiple=True, help="Another name for a class. May be repeated.")
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    dataset: Path | str,
    source: Path | None,
    key: str | None,
    label: str | None,
    labels: str | None,
    classes: Path | None,
    rename: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Give rows of DATASET the labels that LIST has for them, or classes other names, as a new version.

    packtrain relabel out corrected.txt

    LIST has a path and a label on each line, or is a CSV, TSV, JSON lines or Parquet file. The paths are those of the
    list that was packed; rows that LIST does not name keep their labels.
    """
    from packtrain._packer.relabel import relabel

    report = relabel(
        dataset,
        source,
        key=key,
        label=label,
        label_names=None if labels is None else labels == "class",
        classes=classes,
        rename=dict(map(_renaming, rename)),
        dry_run=dry_run,
    )
    done = f"{dataset}: version {report.version} has these labels, {report.relabelled:,} of them other than before"
    say_change(report, done, as_json=as_json)


def _renaming(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not separator or not old or not new:
        raise UsageError(f"--rename {text}: expected OLD=NEW, such as cat=tiger")
    return old, new
