"""Reads one foreign shard: a task for a worker process."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from packtrain._core.errors import NotThere, PackError
from packtrain._core.schema import LABEL
from packtrain._storage.location import Location
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

from . import records
from .headers import BLOCK, BadArchive, Member, compression, members, shown
from .plan import Rules
from .records import ArrayFacts, ImageFacts, Label, Unfit
from .shard_files import Pieces, ShardFile, State, changed, ends, opened, unreadable

_REPORT_MEMBERS: Final = 512
_HEAD: Final = 64 * 1024
_CHECKS: Final = {"text": records.check_text, "json": records.parse_json}
"""What looks at the whole of a member, by the kind of its field."""
MOST_EXTENSIONS: Final = 64


@dataclass(frozen=True)
class ScanTask:
    """A task: read one shard.

    Attributes:
        number: Number of the shard.
        place: The shard.
        rules: How its extensions are to be understood.
    """

    number: int
    place: Location
    rules: Rules

    def __str__(self) -> str:
        return f"indexing {self.place}"


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


@dataclass
class Found:
    """The members of a shard with one extension. All arrays have one entry per member.

    Attributes:
        kind: What they are: ``"label"``, or the kind of a field.
        samples: Number of the sample in the shard.
        offsets: Offset of the content.
        lengths: Size of the content in bytes.
        checksums: crc32c of the content.
        widths: Width in pixels, of images and masks.
        heights: Height in pixels.
        orientations: EXIF orientation.
        wide: True if a mask has 16 bits.
        form: Type and shape of all arrays together.
    """

    kind: str
    samples: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    checksums: array[int] = field(default_factory=lambda: array("I"))
    widths: array[int] = field(default_factory=lambda: array("i"))
    heights: array[int] = field(default_factory=lambda: array("i"))
    orientations: array[int] = field(default_factory=lambda: array("B"))
    wide: bool = False
    form: ArrayFacts | None = None

    def add(self, sample: int, member: Member, checksum: int, facts: ImageFacts | ArrayFacts | None) -> None:
        """Takes one more member."""
        self.samples.append(sample)
        self.offsets.append(member.offset)
        self.lengths.append(member.size)
        self.checksums.append(checksum)
        if self.kind in ("image", "mask"):
            image = facts if isinstance(facts, ImageFacts) else ImageFacts(0, 0)
            self.widths.append(image.width)
            self.heights.append(image.height)
            self.orientations.append(image.orientation)
            self.wide = self.wide or image.wide
        elif isinstance(facts, ArrayFacts):
            self.form = facts if self.form is None else self.form.joined(facts)


@dataclass(frozen=True)
class Scan:
    """What is in one shard.

    Attributes:
        number: Number of the shard.
        state: What it was like.
        crc32c: crc32c of all its bytes.
        keys: Key of each sample.
        found: Its members by extension.
        labels: Label of each sample that has one, by the number of the sample.
        unfit: Why a sample cannot be used, by its number.
        left_out: Number of members that belong to no sample.
    """

    number: int
    state: State
    crc32c: int
    keys: list[bytes]
    found: dict[str, Found]
    labels: dict[int, Label]
    unfit: dict[int, str]
    left_out: int


def scan_shard(task: ScanTask, report: Callable[[ScanProgress], None], objects: Objects) -> Scan:
    """Reads a shard.

    Raises:
        PackError: It cannot be read, or is not a sound tar archive of samples.
        RemoteError: The object store does not answer as it should.
    """
    try:
        with opened(task.place, objects) as file:
            return _Scanner(task, file, report).scan()
    except BadArchive as error:
        raise PackError(f"{task.place}, byte {error.offset}: {error.why}") from error
    except OSError as error:
        raise unreadable(task.place, error) from error


def check_ends(place: Location, objects: Objects) -> str | None:
    """Looks at both ends of a shard, before the time is spent to read it. Returns what is wrong with it, or None."""
    try:
        size, start, end = ends(place, objects, BLOCK, 2 * BLOCK)
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
    def __init__(self, task: ScanTask, file: ShardFile, report: Callable[[ScanProgress], None]) -> None:
        self._task = task
        self._file = file
        self._before = file.state()
        self._pieces = Pieces(file, self._before.bytes)
        self._report = report
        self._grouping = Grouping()
        self._found: dict[str, Found] = {}
        self._labels: dict[int, Label] = {}
        self._unfit: dict[int, str] = {}

    def scan(self) -> Scan:
        grouping = self._grouping
        for count, member in enumerate(members(self._pieces)):
            if count % _REPORT_MEMBERS == 0:
                self._report(ScanProgress(self._task.number, member.offset, len(grouping.keys)))
            if (place := grouping.add(member.name, member.header)) is not None:
                self._take(*place, member)
        checksum = self._pieces.finish()
        if self._file.state() != self._before:
            raise changed(self._task.place)
        return Scan(
            number=self._task.number,
            state=self._before,
            crc32c=checksum,
            keys=grouping.keys,
            found=self._found,
            labels=self._labels,
            unfit=self._unfit,
            left_out=grouping.left_out,
        )

    def _take(self, sample: int, extension: str, member: Member) -> None:
        if (found := self._found.get(extension)) is None:
            found = self._found[extension] = Found(self._task.rules.kind(extension))
        facts: ImageFacts | ArrayFacts | None = None
        try:
            facts = self._look(found.kind, extension, sample, member)
        except Unfit as error:
            self._unfit.setdefault(sample, f"{shown(member.name)}, byte {member.offset}: {error}")
        # The label is a column of the index, and not a record.
        checksum = 0 if found.kind == LABEL else self._pieces.checksum(member.offset, member.size)
        found.add(sample, member, checksum, facts)

    def _look(self, kind: str, extension: str, sample: int, member: Member) -> ImageFacts | ArrayFacts | None:
        """Looks at the content of a member as far as its kind needs it."""
        view = self._pieces.view
        if kind == LABEL:
            self._labels[sample] = records.plain_label(view(member.offset, min(member.size, _HEAD)))
        elif (key := self._task.rules.label_key(extension)) is not None:
            records.check_viewable(member.size)
            value = records.parse_json(view(member.offset, member.size))
            self._labels[sample] = records.json_label(value, key)
        elif kind == "array":
            return records.array_facts(view(member.offset, min(member.size, _HEAD)), member.size)
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
    """What the name of a member says.

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


