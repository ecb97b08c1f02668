"""`packtrain report`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packtrain._core.cores import available_cores
from packtrain._core.errors import UsageError
from packtrain._core.files import file_errors

from .options import where_option
from .output import print_json, progress, say
from .paths import PAGE, PATH

if TYPE_CHECKING:
    from packtrain._extras.report.figures import DatasetReport, ReportProgress


@click.command("report", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH)
@click.option("--against", type=PATH, metavar="OTHER", help="Another dataset: name the images that are in both.")
@where_option("Look only at the rows")
@click.option("--out", type=PAGE, metavar="FILE.html", help="Write the page there.")
@click.option(
    "--stats", type=PATH, metavar="FILE.json", help="Chart these figures of a loader: see `to_dict` of its stats."
)
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def command(
    dataset: Path,
    against: Path | None,
    where: str | None,
    out: Path | None,
    stats: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Look at every image of DATASET, and write a page: sizes, colours, duplicates, and images that look wrong.

    The page is one file, which needs no network.
    """
    from packtrain._extras.report.dataset_report import dataset_report
    from packtrain._extras.report.page import chart_stats, page_of

    if out is None and not as_json:
        raise UsageError("there is nowhere to put the report: add --out report.html, or --json")
    charts = [] if stats is None else [chart_stats(stats)]
    with progress("report", quiet=as_json, note=_comparing) as show:
        report = dataset_report(
            dataset, against=against, where=where, num_workers=workers or available_cores(), on_progress=show
        )
    if out is not None:
        with file_errors(out, UsageError):
            out.write_text(page_of(report, charts), encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        say(_summary(report))
        say(f"page: {out}")


def _comparing(state: ReportProgress) -> str:
    return f"comparing view {state.view} of {state.views}" if state.view else ""


def _summary(report: DatasetReport) -> str:
    suspects = Counter(suspect.kind for suspect in report.suspects)
    facts = [
        f"{report.dataset}: {report.summary.rows:,} images",
        f"{sum(len(group.places) - 1 for group in report.exact):,} copies with the same bytes",
        f"{len(report.near):,} groups that look alike",
        *(f"{count:,} {kind}" for kind, count in suspects.items()),
    ]
    if report.against is not None:
        facts.insert(3, f"{len(report.leaks):,} groups also in {report.against}")
    if sides := report.summary.sides:
        facts.insert(1, ", ".join(f"{name} {side.rows:,}" for name, side in sides.items()))
        facts.insert(2, f"{len(report.side_leaks):,} groups on several sides")
    return "\n  ".join(facts)
