"""`packtrain pack`, also installed as `pack`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from packtrain._core.cores import available_cores
from packtrain._core.errors import UsageError
from packtrain._core.options import FORMATS, ORIENTATIONS, PIXEL_MODES, STORE_MODES
from packtrain._core.sizes import parse_bytes, size

from .columns import column_options, columns_of
from .output import print_json, progress, run, say, warn
from .paths import PATH

if TYPE_CHECKING:
    from packtrain._packer.options import PackOptions
    from packtrain._packer.runner import PackReport

_REMARKS: Final = 8


@click.command("pack", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("source", metavar="LIST", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@click.option("--format", "format_", type=click.Choice(FORMATS), default="tar", help="Container of the shards.")
@click.option(
    "--root",
    type=PATH,
    help="Folder that relative paths start from; default: the folder of the list.",
)
@click.option(
    "--labels",
    default="int",
    metavar="int|int*K|float|float*K|class|none",
    help="What follows the path on each line; class: the name of a class.",
)
@column_options
@click.option("--classes", type=PATH, help="File of class names, one per line, in label order.")
@click.option("--allow-empty", is_flag=True, help="Also accept class folders without images.")
@click.option("--store", type=click.Choice(STORE_MODES), default="crop-ready", help="How pixels are stored.")
@click.option(
    "--resize", metavar="short=256|long=500|256x256", help="New size of the images; short and long never enlarge."
)
@click.option("--quality", type=click.IntRange(1, 100), default=90, help="Quality of the JPEGs with --store jpeg.")
@click.option("--mode", type=click.Choice(PIXEL_MODES), default="RGB", help="Pixel mode that readers deliver.")
@click.option(
    "--orientation", type=click.Choice(ORIENTATIONS), default="ignore", help="What to do with an EXIF orientation."
)
@click.option(
    "--shard-size",
    metavar="SIZE",
    help="Target size of a shard.  [default: 1/64 of the data, but at least 16MiB and at most 512MiB]",
)
@click.option("--seed", type=int, help="Seed that shuffles the order of the records.  [default: 0]")
@click.option("--keep-order", is_flag=True, help="Keep the order of the list.")
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@click.option(
    "--max-rejects",
    default="0.1%",
    metavar="N|P%",
    help="How many lines may be refused; a percentage allows at least one.",
)
@click.option("--retry-rejects", is_flag=True, help="Pack shards that have refused lines again.")
@click.option("--check", is_flag=True, help="Decode every image before it is stored, not only suspects.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    source: Path, out: Path, workers: int | None, max_rejects: str, retry_rejects: bool, as_json: bool, **choices: Any
) -> None:
    """Pack the images that LIST names (`path label` per line), or an image folder (class/name.jpg), into OUT.

    LIST may also be a CSV or TSV file with a header, JSON lines (.jsonl) or a Parquet file, whose columns are named:

    packtrain pack train.csv out --image path --label class --mask seg --text caption

    If it is stopped at any point, the same command continues where it stopped. Lines that cannot be packed are listed
    in OUT/rejects.jsonl.
    """
    from packtrain._codec.pillow import pillow_conflict
    from packtrain._packer.runner import PackProgress, pack

    warn(pillow_conflict())
    options = _options(**choices)
    start = time.monotonic()
    with progress("pack", quiet=as_json) as show:

        def on_progress(state: PackProgress) -> None:
            show(state.done, state.total, state.resumed, f"{state.rejects} rejects" if state.rejects else "")

        report = pack(
            source,
            out,
            options,
            workers=workers or available_cores(),
            max_rejects=max_rejects,
            retry_rejects=retry_rejects,
            on_progress=on_progress,
        )
    if as_json:
        print_json(report)
    else:
        say(describe_report(report, time.monotonic() - start))


def _options(
    *,
    format_: str,
    root: Path | None,
    labels: Any,
    classes: Path | None,
    allow_empty: bool,
    shard_size: str | None,
    seed: int | None,
    keep_order: bool,
    store: str,
    resize: str | None,
    quality: int,
    mode: str,
    orientation: str,
    check: bool,
    **columns: Any,
) -> PackOptions:
    from packtrain._core.options import StoreOptions
    from packtrain._packer.options import PackOptions

    if keep_order and seed is not None:
        raise UsageError("--seed and --keep-order contradict each other")
    return PackOptions(
        format=format_,
        store=StoreOptions(store, resize, quality, mode, orientation, check),
        labels=labels,
        columns=columns_of(**columns),
        classes=classes,
        allow_empty=allow_empty,
        root=root,
        shard_bytes=None if shard_size is None else parse_bytes(shard_size),
        seed=None if keep_order else seed or 0,
    )


def describe_report(report: PackReport, seconds: float) -> str:
    """What a run of `pack` or `convert` has done, for people."""
    what = f"{report.records:,} records in {report.packed + report.resumed} shard(s), {size(report.bytes)}"
    if report.complete_before:
        text = f"{report.dataset}: already complete: {what}"
    else:
        again = f", {report.resumed} shard(s) from before" if report.resumed else ""
        text = f"{report.dataset}: {what} in {seconds:.1f} s{again}"
    if report.rejects:
        text += f"\n{report.rejects} line(s) refused, see {report.dataset / 'rejects.jsonl'}"
    if report.duplicates:
        text += f"\n{report.duplicates} line(s) repeat an earlier one (they were packed too)"
    text += "".join(f"\n{count:,} record(s): {remark}" for remark, count in list(report.remarks.items())[:_REMARKS])
    if len(report.remarks) > _REMARKS:
        rest = sum(list(report.remarks.values())[_REMARKS:])
        text += f"\n{rest:,} record(s) with {len(report.remarks) - _REMARKS} other remarks: see --json"
    return text


def main() -> None:
    """Entry point of the command `pack`."""
    run(command)
