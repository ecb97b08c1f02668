"""Where lists come from and datasets go to: folders of this machine, or addresses in an object store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from packtrain._core.arguments import path_of
from packtrain._core.errors import ListError, NotThere, OutputConflict, TooManyRejects, UsageError
from packtrain._core.files import file_errors, is_temporary
from packtrain._core.manifest import PLAN
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

from .output import LocalOutput, Output

_MOST_LIST_BYTES: Final = 64 << 30


@contextmanager
def output_at(place: Path | Url, spool: str | os.PathLike[str] | None = None) -> Iterator[Output]:
    """Gives the output for a folder, or for an address in an object store.

    Args:
        place: Where the dataset is to lie.
        spool: Folder of this machine for what is on its way to an object store.

    Raises:
        UsageError: Nothing can be written there, or `spool` means nothing.
    """
    if isinstance(place, Url):
        from .object_output import spooled

        with spooled(place, None if spool is None else path_of("spool", spool)) as output:
            yield output
    elif spool is not None:
        raise UsageError(f"spool={os.fspath(spool)!r}: {place} is a folder, and nothing is on its way: leave it out")
    else:
        yield LocalOutput(place)


@contextmanager
def fetched_list(place: Path | Url) -> Iterator[tuple[Path, Url | None]]:
    """Gives the file of a list, and the folder that its paths start from if it lies in an object store.

    Raises:
        ListError: It cannot be fetched.
        PackError: It cannot be written to the folder of temporary files.
    """
    if not isinstance(place, Url):
        yield place, None
        return
    with tempfile.TemporaryDirectory(prefix="packtrain-list-") as folder, closing(ObjectStore()) as objects:
        path = Path(folder, place.name)
        _fetch_list(objects, place, path)
        try:
            yield path, place.parent
        except (ListError, TooManyRejects, UsageError) as error:
            # Nobody else knows of the copy.
            raise type(error)(str(error).replace(folder, str(place.parent))) from error


def _fetch_list(objects: Objects, place: Url, path: Path) -> None:
    if not place.key:
        # The store would answer with a list of its own.
        raise ListError(f"{place} names no list. Give the address of one, such as {place / 'train.txt'}")
    try:
        data = objects.read(place, _MOST_LIST_BYTES)
    except NotThere as error:
        raise ListError(
            f"there is no list {place}. Give the address of a file with one `path label` per line; of images in an "
            "object store that no list names, write one first"
        ) from error
    with file_errors(path):
        path.write_bytes(data)


def require_usable(folder: Path) -> None:
    """Refuses a folder in which something else lies.

    Raises:
        OutputConflict: There is something in it that no packer left.
    """
    if folder.is_symlink() and not folder.exists():
        raise OutputConflict(
            f"{folder} is a link that leads nowhere. Make the folder that it leads to, or choose another name"
        )
    if folder.exists() and not folder.is_dir():
        raise OutputConflict(f"{folder} is a file, but packtrain writes a folder. Choose another name")
    if folder.is_dir():
        strangers = [path.name for path in folder.iterdir() if not is_temporary(path)]
        # Look for the plan last: a packer that starts at the same time writes its plan first.
        if strangers and not (folder / PLAN).exists():
            raise OutputConflict(
                f"{folder} is not empty ({', '.join(sorted(strangers)[:3])}), and has no {PLAN} of packtrain's. Choose "
                "a new or empty folder"
            )
