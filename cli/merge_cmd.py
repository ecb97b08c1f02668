"""`packtrain merge`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from packtrain._core.errors import UsageError

from .index_cmd import describe_index
from .options import dry_run_option
from .output import print_json, progress, say, say_change
from .pack_cmd import describe_report
from .paths import PATH_OR_URL


@click.command("merge", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("places", metavar="[DATASET DATASET...] OUT", type=PATH_OR_URL, nargs=-1, required=True)
@click.option(
    "--max-rejects",
    metavar="N|P%",
    help="Of parts: how many lines of the whole list may be refused; a percentage allows at least one.  "
    "[default: 0.1%]",
)
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(places: tuple[Path | str, ...], max_rejects: str | None, dry_run: bool, as_json: bool) -> None:
    """Make the dataset in OUT of its parts; or a new one in OUT that has the rows of several datasets.

    packtrain merge OUT: once `packtrain pack --part` or `packtrain index --part` has made all parts in OUT, a folder or
    an address. Run it on any machine, any number of times.

    packtrain merge A B OUT: the newest versions of A and B become version 1 of OUT. All is copied, so that OUT does not
    need A and B. Each of the three is a folder or an address. If it stops at any point, the same command continues from
    there.
    """
    if len(places) > 1:
        _merge_datasets(places, max_rejects, dry_run=dry_run, as_json=as_json)
        return
    if dry_run:
        raise UsageError("--dry-run is for datasets that are merged; `packtrain status` says what is missing of parts")
    from packtrain._packer.merge import merge
    from packtrain._packer.pack_run import PackReport

    start = time.monotonic()
    report = merge(places[0], max_rejects="0.1%" if max_rejects is None else max_rejects)
    if as_json:
        print_json(report)
        return
    seconds = time.monotonic() - start
    say(describe_report(report, seconds) if isinstance(report, PackReport) else describe_index(report, seconds))


def _merge_datasets(places: tuple[Path | str, ...], max_rejects: str | None, *, dry_run: bool, as_json: bool) -> None:
    from packtrain._packer.merge_datasets import merge_datasets

    *sources, out = places
    if max_rejects is not None:
        raise UsageError("--max-rejects is for the parts of one dataset: leave it out to merge several")
    with progress("merge", quiet=as_json, unit="bytes") as show:
        report = merge_datasets(sources, out, dry_run=dry_run, on_progress=show)
    done = f"{out}: version {report.version} has the {report.records:,} rows of {len(sources)} datasets"
    say_change(report, done, as_json=as_json)
