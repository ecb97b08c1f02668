"""`packtrain add-field`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from packtrain._core.cores import available_cores

from .columns import added_field_options, columns_of
from .options import dry_run_option
from .output import progress, say_change
from .paths import PATH, PATH_OR_URL


@click.command("add-field", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("dataset", type=PATH_OR_URL)
@click.argument("source", metavar="LIST", type=PATH)
@added_field_options
@click.option("--key", default="path", metavar="COL", help="Column of the paths that say which sample a row is about.")
@click.option("--replace", is_flag=True, help="Take the place of fields of the same name.")
@click.option(
    "--root", type=PATH, help="Folder that relative paths of values start from; default: the folder of the list."
)
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    dataset: Path | str,
    source: Path,
    key: str,
    replace: bool,
    root: Path | None,
    workers: int | None,
    dry_run: bool,
    as_json: bool,
    **columns: Any,
) -> None:
    """Add fields to the samples of DATASET, from the columns of LIST, as a new version.

    packtrain add-field out captions.csv --text caption --key path

    LIST is a CSV, TSV, JSON lines or Parquet file. Its key column holds the paths of the samples, as they stood in the
    list that was packed. If it stops at any point, the same command continues from there; if DATASET is an address in
    an object store, it begins anew.
    """
    from packtrain._packer.add_field import add_field

    named = columns_of(image=None, label=None, mask_classes=(), mask_store=None, **columns)
    fields = () if named is None else named.fields
    with progress("add-field", quiet=as_json, unit="values") as show:
        report = add_field(
            dataset,
            source,
            fields,
            key=key,
            root=root,
            replace_existing=replace,
            num_workers=workers or available_cores(),
            dry_run=dry_run,
            on_progress=show,
        )
    names = ", ".join(each.name for each in fields)
    say_change(report, f"{dataset}: version {report.version} has {names} as well", as_json=as_json)
