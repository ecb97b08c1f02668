"""A dataset that is to be changed, and the folder of this machine in which what a change writes is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from packtrain._core.errors import OutputConflict, UsageError
from packtrain._core.files import NO_LOCKS, file_errors, make_folder, write_file
from packtrain._core.locks import Lock
from packtrain._core.manifest import INDEX
from packtrain._core.version_files import BASE, SEGMENTS, has_versions
from packtrain._core.versions import Segment, Version, begin_versions, newest_version, publish
from packtrain._storage.location import Location
from packtrain._storage.staging.locks import VersionLease

from .output import Output
from .part_files import PartFiles
from .plan import Plan

NAME_DIGITS: Final = 16


class Workplace:
    """A dataset that is to be changed, and lies in a folder.

    Attributes:
        folder: Folder of this machine that has its documents and indexes, and gets what a change makes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder

    @property
    def address(self) -> Location:
        """The place of the dataset, for messages and reports."""
        return self.folder

    def newest(self) -> Version:
        """Returns the newest version.

        Raises:
            DatasetError: There is no sound dataset.
        """
        return newest_version(self.folder)

    def begin(self) -> None:
        """Makes a dataset of versions of a packed one. Who asks for what cannot be is refused before.

        Raises:
            DatasetError: There is no sound dataset.
            OutputConflict: A link stands in the place of one of its folders.
            PackError: It cannot be written to.
        """
        with file_errors(self.folder):
            begin_versions(self.folder)

    @contextmanager
    def held(self) -> Iterator[Version]:
        """Gives the newest version; where there are locks, nothing of it is removed as long as the block takes."""
        newest = self.newest()
        with ExitStack() as stack:
            while has_versions(self.folder):
                try:
                    stack.enter_context(closing(VersionLease(self.folder, newest.number)))
                    break
                except UsageError:
                    # Somebody has just made a newer one, and dropped this one.
                    before, newest = newest, self.newest()
                    if before.number == newest.number:
                        raise
            yield newest

    def bring(self, names: Iterable[str]) -> None:
        """Brings files of the dataset into `folder`, if they lie elsewhere.

        Raises:
            CorruptFile: One is not there.
        """

    def bring_manifests(self, version: Version) -> None:
        """Brings the manifests of all segments and layers of a version, and its columns; raises what `bring` raises."""

    def bring_indexes(self, version: Version) -> None:
        """Brings their indexes as well; raises what `bring` raises."""

    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """Gives a file of the dataset on this machine, as long as the block takes; raises what `bring` raises."""
        yield self.folder / name

    @contextmanager
    def shards(self, segments: Sequence[Segment]) -> Iterator[None]:
        """Has the shards of segments and of their layers in `folder`, as long as the block takes.

        Raises:
            CorruptFile: One is not there.
        """
        yield

    def require_shards(self, what: str) -> None:
        """Makes sure that records can be read.

        Raises:
            UsageError: They lie elsewhere; `what` needs them.
        """

    def bring_versions(self) -> None:
        """Brings documents and marks of all versions that there are by now, and pins; raises what `bring` raises."""

    def bring_pins(self) -> None:
        """Brings the pins that there are by now."""

    def part_files(self) -> PartFiles:
        """The files of all segments, layers and columns that are there."""
        return PartFiles(self.folder)

    def write(self, name: str, data: bytes) -> None:
        """Writes a document."""
        make_folder((self.folder / name).parent)
        write_file(self.folder / name, [data])

    def remove(self, name: str) -> None:
        """Removes a document, if it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def name_of(self, plan: Plan) -> str:
        """The name of a new segment or layer that is packed by this plan."""
        return part_name(plan)

    def expected_name(self, plan: Plan) -> str:
        """The same for a dry run: ``*`` stands for what is drawn."""
        return self.name_of(plan)

    def has_packed(self, version: Version, plan: Plan) -> bool:
        """True if a version has a segment that was packed by a plan like this one."""
        segments = version.segments
        if part_name(plan) in (segment.name for segment in segments):
            return True
        # Not there: somebody has just taken rows out of it.
        with suppress(FileNotFoundError):
            return segments[0].name == BASE and Plan.load(self.folder).is_same(plan)
        return False

    @contextmanager
    def writing(self, name: str) -> Iterator[Output]:
        """Gives the output for a new segment or layer, which belongs to this process until a version names it.

        Args:
            name: Name of its folder in the dataset's.

        Raises:
            OutputConflict: Another process writes it, or a link is in its place.
            PackError: It cannot be written.
        """
        place = self.folder / name
        with file_errors(self.folder), writing(place):
            yield Output(place)

    def publish(self, change: Callable[[Version], Version]) -> Version:
        """Writes the next version; see `packtrain._core.versions.publish`.

        Raises:
            PackError: It cannot be written.
        """
        with file_errors(self.folder):
            return publish(self.folder, change)


def part_name(plan: Plan) -> str:
    """The name of a segment or a layer that is packed by this plan: whoever packs it again finds it."""
    return plan.sha256[:NAME_DIGITS]


def segment_place(name: str) -> str:
    """The beginning of the names of a segment's files, as seen from the dataset's folder."""
    return "" if name == BASE else f"{SEGMENTS}/{name}/"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Locks a folder of a segment or a layer while it is written, until a version names it.

    Raises:
        OutputConflict: Another process writes it, or it or its index is a link.
    """
    for path in (folder, folder / INDEX):
        if path.is_symlink():
            raise OutputConflict(
                f"{path} is a link, which leads out of the dataset: remove it and run the command again"
            )
    with _lock_folder(folder) or nullcontext():
        yield


def _lock_folder(folder: Path) -> Lock | None:
    """Makes a folder, and locks it; None where there are no locks."""
    while True:
        make_folder(folder)
        try:
            lock = Lock(folder, wait=False, inherited=False, flags=os.O_RDONLY | os.O_DIRECTORY)
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(folder)):
                return lock
        except BlockingIOError as error:
            raise OutputConflict(
                f"another process is writing {folder}. Wait for it or stop it, then run the command again"
            ) from error
        except FileNotFoundError:
            # Somebody has just removed it, because no version named it.
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return None
        lock.close()
