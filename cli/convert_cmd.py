"""`packtrain convert`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packtrain._core.cores import available_cores
from packtrain._core.errors import UsageError
from packtrain._core.manifest import MANIFEST, Manifest
from packtrain._core.options import FORMATS, ORIENTATIONS, PIXEL_MODES, STORE_MODES, StoreOptions
from packtrain._core.sizes import parse_bytes

from .output import print_json, progress, say, warn
from .pack_cmd import describe_report
from .paths import PATH

if TYPE_CHECKING:
    from packtrain._packer.convert import ConvertOptions


@click.command("convert", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("source", metavar="SRC", type=PATH)
@click.argument("out", metavar="DST", type=PATH)
@click.option("--format", "format_", type=click.Choice(FORMATS), help="Container of the shards.  [default: as in SRC]")
@click.option("--store", type=click.Choice(STORE_MODES), help="How pixels are stored.  [default: as in SRC]")
@click.option(
    "--resize", metavar="short=256|long=500|256x256", help="New size of the images; short and long never enlarge."
)
@click.option("--quality", type=click.IntRange(1, 100), help="Quality of the JPEGs with --store jpeg.  [default: 90]")
@click.option("--mode", type=click.Choice(PIXEL_MODES), help="Pixel mode that readers deliver.  [default: as in SRC]")
@click.option("--orientation", type=click.Choice(ORIENTATIONS), help="What to do with an EXIF orientation.")
@click.option("--check", is_flag=True, help="Decode every image before it is stored, not only suspects.")
@click.option(
    "--shard-size",
    metavar="SIZE",
    help="Target size of a shard.  [default: 1/64 of the data, but at least 16MiB and at most 512MiB]",
)
@click.option("--seed", type=int, help="Seed that shuffles the order of the records.  [default: 0]")
@click.option("--keep-order", is_flag=True, help="Keep the order of the rows.")
@click.option(
    "--field", "fields", metavar="NAME=EXT[:KIND]", multiple=True, help="Of tars: as for `index`; may be repeated."
)
@click.option("--mask", "masks", metavar="NAME", multiple=True, help="Of tars: as for `index`; may be repeated.")
@click.option("--label", metavar="EXT[:KEY]|none", help="Of tars: as for `index`.")
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@click.option(
    "--max-rejects",
    default="0.1%",
    metavar="N|P%",
    help="How many rows may be refused, beside those of SRC; a percentage allows at least one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    source: Path,
    out: Path,
    fields: tuple[str, ...],
    masks: tuple[str, ...],
    label: str | None,
    workers: int | None,
    max_rejects: str,
    as_json: bool,
    **choices: Any,
) -> None:
    """Turn the dataset SRC, packed or indexed, into the dataset DST, with the same rows and fields.

    SRC may also be WebDataset tars, compressed or not: a file, a folder, a pattern such as
    'train-{000000..000146}.tar.gz', or @FILE, a list of these.

    What is to be stored as it is, is copied; only other images, and masks that are resized with them, are decoded. If
    it is stopped at any point, the same command continues where it stopped.
    """
    from packtrain._codec.pillow import pillow_conflict
    from packtrain._packer.convert import convert
    from packtrain._packer.run import PackProgress

    warn(pillow_conflict())
    options = _options(source, **choices)
    start = time.monotonic()
    with progress("convert", quiet=as_json) as show:

        def on_progress(state: PackProgress) -> None:
            show(state.done, state.total, state.resumed, f"{state.rejects} rejects" if state.rejects else "")

        report = convert(
            source,
            out,
            options,
            fields=fields,
            masks=masks,
            label=label,
            workers=workers or available_cores(),
            max_rejects=max_rejects,
            on_progress=on_progress,
        )
    if as_json:
        print_json(report)
    else:
        say(describe_report(report, time.monotonic() - start))


def _options(
    source: Path,
    *,
    format_: str | None,
    store: str | None,
    shard_size: str | None,
    seed: int | None,
    keep_order: bool,
    check: bool,
    **pixels: Any,
) -> ConvertOptions:
    from packtrain._packer.convert import ConvertOptions

    if keep_order and seed is not None:
        raise UsageError("--seed and --keep-order contradict each other")
    given = {name: value for name, value in pixels.items() if value is not None} | ({"check": True} if check else {})
    if store is None and given:
        raise UsageError(f"--{next(iter(given))} says how pixels are stored: also say --store")
    return ConvertOptions(
        format=format_,
        store=None if store is None else StoreOptions(store, **({"mode": _mode(source)} | given)),
        shard_bytes=None if shard_size is None else parse_bytes("shard_size", shard_size),
        seed=None if keep_order else seed or 0,
    )


def _mode(source: Path) -> str:
    """The pixel mode of a dataset's first image field; RGB for what is no dataset yet."""
    if not (source / MANIFEST).exists():
        return StoreOptions.mode
    stores = (field.store for field in Manifest.load(source).fields)
    return next((store.mode for store in stores if store is not None), StoreOptions.mode)
