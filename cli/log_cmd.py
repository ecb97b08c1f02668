"""`packtrain log`."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import click

from packtrain._core.printable import one_line

from .output import print_json, say
from .paths import PATH_OR_URL


@click.command("log", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path | str, as_json: bool) -> None:
    """Show the versions of DATASET, a folder or an address, the newest one first: what changed, and who needs which."""
    from packtrain._core.errors import Denied, UsageError
    from packtrain._packer.object_workplace import workplace_at
    from packtrain._packer.pins import pins_of
    from packtrain._storage.location import object_store
    from packtrain._storage.remote.urls import Url, place_of
    from packtrain._storage.staging.origin import Origin
    from packtrain._storage.staging.version_documents import VersionDocuments, is_changed

    place = place_of("dataset", dataset)
    objects = object_store() if isinstance(place, Url) else None
    if not is_changed(place, objects):
        rows = Origin(place, objects).manifest().records
        raise UsageError(f"{place} has no versions: it has {rows:,} rows, as it was packed")
    versions, needed = list(VersionDocuments(place, objects).history()), dict[int, list[str]]()
    # A web server does not list anything, and not everybody may list a store.
    if isinstance(place, Path) or place.writable:
        with suppress(Denied), workplace_at(place, changing=False) as workplace:
            workplace.bring_pins()
            for _, pin in pins_of(workplace.folder):
                needed.setdefault(pin.number, []).append(pin.by)
    if as_json:
        names = ("number", "created", "written_by", "records", "change")
        print_json(
            [
                {**{name: getattr(each, name) for name in names}, "dropped": gone, "pins": needed.get(each.number, [])}
                for each, _, gone in reversed(versions)
            ]
        )
        return
    for version, _, gone in versions:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(version.created)) if version.created else ""
        mark = " (dropped)" if gone else ""
        if version.number in needed:
            mark = f" (needed by {one_line(', '.join(needed[version.number]))})"
        say(f"{version.number:>6}  {when:<16}  {version.records:>12,} rows  {version.change.text}{mark}")
