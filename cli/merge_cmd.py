"""`packtrain merge`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from .index_cmd import describe_index
from .output import print_json, say
from .pack_cmd import describe_report
from .paths import PATH_OR_URL


@click.command("merge", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("out", metavar="OUT", type=PATH_OR_URL)
@click.option(
    "--max-rejects",
    default="0.1%",
    metavar="N|P%",
    help="How many lines of the whole list may be refused; a percentage allows at least one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(out: Path | str, max_rejects: str, as_json: bool) -> None:
    """Make the dataset in OUT, a folder or an address, once `packtrain pack --part` has packed all parts.

    Also makes the dataset after `packtrain index --part`. Run it on any machine, any number of times.
    """
    from packtrain._packer.merge import merge
    from packtrain._packer.pack_run import PackReport

    start = time.monotonic()
    report = merge(out, max_rejects=max_rejects)
    if as_json:
        print_json(report)
        return
    seconds = time.monotonic() - start
    say(describe_report(report, seconds) if isinstance(report, PackReport) else describe_index(report, seconds))
