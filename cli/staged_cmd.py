"""`packtrain staged`: list, evict, pin and repair staged copies."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from packtrain._core.errors import UsageError
from packtrain._core.paths import is_address
from packtrain._core.printable import one_line
from packtrain._core.sizes import duration, size

from .output import print_json, say, warn
from .paths import PATH
from .stage_cmd import PLACE, stage_progress
from .words import Group

if TYPE_CHECKING:
    from packtrain._storage.staging.capacity import Capacity
    from packtrain._storage.staging.entries import Entry

_HEADS: Final = ("id", "size", "shards", "state", "last used", "read by", "safe until")


@click.group("staged", cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Manage the copies that `packtrain stage` has made.

    ID is the id shown by `list`, the first four or more characters of it or of the key in it, the path of the copy, or
    the address in an object store that it came from.
    """


_to = click.option("--to", type=PATH, metavar="DIR", help=f"Folder for staged copies.  [default: {PLACE}]")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_id = click.argument("id")


@command.command("list")
@_to
@_json
def list_command(to: Path | None, as_json: bool) -> None:
    """List the staged copies, and how much more can be staged."""
    from packtrain._storage.staging.entries import entries

    place = to or Path(PLACE)
    known = entries(place)
    _warn_of_strays(place)
    free = _room(place, known)
    if as_json:
        rooms = None if free is None else {"bytes": max(0, free.bytes), "bound": free.bound}
        print_json({"to": place.absolute(), "entries": known, "room": rooms})
        return
    if known:
        say("\n".join(_table(known, time.time())))
    total = f"{len(known)} staged in {place}, {size(sum(entry.bytes for entry in known))}"
    say(total + (f"; room for {size(max(0, free.bytes))} more (limit: {free.bound})" if free else ""))


@command.command("evict")
@click.argument("ids", nargs=-1, metavar="ID...")
@click.option("--all", "everything", is_flag=True, help="Evict all copies that may be evicted.")
@click.option(
    "--force",
    is_flag=True,
    help="Also evict copies within their grace period; with ID, also one that may be the only one.",
)
@_to
@_json
def evict_command(ids: tuple[str, ...], everything: bool, force: bool, to: Path | None, as_json: bool) -> None:
    """Delete copies. A copy that is being read, is pinned, or may be the only one left is kept.

    If files of the source have changed since they were copied, they are read and compared first.
    """
    from packtrain._storage.staging.eviction import evict

    if bool(ids) == everything:
        raise UsageError("name the copies to evict, or use --all")
    place = _place(to, ids)
    kept: list[dict[str, str]] = []
    with stage_progress(quiet=as_json) as on_progress:
        gone = evict(
            place,
            list(ids) if ids else None,
            force=force,
            on_progress=on_progress,
            on_kept=lambda entry, why: kept.append({"id": entry.id, "why": why}),
        )
    _warn_of_strays(place)
    if as_json:
        print_json({"evicted": gone, "bytes": sum(entry.bytes for entry in gone), "kept": kept})
        return
    for entry in gone:
        say(f"{entry.id}: evicted, {size(entry.bytes)}")
    for each in kept:
        say(f"kept: {each['why']}")
    if not gone and not kept:
        say(f"nothing is staged in {place}")


@command.command("pin")
@_id
@_to
@_json
def pin_command(id: str, to: Path | None, as_json: bool) -> None:
    """Pin a copy, so that it is never evicted until it is unpinned."""
    _pin(id, to, True, as_json)


@command.command("unpin")
@_id
@_to
@_json
def unpin_command(id: str, to: Path | None, as_json: bool) -> None:
    """Unpin a copy, so that it may be evicted again."""
    _pin(id, to, False, as_json)


@command.command("repair")
@_id
@_to
@_json
def repair_command(id: str, to: Path | None, as_json: bool) -> None:
    """Check a copy, and copy damaged files again from the source."""
    from packtrain._storage.staging.entries import entries, find_entry
    from packtrain._storage.staging.stager import repair

    place = _place(to, [id])
    entry = find_entry(entries(place), id)
    with stage_progress(quiet=as_json) as on_progress:
        report = repair(place, entry.id, on_progress=on_progress)
    if as_json:
        print_json(report)
        return
    for name in report.files:
        say(f"{entry.path / name}: repaired")
    outcome = f"{len(report.files)} file(s) repaired, {size(report.bytes)}" if report.files else "no damage found"
    say(f"{entry.id}: {outcome}")


def _pin(id: str, to: Path | None, pinned: bool, as_json: bool) -> None:
    from packtrain._storage.staging.entries import pin

    entry = pin(_place(to, [id]), id, pinned)
    if as_json:
        print_json(entry)
    else:
        say(f"{entry.id}: {'pinned' if pinned else 'not pinned'}")


def _warn_of_strays(place: Path) -> None:
    from packtrain._storage.staging.capacity import foreign
    from packtrain._storage.staging.entries import strays

    for warning in foreign(strays(place)):
        warn(warning)


def _place(to: Path | None, ids: Sequence[str]) -> Path:
    """The folder that the copies are staged to: `to`, or taken from the ids that are paths."""
    places = {Path(os.path.abspath(id)).parent.parent for id in ids if "/" in id.rstrip("/") and not is_address(id)}
    if to is not None:
        places.add(Path(os.path.abspath(to)))
    if len(places) > 1:
        raise UsageError(
            f"these copies are in several folders ({', '.join(map(str, sorted(places)))}): name copies of one folder"
        )
    return next(iter(places), Path(PLACE))


def _room(place: Path, known: Sequence[Entry]) -> Capacity | None:
    from packtrain._storage.staging.capacity import FileSystem, capacity

    promised = sum(entry.reserved for entry in known)
    try:
        return capacity(FileSystem.inspect(place), promised=promised)
    except OSError:
        return None


def _table(known: Sequence[Entry], now: float) -> list[str]:
    rows = [_HEADS, *(tuple(map(one_line, _row(entry, now))) for entry in known)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    numbers = ("size", "shards")
    return [
        "  ".join(
            cell.rjust(width) if head in numbers else cell.ljust(width)
            for head, cell, width in zip(_HEADS, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _row(entry: Entry, now: float) -> tuple[str, ...]:
    readers = ", ".join(map(str, entry.pids)) or ("a process" if entry.leased else "-")
    safe = "pinned" if entry.pinned else "-"
    if not entry.pinned and entry.promised_until > now:
        safe = f"for {duration(entry.promised_until - now)}"
    shards = f"{entry.local_shards}/{entry.shards}" if entry.shards and entry.state != "stream" else "-"
    return (
        entry.id,
        size(entry.bytes),
        shards,
        entry.state,
        f"{duration(max(0, now - entry.last_used))} ago" if entry.last_used else "-",
        readers,
        safe,
    )
