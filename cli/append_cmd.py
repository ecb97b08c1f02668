"""`packtrain append`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from packtrain._core.cores import available_cores

from .columns import column_options, columns_of
from .options import dry_run_option, labels_option, max_rejects_option
from .output import progress, say_change, warn
from .pack_cmd import describe_report, rejects_note
from .paths import PATH, PATH_OR_URL


@click.command("append", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("dataset", type=PATH_OR_URL)
@click.argument("source", metavar="LIST", type=PATH_OR_URL)
@click.option(
    "--root", type=PATH_OR_URL, help="Folder that relative paths start from; default: the folder of the list."
)
@column_options
@labels_option
@click.option(
    "--classes", type=PATH, help="File of class names, if there are new ones: those that the dataset has come first."
)
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@max_rejects_option
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    dataset: Path | str,
    source: Path | str,
    root: Path | str | None,
    labels: str | None,
    classes: Path | None,
    workers: int | None,
    max_rejects: str,
    dry_run: bool,
    as_json: bool,
    **columns: Any,
) -> None:
    """Append the samples of LIST, a list, an image folder or a dataset, to DATASET, as a new version.

    They are stored as the dataset's first samples are, from columns of the same names unless told otherwise. Only what
    is appended is written; `open_dataset(DATASET, version=N)` still opens every earlier version.

    If it stops at any point, the same command continues from there; if DATASET is an address in an object store, it
    begins anew. A list that is in the dataset already is not appended again, unless `compact` or `purge` has written
    its segment again.
    """
    from packtrain._packer.changing import append

    start = time.monotonic()
    with progress("append", quiet=as_json, note=rejects_note) as show:
        report = append(
            dataset,
            source,
            columns=columns_of(**columns),
            label_names=None if labels is None else labels == "class",
            classes=classes,
            root=root,
            num_workers=workers or available_cores(),
            max_rejects=max_rejects,
            dry_run=dry_run,
            on_progress=show,
            on_warning=warn,
        )
    done = f"{dataset}: version {report.version} has "
    if report.packed is None:
        done += "these samples already: nothing was appended"
    else:
        packed = describe_report(report.packed, time.monotonic() - start)
        done = f"{packed}\n{done}{report.records:,} rows, {report.added:,} of them new"
    say_change(report, done, as_json=as_json)
