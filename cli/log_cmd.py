"""`packtrain log`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from .output import print_json, say
from .paths import PATH


@click.command("log", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path, as_json: bool) -> None:
    """Show the versions of DATASET, the newest one first: when each was made, its rows, and what changed."""
    from packtrain._core.errors import UsageError
    from packtrain._core.manifest import Manifest
    from packtrain._core.versions import has_versions, history

    if not has_versions(dataset):
        raise UsageError(f"{dataset} has no versions: it has {Manifest.load(dataset).records:,} rows, as it was packed")
    versions = list(history(dataset))
    if as_json:
        names = ("number", "created", "written_by", "records", "change")
        print_json([{**{name: getattr(each, name) for name in names}, "dropped": gone} for each, gone in versions])
        return
    for version, gone in reversed(versions):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(version.created)) if version.created else ""
        mark = " (dropped)" if gone else ""
        say(f"{version.number:>6}  {when:<16}  {version.records:>12,} rows  {version.change.text}{mark}")
