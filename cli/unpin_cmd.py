"""`packtrain unpin`."""

from __future__ import annotations

from pathlib import Path

import click

from .output import print_json, say
from .paths import PATH_OR_URL


@click.command("unpin", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@click.argument("version", metavar="N", type=click.IntRange(1))
@click.option("--by", required=True, metavar="WHO", help="Who does not need it any more, as `packtrain log` shows it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path | str, version: int, by: str, as_json: bool) -> None:
    """Do not keep version N of DATASET for WHO any longer. Nothing is removed before `drop-version` is."""
    from packtrain._packer.pins import unpin

    unpin(dataset, version, by=by)
    if as_json:
        print_json({"dataset": dataset, "version": version, "by": by})
    else:
        say(f"{dataset}: version {version} is not kept for {by} any longer")
