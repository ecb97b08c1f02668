"""Reads one foreign shard: a task for a worker process."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.errors import NotThere, PackError, ShardFailed
from packtrain._core.files import file_errors
from packtrain._core.schema import LABEL, Field
from packtrain._core.typed import parse_json
from packtrain._storage.location import Location, write
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url
from packtrain._storage.sequential import FileState, SequentialFile, changed, open_sequential, read_ends

from ..facts import join_fields
from ..sources import Refused
from . import records
from .headers import BLOCK, BadArchive, Member, compression, members, shown
from .plan import Rules
from .records import ImageFacts, Label
from .shard_files import SlidingWindow, unreadable

_REPORT_MEMBERS: Final = 512
_HEAD: Final = 64 * 1024
_CHECKS: Final = {"text": records.check_text, "json": records.parse_json}
"""Checks of a whole member, by the kind of its field."""
MOST_EXTENSIONS: Final = 64
_SCANNER: Final = 1
"""Version of what is found in a shard: notes of other versions are not used."""
_SUFFIX: Final = ".scan"
_CHECKSUM_BYTES: Final = 4


@dataclass(frozen=True)
class ScanTask:
    """A task: read one shard.

    Attributes:
        number: Number of the shard.
        location: The shard.
        rules: How its extensions are to be understood.
        notes: Folder in which the note of the scan is kept.
    """

    number: int
    location: Location
    rules: Rules
    notes: Location

    def __str__(self) -> str:
        return f"indexing {self.location}"


@dataclass(frozen=True)
class ScanProgress:
    """Progress of one shard.

    Attributes:
        number: Number of the shard.
        bytes: Number of its bytes that have been read.
        samples: Number of samples found in it so far.
    """

    number: int
    bytes: int
    samples: int


_MASKS: Final = tuple(Field("mask", "mask", encoding="png", dtype=dtype) for dtype in ("|u1", "<u2"))
"""Fields of masks of 8 and of 16 bits."""
_COLUMNS: Final = {"sample": "q", "offset": "q", "length": "q", "crc32c": "I"}
_PIXEL_COLUMNS: Final = {"width": "i", "height": "i", "orientation": "B"}
Integers = npt.NDArray[Any]


@dataclass(frozen=True)
class Extension:
    """The members of a shard with one extension.

    Attributes:
        name: The extension.
        kind: ``"label"``, or the kind of a field.
        field: A field that has room for all of them, under any name; None where the kind says all.
    """

    name: str
    kind: str
    field: Field | None = None

    @property
    def codes(self) -> dict[str, str]:
        """Type codes of the columns of `Found`, by their names."""
        return _COLUMNS | _PIXEL_COLUMNS if self.kind in ("image", "mask") else _COLUMNS


class Found:
    """The members of a shard with one extension.

    Attributes:
        extension: What they have in common.
        columns: One value per member, by the name of the column: ``sample``, the number of its sample in the shard;
            and as in the index ``offset``, ``length`` and ``crc32c``, for images and masks also ``width``, ``height``
            and ``orientation``.
    """

    def __init__(self, extension: Extension, columns: Mapping[str, Any] | None = None) -> None:
        self.extension = extension
        self.columns: Mapping[str, Any] = columns or {name: array(code) for name, code in extension.codes.items()}

    def add(self, sample: int, member: Member, checksum: int, facts: ImageFacts | Field | None) -> None:
        """Takes one more member."""
        kind, needed = self.extension.kind, None
        values: tuple[int, ...] = sample, member.offset, member.size, checksum
        if kind in ("image", "mask"):
            image = facts if isinstance(facts, ImageFacts) else ImageFacts(0, 0)
            values += image[:3]
            needed = _MASKS[image.wide] if kind == "mask" else None
        elif isinstance(facts, Field):
            needed = facts
        if needed is not None and needed != self.extension.field:
            self.extension = replace(self.extension, field=joined(self.extension.field, needed))
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)


def joined(here: Field | None, there: Field) -> Field:
    """Returns a field that has room for the records of both; a field of bytes if no other has."""
    return there if here is None else join_fields(here, there) or Field(here.name, "bytes")


@dataclass(frozen=True)
class Scan:
    """The content of one shard.

    Attributes:
        state: What it was like.
        crc32c: crc32c of all its bytes.
        keys: Key of each sample.
        found: Its members by extension.
        labels: Label of each sample that has one, by the number of the sample.
        unfit: Why a sample cannot be used, by its number.
        left_out: Number of members that belong to no sample.
    """

    state: FileState
    crc32c: int
    keys: list[bytes]
    found: dict[str, Found]
    labels: dict[int, Label]
    unfit: dict[int, str]
    left_out: int

    def dump(self) -> bytes:
        """The content of the note: two lines of JSON, the keys and columns one after the other, and a checksum."""
        found = self.found.values()
        facts = _Facts(
            self.state,
            self.crc32c,
            self.left_out,
            tuple(members.extension for members in found),
            tuple(len(members.columns["sample"]) for members in found),
        )
        by_sample = [
            [len(key) for key in self.keys],
            [*map(self.labels.get, range(len(self.keys)))],
            [*self.unfit.items()],
        ]
        lines = [json.dumps(part).encode() for part in (asdict(facts), by_sample)]
        columns = [column.tobytes() for members in found for column in members.columns.values()]
        content = b"\n".join([*lines, b"".join([*self.keys, *columns])])
        return content + crc32c(content).to_bytes(_CHECKSUM_BYTES, "little")

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Reads a note.

        Raises:
            ValueError: The note is damaged.
        """
        data, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
        if crc32c(data).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
            raise ValueError("another checksum")
        line, by_sample, rest = data.split(b"\n", 2)
        facts = parse_json(_Facts, line)
        sizes, labels, unfit = json.loads(by_sample)
        ends = list(accumulate(sizes, initial=0))
        keys, place, found = [rest[start:end] for start, end in pairwise(ends)], ends[-1], dict[str, Found]()
        for extension, count in zip(facts.extensions, facts.members, strict=True):
            columns = {}
            for name, code in extension.codes.items():
                columns[name] = np.frombuffer(rest, code, count, place)
                place += columns[name].nbytes
            if (np.diff(columns["sample"], prepend=-1, append=len(keys)) <= 0).any():
                raise ValueError(f"members of {extension.name} of no sample")
            found[extension.name] = Found(extension, columns)
        if len(labels) != len(keys) or not all(0 <= sample < len(keys) for sample, _ in unfit):
            raise ValueError("a sample that is not there")
        return cls(
            facts.state,
            facts.crc32c,
            keys,
            found,
            {sample: label for sample, label in enumerate(labels) if label is not None},
            dict(unfit),
            facts.left_out,
        )