@dataclass
class Grouping:
    """Puts the members of a shard together to samples, in the order in which they come.

    Attributes:
        keys: Key of each sample.
        headers: Offset of the first header of each sample.
        extensions: Where each extension was found first, by extension.
        left_out: Number of members that belong to no sample.
    """

    keys: list[bytes] = field(default_factory=list)
    headers: list[int] = field(default_factory=list)
    extensions: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    _samples: dict[bytes, int] = field(default_factory=dict)
    _members: dict[str, int] = field(default_factory=dict)

    def add(self, name: bytes, header: int) -> tuple[int, str] | None:
        """Takes the next member. Returns the number of its sample, and its extension; None if it belongs to none.

        Args:
            name: Name of the member.
            header: Offset of its header.

        Raises:
            BadArchive: A sample has two members with this extension, or its members are not adjacent, or there are so
                many extensions that keys must have dots in them.
        """
        if (parts := split_name(name)) is None:
            self.left_out += 1
            return None
        key, extension = parts
        if not self.keys or key != self.keys[-1]:
            if (before := self._samples.get(key)) is not None:
                raise BadArchive(
                    f"{shown(name)} belongs to the sample {shown(key)}, which began at byte {self.headers[before]}, "
                    "but another sample lies between them, or its name is there twice: sort the members by name (`tar "
                    "--sort=name`), and give each sample a key of its own",
                    header,
                )
            self._samples[key] = len(self.keys)
            self.keys.append(key)
            self.headers.append(header)
            self._members.clear()
        elif (twice := self._members.get(extension)) is not None:
            raise BadArchive(
                f"{shown(name)} is there twice (letter case does not count): the other one is at byte {twice}", header
            )
        self._members[extension] = header
        if extension not in self.extensions:
            self._take_extension(extension, name, header)
        return len(self.keys) - 1, extension

    def _take_extension(self, extension: str, name: bytes, header: int) -> None:
        if len(self.extensions) == MOST_EXTENSIONS:
            raise BadArchive(f"{shown(name)} has {too_many_extensions(self.extensions)}", header)
        self.extensions[extension] = header


def too_many_extensions(known: dict[str, int]) -> str:
    """What to say of one more extension than there may be."""
    examples = ", ".join(repr(name) for name in list(known)[:3])
    return (
        f"the {MOST_EXTENSIONS + 1}th extension, after {examples} and others: all behind the first dot of a name is "
        "its extension, so the keys of samples must not have dots. Replace the dots in their names"
    )
