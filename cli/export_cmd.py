"""`packtrain export`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packtrain._core.cores import available_cores
from packtrain._core.errors import UsageError

from .options import where_option
from .output import print_json, progress, say
from .paths import PATH, PATH_OR_URL
from .rows import row_numbers

if TYPE_CHECKING:
    from packtrain._readers.dataset.image_dataset import ImageDataset


@click.command("export", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@click.argument("out", type=PATH_OR_URL)
@click.option("--to", type=click.Choice(["folder", "webdataset", "parquet"]), required=True, help="What OUT becomes.")
@click.option("--rows", metavar="5,10-20", help="Export only these rows, in this order.  [default: all]")
@where_option("Export only the rows")
@click.option(
    "--shard-size",
    metavar="SIZE",
    help="Size of the records in a tar or Parquet file.  [default: 1/64 of the data, but at least 16MiB and at most "
    "512MiB]",
)
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@click.option("--stage", metavar="DIR", type=PATH, help="Folder for the copy of a DATASET in an object store.")
@click.option("--budget", metavar="SIZE", help="Maximum size of this copy.  [default: that of the dataset]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    dataset: Path | str,
    out: Path | str,
    rows: str | None,
    where: str | None,
    workers: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write DATASET, packed or indexed, to files in the folder OUT that other programs read, with all its fields.

    With --to folder, images are class/name.jpg, as torchvision's ImageFolder reads them, other fields stand beside as
    name.FIELD.txt, and list.jsonl lists all of them. With --to webdataset, OUT has tar shards. With --to parquet, it
    has Parquet files with the types of Hugging Face's datasets.

    Images come out byte for byte as they are stored. With store mode crop-ready, that is the crop-ready JPEG, which has
    the pixels of its source; of coefficients it is such a JPEG, and of raw pixels a PNG.

    If the export stops at any point, the same command continues from there. At the end it prints what to type to make a
    dataset of OUT.
    """
    from packtrain._packer.export.exporter import export

    if where is not None and rows is not None:
        raise UsageError("--where and --rows cannot be combined: a filter may name rows, as in row in (5, 10)")
    start = time.monotonic()
    with progress("export", quiet=as_json) as show:
        try:
            report = export(
                dataset if where is None else _chosen(dataset, where, options),
                out,
                rows=None if rows is None else row_numbers(rows),
                num_workers=workers or available_cores(),
                on_progress=show,
                **options,
            )
        except IndexError as error:
            raise UsageError(f"--rows {rows}: {error}") from error
    if as_json:
        print_json(report)
        return
    what = f"{report.out}: {report.rows:,} rows in {report.parts:,} part(s)"
    again = f", {report.resumed} part(s) from before" if report.resumed else ""
    done = "already complete" if report.complete_before else f"{time.monotonic() - start:.1f} s{again}"
    say(f"{what}: {done}\nto read them: {report.again}")


def _chosen(dataset: Path | str, where: str, options: dict[str, Any]) -> ImageDataset:
    """The rows of a dataset that a filter takes. Staging is then done with: it is taken from the options."""
    from packtrain._readers.dataset.image_dataset import open_dataset

    opened = open_dataset(dataset, stage=options.pop("stage"), budget=options.pop("budget"))
    if not len(found := opened.where(where)):
        raise UsageError(f"--where {where!r} takes none of the {len(opened):,} rows")
    return found
