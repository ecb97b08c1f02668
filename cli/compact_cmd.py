"""`packtrain compact`."""

from __future__ import annotations

from pathlib import Path

import click

from packtrain._core.cores import available_cores

from .options import dry_run_option
from .output import progress, say_change
from .paths import PATH_OR_URL


@click.command("compact", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("dataset", type=PATH_OR_URL)
@click.option("--segments-under", default="1GiB", metavar="SIZE", help="Join the segments that are smaller.")
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path | str, segments_under: str, workers: int | None, dry_run: bool, as_json: bool) -> None:
    """Join small segments of DATASET that follow each other, as a new version with the same rows in the same order.

    DATASET is a folder or an address. Records are copied byte for byte. Earlier versions keep their segments:
    `packtrain drop-version` removes them. If it stops at any point, the same command continues from there, or at an
    address begins anew.
    """
    from packtrain._packer.joining import compact

    with progress("compact", quiet=as_json) as show:
        report = compact(
            dataset,
            segments_under=segments_under,
            num_workers=workers or available_cores(),
            dry_run=dry_run,
            on_progress=show,
        )
    done = (
        f"{dataset}: version {report.version} has the same {report.records:,} rows, {report.joined} segments joined"
        if report.joined
        else f"{dataset}: there is nothing to join: no two segments under {segments_under} follow each other"
    )
    say_change(report, done, as_json=as_json)
