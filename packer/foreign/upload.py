"""Puts a dataset of foreign shards into an object store: its manifest last, so that nothing half looks complete."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packtrain._core.errors import OutputConflict, UsageError
from packtrain._core.files import write_file
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, REJECTS
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

from .plan import IndexPlan


def require_free(url: Url, objects: Objects) -> None:
    """Refuses an address with anything but what an indexer left that was stopped, before all shards are read.

    Raises:
        UsageError: Nothing can be written there.
        OutputConflict: There is something else.
        RemoteError: The object store does not answer as it should.
    """
    if not url.writable:
        raise UsageError(f"{url} cannot be written to: give a folder, or an address of s3://, gs:// or az://")
    names = {found.name for found in objects.list(url)}
    strangers = [name for name in names if name not in (PLAN, REJECTS) and not name.startswith(f"{INDEX}/")]
    if strangers or (names and PLAN not in names):
        raise OutputConflict(f"{url} is not empty ({', '.join(sorted(names)[:3])}). Choose another address")
    if names:
        IndexPlan.fetch(url, objects)


@contextmanager
def building_upload(plan: bytes) -> Iterator[Path]:
    """Gives a new folder of this machine that holds `plan`."""
    with tempfile.TemporaryDirectory(prefix="packtrain-index-") as name:
        write_file(Path(name, PLAN), [plan])
        yield Path(name)


def upload(folder: Path, url: Url, objects: Objects) -> None:
    """Puts the dataset in `folder` to an address where there is none.

    Raises:
        OutputConflict: Somebody else has put one there meanwhile.
        RemoteError: The object store does not answer as it should.
    """
    # The plan first: it says what the rest is if this is stopped.
    for path in (folder / PLAN, folder / REJECTS, *sorted((folder / INDEX).iterdir())):
        objects.upload(url / path.relative_to(folder).as_posix(), path)
    if not objects.write(url / MANIFEST, (folder / MANIFEST).read_bytes(), new=True):
        raise OutputConflict(
            f"somebody else indexed to {url} at the same time: run `packtrain verify {url}`, and if it finds anything, "
            "index to another address"
        )
