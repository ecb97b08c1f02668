"""Notes of scans, in the folder ``parts`` of a dataset that is being indexed, and the list of shards beside them.

A note is named by all that decides its content: scanner, rules, and location and state of the shard. So a note serves
every run that wants this shard as it is, and a run that continues an earlier one scans only what has no note.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from packtrain._core.document import dump_document, parse_document, read_document
from packtrain._core.errors import OutputConflict, PackError
from packtrain._core.files import make_folder
from packtrain._core.manifest import VERSION, Count
from packtrain._storage.location import Location, lies_here, names_in, object_store, read, remove, write
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import place_of
from packtrain._storage.sequential import FileState, file_states

from ..notes import PARTS, make_parts
from ..publishing import LOCK, only_writer
from .plan import Rules
from .scan import Scan, note_name
from .shard_files import read_if_there, unreadable

SHARD_LIST: Final = "shards.json"
"""File in ``parts`` that holds the list."""
_MOST_NOTE_BYTES: Final = 4 << 30


@dataclass(frozen=True)
class ShardList:
    """The content of ``parts/shards.json``: the shards that are being indexed, and how.

    Attributes:
        rules: What each extension is, as far as it was given, and where labels come from.
        shards: Path or address of each new shard.
        written_by: Program and version that the dataset will name.
        before: Number of shards in the dataset that takes these in; 0 for a new dataset.
    """

    rules: Rules
    shards: tuple[str, ...]
    written_by: str
    before: Count = 0

    @property
    def locations(self) -> list[Location]:
        """The locations of the shards."""
        return [place_of("shards", shard) for shard in self.shards]

    @classmethod
    def load(cls, out: Location, objects: Objects) -> Self | None:
        """Reads the list beside the notes of `out`; None if nothing is being indexed there.

        Raises:
            UnsupportedVersion: A newer packtrain wrote the list.
            CorruptFile: The list is damaged.
            OSError: The list cannot be read.
            RemoteError: The object store does not answer as it should.
        """
        path = out / PARTS / SHARD_LIST
        data = read_if_there(path, objects)
        return None if data is None else parse_document(cls, read_document(data, path, newest=VERSION), path)

    @contextmanager
    def working(self, out: Location, objects: Objects, *, shared: bool) -> Iterator[ScanNotes]:
        """Gives the notes of `out`, once this list lies beside them, while nobody works there without parts.

        Args:
            out: Where the dataset will lie, or lies that is updated.
            objects: Connection to object stores.
            shared: True for a part, of which all have the same list.

        Raises:
            OutputConflict: Another process works there; or a part has another list than those before it.
        """
        path = out / PARTS / SHARD_LIST
        with ExitStack() as stack:
            # Object stores have no locks.
            if isinstance(out, Path):
                make_folder(out)
                make_parts(out)
                lock = out / PARTS / LOCK
                lock.touch()
                stack.enter_context(only_writer(lock, shared=shared))
            data = dump_document({"version": VERSION, **asdict(self)})
            if not write(path, data, objects, new=True) and self.load(out, objects) != self:
                if shared:
                    raise OutputConflict(
                        f"{out} is being indexed with other shards or other options: give each part the same, or "
                        "remove the folder to begin again"
                    )
                write(path, data, objects)
            yield ScanNotes(out, self, objects)


class ScanNotes:
    """The notes of the shards of a list."""

    def __init__(self, out: Location, listed: ShardList, objects: Objects) -> None:
        self.folder: Final = out / PARTS
        self._listed = listed
        self._locations = listed.locations
        self._objects = objects

    def states(self, numbers: Sequence[int], *, lenient: bool = False) -> dict[int, FileState]:
        """Return the states of shards; without those that cannot be looked at, if `lenient`.

        Raises:
            PackError: A shard cannot be looked at.
        """
        found: dict[int, FileState] = {}
        locations = [self._locations[number] for number in numbers]
        for number, location, state in zip(numbers, locations, file_states(locations, self._objects), strict=True):
            if isinstance(state, FileState):
                found[number] = state
            elif not lenient:
                raise unreadable(location, state) from state
        return found

    def missing(self, found: Mapping[int, FileState]) -> list[int]:
        """The numbers of the shards that have no note in these states."""
        names = names_in(self.folder, self._objects)
        return [number for number, state in found.items() if self._name(number, state) not in names]

    def lacking(self) -> list[int]:
        """The numbers of all shards that have no note, or cannot be looked at."""
        everything = range(len(self._locations))
        found = self.states(everything, lenient=True)
        return sorted({*everything} - {*found} | {*self.missing(found)})

    def look(self, numbers: Sequence[int]) -> tuple[list[Scan], list[int], dict[int, FileState]]:
        """Returns the notes of shards, the numbers of those without, and all states. Damaged notes are removed.

        As long as a shard has no note, none is read.

        Raises:
            PackError: A shard cannot be looked at.
        """
        found = self.states(numbers)
        lacking = self.missing(found)
        scans = {} if lacking else {number: self._read(number, state) for number, state in found.items()}
        lacking += [number for number, scan in scans.items() if scan is None]
        return [scan for scan in scans.values() if scan is not None], lacking, found

    def all_scans(self) -> list[Scan]:
        """Reads the notes of all shards.

        Raises:
            PackError: A shard has no note, or has changed since.
        """
        scans, lacking, found = self.look(range(len(self._locations)))
        if lacking:
            more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
            raise PackError(
                f"{len(lacking)} of {len(found)} shards have not been read, or have changed since: "
                f"{self._locations[lacking[0]]}{more}. Run the index commands again, which read what is missing"
            )
        return scans

    def _name(self, number: int, state: FileState) -> str:
        return note_name(self._listed.rules, self._locations[number], state)

    def _read(self, number: int, state: FileState) -> Scan | None:
        note = self.folder / self._name(number, state)
        data = read(note, _MOST_NOTE_BYTES, self._objects)
        try:
            return Scan.parse(data)
        except MemoryError:
            raise
        except Exception:
            # Whoever wrote the note may have written anything.
            remove(note, self._objects)
            return None

    def remove(self) -> None:
        """Removes all notes, if publishing has not taken them away, and the list last."""
        if lies_here(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for name in sorted(names_in(self.folder, self._objects), key=SHARD_LIST.__eq__):
            remove(self.folder / name, self._objects)


def scans_of(out: Location) -> tuple[tuple[str, ...], list[int]] | None:
    """Returns the shards that are being indexed in `out`, and the numbers of those without a note; None if none are."""
    with closing(object_store()) as objects:
        if (listed := ShardList.load(out, objects)) is None:
            return None
        return listed.shards, ScanNotes(out, listed, objects).lacking()
