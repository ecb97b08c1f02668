"""`packtrain status`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from packtrain._core.errors import NotADataset
from packtrain._core.generations import STATUS
from packtrain._core.manifest import CACHE, holds
from packtrain._core.printable import one_line
from packtrain._core.sizes import duration

from .output import print_json, say
from .paths import PATH_OR_URL

if TYPE_CHECKING:
    from packtrain._packer.status import PackStatus

_SHARDS: Final = 8


@click.command("status", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("out", metavar="OUT", type=PATH_OR_URL)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(out: Path | str, as_json: bool) -> int:
    """Show the progress of OUT: a dataset that is being packed or indexed, a finished one, or a growing cache.

    OUT is a folder, or the address of a dataset in an object store. The command changes nothing: run it at any time.

    The exit code is 1 if OUT is a growing cache whose filler has failed, or was killed.
    """
    if isinstance(out, Path) and (holds(out, CACHE) or holds(out, STATUS)):
        return _show_cache(out, as_json=as_json)

    from packtrain._packer.status import pack_status

    status = pack_status(out)
    if as_json:
        print_json(status)
    else:
        say("\n".join(describe_status(status)))
    return 0


def _show_cache(folder: Path, *, as_json: bool) -> int:
    from packtrain._growing.status import read_status

    status = read_status(folder)
    if status.state == "none":
        raise NotADataset(
            f"{folder} is a growing cache, but its status is missing or damaged: the next filler writes it anew"
        )
    if as_json:
        print_json(status)
    else:
        say(str(status))
    return 1 if status.state in ("failed", "killed") else 0


def describe_status(status: PackStatus) -> Iterator[str]:
    """Describe, line by line, how far a dataset is."""
    out = shlex.quote(str(status.dataset))
    if status.complete and status.missing:
        yield f"{status.dataset}: was complete, but {len(status.missing):,} of {status.shards:,} shards are missing"
        yield f"first: {status.missing[0]}; to pack them again, run the same pack command without --part"
        return
    if status.complete:
        yield f"{status.dataset}: complete: all {status.shards:,} shards are done"
        return
    percent = f" ({100 * status.lines_done / status.lines:.0f} % of the lines)" if status.lines else ""
    yield f"{status.dataset}: {status.done:,} of {status.shards:,} shards are done{percent}"
    for name, shards in (("under way", status.under_way), ("failed", status.failed), ("missing", status.missing)):
        if shards:
            yield f"{name}: {len(shards):,}"
        yield from (f"  {one_line(str(shard))}" for shard in shards[:_SHARDS])
        if len(shards) > _SHARDS:
            yield f"  and {len(shards) - _SHARDS:,} more: see --json"
    if status.rejects:
        yield f"lines refused so far: {status.rejects:,}"
    if status.seconds_left:
        yield f"time left: about {duration(status.seconds_left)}, if as many shards are packed at the same time as now"
    if status.done == status.shards:
        yield f"to finish it: packtrain merge {out}"
    if status.array:
        yield f"to do what is failed or missing: {_again(status.array, status.part)}"
    if status.array_under_way:
        yield f"if what is under way has died: {_again(status.array_under_way, status.part)}"


def _again(array: str, part: str) -> str:
    return f"run the same command again; in Slurm, --array={array} with --part {part}"
