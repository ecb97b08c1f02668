"""`packtrain index`."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packtrain._core.cores import available_cores
from packtrain._core.options import PIXEL_MODES
from packtrain._core.sizes import size

from .output import print_json, progress, say
from .paths import PATH, PATH_OR_URL

if TYPE_CHECKING:
    from packtrain._packer.foreign.indexer import IndexReport


@click.command("index", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("shards", metavar="[SHARD]...", type=PATH_OR_URL, nargs=-1)
@click.argument("out", metavar="OUT", type=PATH_OR_URL)
@click.option(
    "--field",
    "fields",
    metavar="NAME=EXT[:KIND]",
    multiple=True,
    help="The field of the members with an extension, such as caption=txt or seg=seg.png:mask; may be repeated.",
)
@click.option(
    "--mask", "masks", metavar="NAME", multiple=True, help="A field whose PNGs are masks, not images; may be repeated."
)
@click.option(
    "--label",
    metavar="EXT[:KEY]|none",
    help="Where the label is, such as cls, or json:class_id for a value in a JSON object.  [default: cls, if any]",
)
@click.option("--mode", type=click.Choice(PIXEL_MODES), default="RGB", help="Pixel mode that readers deliver.")
@click.option(
    "--update",
    is_flag=True,
    help="Add new shards to the dataset OUT. Old ones are read, and compared, only if their time of change is new.",
)
@click.option(
    "--base", metavar="DIR", type=PATH_OR_URL, help="With --update: the folder that OUT's shards were moved to."
)
@click.option(
    "--unpack", metavar="DIR", type=PATH, help="Decompress compressed tars into DIR, and index those. Takes disk space."
)
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@click.option(
    "--max-rejects",
    default="0.1%",
    metavar="N|P%",
    help="How many samples may be refused; a percentage allows at least one.",
)
@click.option(
    "--part",
    metavar="I/N|auto|auto/N",
    help="Read only part I of N, or the task of a Slurm array; `packtrain merge` makes the dataset of all parts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    shards: tuple[Path | str, ...], out: Path | str, workers: int | None, as_json: bool, **options: Any
) -> None:
    """Make a dataset of WebDataset tar shards: read each once, leave it where it is, write manifest and index to OUT.

    SHARD is a file, a folder of *.tar files, a pattern such as 'train-{000000..000146}.tar', or @FILE, a list of these.
    All of these may be in an object store, as in 's3://bucket/train-{000000..000146}.tar'; then OUT may be there, too.
    """
    from packtrain._packer.foreign.indexer import index_shards

    start = time.monotonic()
    with progress("index", quiet=as_json, unit="bytes", note=lambda state: f"{state.samples:,} samples") as show:
        report = index_shards(shards, out, num_workers=workers or available_cores(), on_progress=show, **options)
    if as_json:
        print_json(report)
    else:
        say(describe_index(report, time.monotonic() - start))


def describe_index(report: IndexReport, seconds: float) -> str:
    """Describe what was indexed."""
    what = f"{report.records:,} samples in {report.shards} shard(s), {size(report.bytes)}"
    before = f" ({report.resumed} by earlier runs)" if report.resumed else ""
    if report.indexed:
        text = f"{report.dataset}: {what}; {report.indexed} shard(s) read{before} in {seconds:.1f} s"
    else:
        text = f"{report.dataset}: {'complete' if report.complete_before else 'no new shards'}: {what}"
    if report.part is not None and report.indexed:
        out = shlex.quote(str(report.dataset))
        left = f"{report.missing} shard(s) are still to be read" if report.missing else "all shards are read"
        return f"{text}\npart {report.part}; {left}; to make the dataset: packtrain merge {out}"
    text += f"\nlabels: {report.labels}"
    for field in report.fields:
        missing = f", {field.missing:,} sample(s) without it" if field.missing else ""
        text += f"\n{field.name}: {field.kind} ({', '.join(f'.{name}' for name in field.extensions)}){missing}"
        if field.kind == "image" and field.name != "image" and all(name.endswith("png") for name in field.extensions):
            text += f"; if these are maps of classes, index them with --mask {field.name}"
    if report.compared:
        text += f"\n{report.compared} shard(s) read again, as their times had changed: their bytes have not"
    if report.rejects:
        text += f"\n{report.rejects} sample(s) refused, see {report.dataset / 'rejects.jsonl'}"
    for dataset, version in report.pins:
        words = shlex.join(["packtrain", "unpin", str(dataset), str(version), "--by", os.path.realpath(report.dataset)])
        text += f"\nversion {version} of {dataset} has these shards and is kept for it, until `{words}`"
    if report.left_out:
        text += f"\n{report.left_out} file(s) left out: without an extension, hidden, or webdataset's own"
    return text
