"""`packtrain fill`."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from packtrain._core.arguments import unexpected
from packtrain._core.errors import UsageError
from packtrain._core.options import FORMATS
from packtrain._core.printable import one_line
from packtrain._core.sizes import duration, size

from .output import changing_line, say
from .paths import PATH
from .words import named

if TYPE_CHECKING:
    from packtrain._growing.status import FillStatus

_SOURCE: Final = "MODULE:FUNCTION"


@click.command("fill", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("words", nargs=-1, metavar=f"[{_SOURCE}] CACHE")
@click.option("--budget", metavar="SIZE", help="Maximum size of CACHE: 500GiB. Required.")
@click.option("--rate", metavar="SIZE", help="The most to write per second: 600MB.  [default: no limit]")
@click.option("--shard-size", metavar="SIZE", help="Size of a shard.  [default: 1/4 of the headroom, up to 256MiB]")
@click.option("--headroom", type=float, default=0.2, help="Part of the budget that is kept free for new samples.")
@click.option("--format", type=click.Choice(list(FORMATS)), help="Format of a new cache.  [default: tar]")
@click.option("--samples-per-insert", type=float, metavar="N", help="Write one sample for every N that readers take.")
@click.option("--keep-unseen", is_flag=True, help="Evict no sample before a reader has seen it.")
@click.option("--records", type=PATH, metavar="DATASET", help="Fill with random records of a packed dataset.")
@click.option("--slices", metavar="FILE[:NAME]", help="Fill with random slices of an array: .npy, HDF5 or Zarr.")
@click.option("--shape", metavar="SIZES", help="Shape of a slice: 64,64.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the random choice.  [default: a new one each time]")
def command(
    words: tuple[str, ...],
    records: Path | None,
    slices: str | None,
    shape: str | None,
    seed: int | None,
    **options: Any,
) -> int:
    """Fill CACHE with the samples that MODULE:FUNCTION yields, while training reads the cache.

    FUNCTION takes no arguments and returns an iterator of samples: dicts of a field's name and its value, which is
    bytes, a text or a numpy array. `packtrain.GrowingCache(CACHE).dataset()` reads them. When the budget is used up,
    the oldest samples make room.

    SIGTERM and Ctrl-C stop the filling; the same command continues. In another shell, `packtrain status CACHE` shows
    the progress.
    """
    source, cache = _source(words, records, slices, shape, seed)
    if options["budget"] is None:
        raise UsageError("--budget is missing: say how much the cache may take, as in --budget 500GiB")

    from packtrain._growing.options import FillOptions
    from packtrain._growing.process import run

    filling = FillOptions(**options)
    with changing_line() as show:
        status = run(Path(cache), source, filling, lambda status: show(f"fill: {live_line(status)}"))
    say(f"fill: {live_line(status)}", err=True)
    return 0


def _source(
    words: Sequence[str], records: Path | None, slices: str | None, shape: str | None, seed: int | None
) -> tuple[Any, str]:
    """Return the source that the command line names, and the cache."""
    if records is not None and slices is not None:
        raise UsageError("--records and --slices cannot be combined: a cache has one source")
    if (shape is None) != (slices is None):
        raise UsageError("--slices FILE and --shape SIZES go together")
    if records is None and slices is None:
        name, cache = named(words, _SOURCE, "CACHE")
        return name, cache
    (cache,) = named(words, "CACHE")
    seed = secrets.randbits(32) if seed is None else seed

    from packtrain._growing.random_records import RandomRecords
    from packtrain._growing.random_slices import RandomSlices

    if records is not None:
        return RandomRecords(records, seed=seed), cache
    assert slices is not None and shape is not None
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", shape):
        raise unexpected("--shape", shape, "sizes such as 64,64")
    path, separator, name = (slices, "", "") if os.path.exists(slices) else slices.rpartition(":")
    sizes = tuple(map(int, shape.split(",")))
    return RandomSlices(path if separator else slices, sizes, name=name if separator else None, seed=seed), cache


def live_line(status: FillStatus) -> str:
    """Describe the status of a filler in one line."""
    from packtrain._growing.status import RUNNING, describe_writes

    figures = status.figures
    rate = status.bytes_per_second if status.state in RUNNING else status.mean_bytes_per_second
    age = "" if status.oldest_seconds is None else f", oldest {duration(status.oldest_seconds)}"
    parts = [
        f"{figures.samples:,} samples",
        f"{rate / 1e6:,.0f} MB/s in",
        f"{figures.evicted_shards:,} evicted{age}",
        f"{size(figures.used_bytes)} of {size(status.budget_bytes)}",
        describe_writes(status),
    ]
    doing = "" if status.state == "filling" else f"; {status.doing}"
    problem = f"; {figures.problem}" if figures.problem else ""
    return one_line(", ".join(parts) + doing + problem)
