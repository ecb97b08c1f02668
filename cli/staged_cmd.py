"""`packtrain staged`: what was staged, and what becomes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from packtrain._core.errors import UsageError
from packtrain._core.sizes import size

from .output import print_json
from .stage_cmd import PLACE, stage_progress

if TYPE_CHECKING:
    from packtrain._staging import Entry
    from packtrain._staging.room import Room

_HEADS: Final = ("id", "size", "shards", "state", "last used", "read by", "safe until")


@click.group("staged", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look after what `packtrain stage` has copied.

    ID is what `list` shows, any part of it that no other has, or the path that was printed.
    """


_to = click.option(
    "--to", type=click.Path(path_type=Path), metavar="DIR", help=f"Where copies lie.  [default: {PLACE}]"
)
_json = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
_id = click.argument("id")


@command.command("list")
@_to
@_json
def list_command(to: Path | None, as_json: bool) -> None:
    """Say what is staged, and for how much there is room."""
    from packtrain._staging import entries

    place = to or Path(PLACE)
    known = entries(place)
    free = _room(place, known)
    if as_json:
        rooms = None if free is None else {"bytes": max(0, free.bytes), "bound": free.bound}
        print_json({"to": place.absolute(), "entries": known, "room": rooms})
        return
    if known:
        click.echo("\n".join(_table(known, time.time())))
    total = f"{len(known)} staged in {place}, {size(sum(entry.bytes for entry in known))}"
    click.echo(total + (f"; room for {size(max(0, free.bytes))} more (limit: {free.bound})" if free else ""))


@command.command("evict")
@click.argument("ids", nargs=-1, metavar="ID...")
@click.option("--all", "everything", is_flag=True, help="All that may go.")
@click.option("--force", is_flag=True, help="Also what was promised for some time (stage --grace).")
@_to
@_json
def evict_command(ids: tuple[str, ...], everything: bool, force: bool, to: Path | None, as_json: bool) -> None:
    """Delete copies. What is being read, is pinned, or is the only copy, stays."""
    from packtrain._staging import evict

    if bool(ids) == everything:
        raise UsageError("name what to evict, or say --all")
    gone = evict(_place(to, ids), list(ids) if ids else None, force_promised=force)
    if as_json:
        print_json({"evicted": gone, "bytes": sum(entry.bytes for entry in gone)})
        return
    for entry in gone:
        click.echo(f"{entry.id}: evicted, {size(entry.bytes)}")
    if not gone:
        click.echo("nothing may go: `packtrain staged list` shows what is in use, pinned or promised")


@command.command("pin")
@_id
@_to
@_json
def pin_command(id: str, to: Path | None, as_json: bool) -> None:
    """Keep a copy from being evicted, until it is unpinned."""
    _pin(id, to, True, as_json)


@command.command("unpin")
@_id
@_to
@_json
def unpin_command(id: str, to: Path | None, as_json: bool) -> None:
    """Let a copy be evicted again."""
    _pin(id, to, False, as_json)


@command.command("repair")
@_id
@_to
@_json
def repair_command(id: str, to: Path | None, as_json: bool) -> None:
    """Check a copy, and copy what is damaged once more from where it came."""
    from packtrain._staging import entries, repair
    from packtrain._staging.inventory import choose

    entry = choose(entries(_place(to, [id])), id)
    with stage_progress(quiet=as_json) as show:
        report = repair(entry.path, on_progress=show)
    if as_json:
        print_json(report)
        return
    for name in report.files:
        click.echo(f"{entry.path / name}: repaired")
    outcome = f"{len(report.files)} file(s) repaired, {size(report.bytes)}" if report.files else "all is well"
    click.echo(f"{entry.id}: {outcome}")


def _pin(id: str, to: Path | None, pinned: bool, as_json: bool) -> None:
    from packtrain._staging import pin

    entry = pin(_place(to, [id]), id, pinned)
    if as_json:
        print_json(entry)
    else:
        click.echo(f"{entry.id}: {'pinned' if pinned else 'not pinned'}")


def _place(to: Path | None, ids: Sequence[str]) -> Path:
    """Where entries lie: a path says so itself."""
    places = {Path(os.path.abspath(id)).parent.parent for id in ids if "/" in id.rstrip("/")}
    if to is not None:
        places.add(Path(os.path.abspath(to)))
    if len(places) > 1:
        raise UsageError(f"these lie in several places ({', '.join(map(str, sorted(places)))}): name those of one")
    return next(iter(places), Path(PLACE))


def _room(place: Path, known: Sequence[Entry]) -> Room | None:
    from packtrain._staging.room import room

    promised = sum(entry.reserved for entry in known)
    try:
        return room(place, budget=None, used=0, promised=promised, reserve=None)
    except OSError:
        return None


def _table(known: Sequence[Entry], now: float) -> list[str]:
    rows = [_HEADS, *(_row(entry, now) for entry in known)]
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
        safe = f"for {_span(entry.promised_until - now)}"
    shards = f"{entry.local_shards}/{entry.shards}" if entry.shards else "-"
    return (
        entry.id,
        size(entry.bytes),
        shards,
        entry.state,
        f"{_span(now - entry.last_used)} ago" if entry.last_used else "-",
        readers,
        safe,
    )


def _span(seconds: float) -> str:
    """A time for people."""
    for unit, count in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= count:
            return f"{seconds / count:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
