"""`packtrain pin`."""

from __future__ import annotations

from pathlib import Path

import click

from .output import print_json, say
from .paths import PATH_OR_URL


@click.command("pin", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@click.argument("version", metavar="N", type=click.IntRange(1))
@click.option("--by", required=True, metavar="WHO", help="Who needs it: a path, an address, or any other name.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path | str, version: int, by: str, as_json: bool) -> None:
    """Keep version N of DATASET for WHO, so that `drop-version` and `purge` do not remove it.

    `packtrain log` shows who needs which version, and `packtrain unpin` takes it back.
    """
    from packtrain._packer.pins import pin

    path = pin(dataset, version, by=by)
    if as_json:
        print_json({"dataset": dataset, "version": version, "by": by, "pin": path})
    else:
        say(f"{dataset}: version {version} is kept for {by}")
