"""Where a dataset is written to: a folder, or a folder from which every finished shard goes on to somewhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packtrain._core.files import fsync_folder, make_folder, temporary_path, write_file
from packtrain._core.manifest import MANIFEST, PLAN, ShardInfo
from packtrain._storage.remote.urls import Url

from .notes import PARTS, ShardNote, shard_is_present
from .shared_folder import require_plan, wait_for_notes


class Output(Protocol):
    """Where a dataset is written to. It travels to the workers, so it pickles.

    Attributes:
        folder: Folder of this machine in which shards are packed and notes are merged.
    """

    @property
    def folder(self) -> Path:
        """See above."""

    @property
    def address(self) -> Path | Url:
        """Where the dataset lies in the end, for messages."""

    def prepare(self) -> None:
        """Brings plan, manifest and notes into `folder`, if they lie elsewhere. Called before anything is read there.

        Raises:
            OutputConflict: Something else lies there.
        """

    def bring_index(self) -> None:
        """Brings index and rejects of a finished dataset, too."""

    def offer_plan(self, data: bytes) -> None:
        """Writes plan.json unless somebody has been faster. Afterwards, `folder` has the plan that counts."""

    def holds(self, info: ShardInfo) -> bool:
        """True if a finished shard and its sidecars are there, and have the right sizes."""

    def shard_done(self, note: ShardNote) -> None:
        """Takes a finished shard and its sidecars, which lie in `folder`, and then keeps its note, there as well.

        Called in the process that packed the shard, which counts as done once there is a note.
        """

    def arrive(self, plan_sha256: str) -> AbstractContextManager[Output]:
        """The same output for a machine that may not be the one that made the plan, while it packs a shard.

        Raises:
            UsageError: It does not see `folder` as the others do.
        """

    def gather(self, shards: Sequence[str]) -> None:
        """Brings the notes of shards, which other machines have packed, into `folder`.

        Raises:
            PackError: They are not there.
        """

    def unpublish(self) -> None:
        """Takes the manifest away, so that shards can be packed again. The notes of the others lie in `folder`."""

    def trace(self, name: str, data: bytes | None) -> None:
        """Leaves ``parts/NAME``, a small file about a shard that is not done; None removes it. Nothing rests on it."""

    def finish(self) -> None:
        """Takes index, rejects and, last, the manifest, unless they are there; then removes notes and traces."""


@dataclass(frozen=True)
class LocalOutput:
    """A folder that stays where it is: nothing has to be brought or taken away."""

    folder: Path

    @property
    def address(self) -> Path:
        """The folder."""
        return self.folder

    def prepare(self) -> None:
        """All is there."""

    def bring_index(self) -> None:
        """All is there."""

    def offer_plan(self, data: bytes) -> None:
        """Writes the plan by a link, which only one of many writers can make, on any file system."""
        make_folder(self.folder)
        # Another packer may have been faster, and may have removed our temporary file.
        with suppress(FileExistsError, FileNotFoundError):
            write_file(self.folder / PLAN, [data], exclusive=True)

    def holds(self, info: ShardInfo) -> bool:
        """Looks at the files."""
        return shard_is_present(self.folder, info)

    def shard_done(self, note: ShardNote) -> None:
        """Writes the note; all else is there."""
        note.save(self.folder)

    @contextmanager
    def arrive(self, plan_sha256: str) -> Iterator[Output]:
        """Waits a moment for a plan that has just been written elsewhere."""
        require_plan(self.folder, plan_sha256)
        yield self

    def gather(self, shards: Sequence[str]) -> None:
        """Waits until this machine, too, sees them."""
        wait_for_notes(self.folder, shards)

    def unpublish(self) -> None:
        """Removes the manifest durably."""
        fsync_folder(self.folder)
        (self.folder / MANIFEST).unlink()
        fsync_folder(self.folder)

    def trace(self, name: str, data: bytes | None) -> None:
        """Writes the file where the notes are."""
        path = self.folder / PARTS / name
        # A merge removes the folder while a shard is packed that another process has finished.
        with suppress(FileNotFoundError):
            if data is None:
                path.unlink()
            else:
                # It need not outlive a crash of the machine.
                temporary = temporary_path(path)
                try:
                    temporary.write_bytes(data)
                    temporary.rename(path)
                except OSError:
                    temporary.unlink(missing_ok=True)
                    raise

    def finish(self) -> None:
        """All is there."""
