"""`packtrain verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from packtrain._core.cores import available_cores
from packtrain._core.options import FORMATS

from .output import print_json, progress, say
from .paths import PATH, PATH_OR_URL

_SHARDS: Final = tuple(each.suffix for each in FORMATS.values())


def _remedy(shards: str, *, linked: bool, remote: bool, changed: bool) -> str:
    if changed:
        return f"To mend {shards}, restore it from a sound copy, or leave the rows out: `packtrain drop-rows`"
    if remote:
        return f"To mend {shards}, upload it again from a sound copy, or remove it and run the same pack command again"
    copy = "A staged copy: `packtrain staged repair`"
    if linked:
        # Nobody but their owner has them, and an index of damaged bytes would say that they are right.
        return (
            f"To mend {shards}, restore it from a sound copy; do not remove it, packtrain cannot make it again. If it "
            f"was changed on purpose, index the shards again into another folder. {copy}"
        )
    return f"To mend {shards}, remove it and run the same pack command again, which packs only what is missing. {copy}"


@click.command("verify", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@click.option("--decode", is_flag=True, help="Also decode every image, and read tar shards as webdataset does.")
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@click.option("--journal", type=PATH, help="File that lets the next run continue if this one is stopped.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path | str, decode: bool, workers: int | None, journal: Path | None, as_json: bool) -> int:
    """Check everything in DATASET against what was written, and name each damaged file and record. Changes nothing.

    DATASET is a folder, or its address in an object store. From a store, each worker fetches one shard at a time.

    The exit code is 1 if something is damaged.
    """
    from packtrain._packer.verifier import verify

    with progress("verify", quiet=as_json) as show:
        report = verify(
            dataset,
            decode_images=decode,
            num_workers=workers or available_cores(),
            journal=journal,
            on_progress=show,
        )
    if as_json:
        print_json(report)
    else:
        for problem in report.problems:
            say(f"{problem.file}: {problem.message}")
        checked = (
            f"{report.records:,} records in {report.shards} shard(s) checked{' and decoded' if report.decoded else ''}"
        )
        say(f"{dataset}: {checked}: {f'{len(report.problems)} problem(s)' if report.problems else 'no problems'}")
        for orphan in report.orphans:
            say(f"{orphan}: no version names it: it was left by a run that was stopped, or is being written")
        damaged = {problem.file for problem in report.problems if not problem.unreadable}
        if shards := sorted(file for file in damaged if file.endswith(_SHARDS)):
            say(
                _remedy(
                    f"{', '.join(shards[:3])}{', ...' if shards[3:] else ''}",
                    linked=report.linked,
                    remote=isinstance(dataset, str),
                    changed=report.changed,
                )
            )
    return 1 if report.problems else 0
