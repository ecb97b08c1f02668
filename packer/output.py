"""The output of a packing: a folder, or a folder from which every finished shard goes on to somewhere else.

Several machines may share the folder. Each makes sure that it sees the same one, and all that is in it.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import OutputConflict, PackError, UsageError
from packtrain._core.files import fsync_folder, is_temporary, make_folder, write_file
from packtrain._core.manifest import MANIFEST, PLAN, ShardInfo
from packtrain._core.opening import read_regular
from packtrain._storage.remote.urls import Url

from .notes import PARTS, ShardNote, note_path, shard_is_present

_PLAN_SECONDS: Final = 5.0
_NOTE_SECONDS: Final = 90.0
"""Network file systems may remember for a minute that a file was not there."""


class Output:
    """A folder that a dataset is written to, and stays in. It travels to the workers, so it pickles.

    Attributes:
        folder: Folder of this machine in which shards are packed and notes are merged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder

    @property
    def address(self) -> Path | Url:
        """The place of the finished dataset, for messages."""
        return self.folder

    def prepare(self) -> None:
        """Brings plan, manifest and notes into `folder`, if they lie elsewhere. Called before anything is read there.

        Raises:
            OutputConflict: Something else lies there.
        """

    def bring_index(self) -> None:
        """Brings index and rejects of a finished dataset, too."""

    def offer_plan(self, data: bytes) -> None:
        """Writes plan.json unless somebody has been faster. Afterwards, `folder` has the plan that counts."""
        make_folder(self.folder)
        # Another packer may have been faster, and may have removed our temporary file.
        with suppress(FileExistsError, FileNotFoundError):
            # By a link, which only one of many writers can make, on any file system.
            write_file(self.folder / PLAN, [data], exclusive=True)

    def holds(self, info: ShardInfo) -> bool:
        """True if a finished shard and its sidecars are there, and have the right sizes."""
        return shard_is_present(self.folder, info)

    def shard_done(self, note: ShardNote) -> None:
        """Takes a finished shard and its sidecars, which lie in `folder`, and then keeps its note, there as well.

        Called in the process that packed the shard, which counts as done once there is a note.
        """
        note.save(self.folder)

    @contextmanager
    def arrive(self, plan_sha256: str) -> Iterator[Output]:
        """The same output for a machine that may not be the one that made the plan, while it packs a shard.

        Raises:
            UsageError: It does not see `folder` as the others do.
        """
        # It may have been written a moment ago.
        require_plan(self.folder, plan_sha256)
        yield self

    def gather(self, shards: Sequence[str]) -> None:
        """Brings the notes of shards, which other machines have packed, into `folder`.

        Raises:
            PackError: They are not there.
        """
        wait_for_notes(self.folder, shards)

    def unpublish(self) -> None:
        """Takes the manifest away, so that shards can be packed again. The notes of the others lie in `folder`."""
        fsync_folder(self.folder)
        (self.folder / MANIFEST).unlink()
        fsync_folder(self.folder)

    def mark(self, name: str, data: bytes | None) -> None:
        """Leaves ``parts/NAME``, a small file about a shard that is not done; None removes it. Nothing rests on it."""
        path = self.folder / PARTS / name
        # A merge removes the folder while a shard is packed that another process has finished.
        with suppress(FileNotFoundError):
            if data is None:
                path.unlink()
            else:
                write_file(path, [data], durable=False)

    def finish(self) -> None:
        """Takes index, rejects and, last, the manifest, unless they are there; then removes notes and markers."""


@lru_cache(maxsize=8)
def require_plan(folder: Path, sha256: str) -> None:
    """Waits a moment for a plan that has just been written.

    Raises:
        UsageError: It is not there, or another one is.
    """
    path, end = folder / PLAN, time.monotonic() + _PLAN_SECONDS
    while (found := _digest(path)) != sha256:
        if time.monotonic() >= end:
            what = f"{path} is another file there" if found else f"there is no {path} there"
            raise UsageError(
                f"{socket.gethostname()} does not see the folder that is packed to: {what}. OUT must be a folder that "
                "all machines of the cluster share, under the same path"
            )
        time.sleep(0.2)


def _digest(path: Path) -> str | None:
    """SHA-256 of a file in hexadecimal digits; None if it cannot be read."""
    try:
        # Looks at the folder anew, where that is far away.
        os.listdir(path.parent)
        return hashlib.sha256(read_regular(path, MOST_BYTES)).hexdigest()
    except OSError:
        return None


def wait_for_notes(folder: Path, shards: Sequence[str]) -> None:
    """Waits until this machine, too, sees these shards and their notes, which others have finished.

    Raises:
        PackError: It does not.
    """
    end = time.monotonic() + _NOTE_SECONDS
    for name in shards:
        while not (note_path(folder, name).exists() and (folder / name).exists()):
            if time.monotonic() >= end:
                raise PackError(
                    f"{name} has been packed on another machine, but is not in {folder} here. Check that all machines "
                    "share this folder, and run the same command again: it packs the missing shards"
                )
            time.sleep(0.5)
            os.listdir(note_path(folder, name).parent)


def require_usable(folder: Path, plan: str = PLAN) -> None:
    """Refuses a folder in which something else lies.

    Args:
        folder: The folder.
        plan: Name of the file by which packtrain knows what is its own.

    Raises:
        OutputConflict: There is something in it that packtrain did not leave.
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
        if strangers and not (folder / plan).exists():
            raise OutputConflict(
                f"{folder} is not empty ({', '.join(sorted(strangers)[:3])}), and has no {plan} of packtrain's. Choose "
                "a new or empty folder"
            )


def require_no_linked_folder(folder: Path) -> None:
    """Refuses to write where somebody else has made a link in the place of a folder: it may lead anywhere.

    Raises:
        OutputConflict: There is one in a folder, or below.
    """
    for place, names, _ in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if path.is_symlink():
                raise OutputConflict(
                    f"{path} is a link, which leads out of {folder}: remove it and run the same command again"
                )