@dataclass(frozen=True)
class _Facts:
    """The first line of a note.

    Attributes:
        members: Number of members with each extension.
    """

    state: FileState
    crc32c: int
    left_out: int
    extensions: tuple[Extension, ...]
    members: tuple[int, ...]


def note_name(rules: Rules, shard: Location, state: FileState) -> str:
    """Name of the note of a scan: a digest of all that decides what is in the note."""
    return hashlib.sha256(repr((_SCANNER, rules, str(shard), state)).encode()).hexdigest()[:40] + _SUFFIX


def scan_shard(task: ScanTask, report: Callable[[ScanProgress], None], objects: Objects) -> ScanProgress:
    """Reads a shard, and keeps a note of what is in it; raises the same errors as `read_shard`, and NoSpace."""
    scan = read_shard(task, report, objects)
    # The folder goes when another process publishes the dataset, which needs no more notes.
    with file_errors(Path(task.notes), ShardFailed), suppress(FileNotFoundError):
        write(task.notes / note_name(task.rules, task.location, scan.state), scan.dump(), objects)
    return ScanProgress(task.number, scan.state.bytes, len(scan.keys))


def read_shard(task: ScanTask, report: Callable[[ScanProgress], None], objects: Objects) -> Scan:
    """Reads a shard.

    Raises:
        PackError: It cannot be read, or is not a sound tar archive of samples.
        RemoteError: The object store does not answer as it should.
    """
    try:
        with open_sequential(task.location, objects) as file:
            return _Scanner(task, file, report).scan()
    except BadArchive as error:
        raise PackError(f"{task.location}, byte {error.offset}: {error.why}") from error
    except OSError as error:
        raise unreadable(task.location, error) from error


def check_ends(place: Location, objects: Objects) -> str | None:
    """Looks at both ends of a shard, before the time is spent to read it. Returns what is wrong with it, or None."""
    try:
        size, start, end = read_ends(place, objects, BLOCK, 2 * BLOCK)
    except (OSError, NotThere) as error:
        return str(unreadable(place, error))
    if name := compression(start):
        unpack = "" if isinstance(place, Url) else "let `--unpack DIR` do so, or "
        return f"{place} is compressed with {name}, so its records cannot be read in place: {unpack}decompress it"
    if not size:
        return f"{place} is an empty file, not a tar archive"
    if end.strip(b"\0") or len(end) < 2 * BLOCK:
        return (
            f"{place} is cut off, or no tar archive: it ends at byte {size} without the end mark, two blocks of zeros. "
            "Write or copy it again, or leave it out"
        )
    return None


class _Scanner:
    """Puts the members of a shard together to samples, in the order in which they come, and looks at each."""

    def __init__(self, task: ScanTask, file: SequentialFile, report: Callable[[ScanProgress], None]) -> None:
        self._task = task
        self._file = file
        self._before = file.state()
        self._pieces = SlidingWindow(file, self._before.bytes)
        self._report = report
        # Offset of the first header of each sample, by key, and of each member of the last sample, by extension.
        self._samples: dict[bytes, int] = {}
        self._members: dict[str, int] = {}
        self._last: bytes | None = None
        self._left_out = 0
        self._found: dict[str, Found] = {}
        self._labels: dict[int, Label] = {}
        self._unfit: dict[int, str] = {}

    def scan(self) -> Scan:
        for count, member in enumerate(members(self._pieces)):
            if count % _REPORT_MEMBERS == 0:
                self._report(ScanProgress(self._task.number, member.offset, len(self._samples)))
            if (parts := split_name(member.name)) is None:
                self._left_out += 1
            else:
                self._group(*parts, member)
                self._take(len(self._samples) - 1, parts.extension, member)
        checksum = self._pieces.finish()
        if self._file.state() != self._before:
            raise changed(self._task.location)
        return Scan(
            state=self._before,
            crc32c=checksum,
            keys=list(self._samples),
            found=self._found,
            labels=self._labels,
            unfit=self._unfit,
            left_out=self._left_out,
        )

    def _group(self, key: bytes, extension: str, member: Member) -> None:
        """Finds out whether a member begins a sample.

        Raises:
            BadArchive: A sample has two members with this extension, or its members are not adjacent.
        """
        header = member.header
        if key != self._last:
            if (before := self._samples.get(key)) is not None:
                raise BadArchive(
                    f"{shown(member.name)} belongs to the sample {shown(key)}, which began at byte {before}, but "
                    "another sample lies between them, or its name is there twice: sort the members by name (`tar "
                    "--sort=name`), and give each sample a key of its own",
                    header,
                )
            self._samples[key], self._last = header, key
            self._members.clear()
        elif (twice := self._members.get(extension)) is not None:
            raise BadArchive(
                f"{shown(member.name)} is there twice (letter case does not count): the other one is at byte {twice}",
                header,
            )
        self._members[extension] = header

    def _take(self, sample: int, extension: str, member: Member) -> None:
        if (found := self._found.get(extension)) is None:
            if len(self._found) == MOST_EXTENSIONS:
                examples = ", ".join(repr(name) for name in list(self._found)[:3])
                raise BadArchive(
                    f"{shown(member.name)} has the {MOST_EXTENSIONS + 1}th extension, after {examples} and others: the "
                    "extension begins at the first dot of a name, so the keys of samples must not have dots. Replace "
                    "the dots in the keys",
                    member.header,
                )
            found = self._found[extension] = Found(Extension(extension, self._task.rules.kind(extension)))
        kind = found.extension.kind
        facts: ImageFacts | Field | None = None
        try:
            facts = self._look(kind, extension, sample, member)
        except Refused as error:
            self._unfit.setdefault(sample, f"{shown(member.name)}, byte {member.offset}: {error}")
        # The label is a column of the index, and not a record.
        checksum = 0 if kind == LABEL else self._pieces.checksum(member.offset, member.size)
        found.add(sample, member, checksum, facts)

    def _look(self, kind: str, extension: str, sample: int, member: Member) -> ImageFacts | Field | None:
        """Looks at the content of a member as far as its kind needs it."""
        view = self._pieces.view
        if kind == LABEL:
            self._labels[sample] = records.plain_label(view(member.offset, min(member.size, _HEAD)))
        elif (key := self._task.rules.label_key(extension)) is not None:
            records.check_viewable(member.size)
            value = records.parse_json(view(member.offset, member.size))
            self._labels[sample] = records.json_label(value, key)
        elif kind == "array":
            return records.array_field(view(member.offset, min(member.size, _HEAD)), member.size)
        elif kind == "mask":
            return records.mask_facts(view(member.offset, min(member.size, _HEAD)))
        elif kind == "image" or kind in _CHECKS:
            records.check_viewable(member.size)
            content = view(member.offset, member.size)
            if kind == "image":
                return records.image_facts(content)
            _CHECKS[kind](content)
        return None


class Name(NamedTuple):
    """The parts of the name of a member.

    Attributes:
        key: All up to the first dot of the last part of the name, with its folder.
        extension: All behind that dot, in lower case.
    """

    key: bytes
    extension: str


def split_name(name: bytes) -> Name | None:
    """Splits the name of a member as webdataset does; None for a member that belongs to no sample.

    That is one without an extension, a hidden file, and what webdataset takes for its own notes (``__name__``).

    >>> split_name(b"train/000017.seg.png")
    Name(key=b'train/000017', extension='seg.png')
    """
    folder, slash, last = name.rpartition(b"/")
    stem, _, extension = last.partition(b".")
    if not stem or not extension or b"\n" in name:
        return None
    first = name.partition(b"/")[0]
    if len(first) > 3 and first.startswith(b"__") and first.endswith(b"__"):
        return None
    return Name(folder + slash + stem, extension.decode("utf-8", "backslashreplace").lower())
