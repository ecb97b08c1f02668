"""The documents of a dataset that changes: what its versions consist of. ``docs/format-versions.md`` specifies them.

    DATASET/
      manifest.json             says that this is a dataset of versions, and never changes
      versions/00000001.json    what a version consists of: segments, layers beside them, rows that are dropped
      segments/NAME/            a segment: a dataset of its own
      layers/NAME/              a layer: further fields of a segment, a dataset with as many rows
      dropped/NAME.npy          rows of a segment that a version leaves out
      sides/NAME.npy            the side of each row of a segment: train, val, test, or a fold
      pins/NAME.json            says that another dataset needs a version
      base.json                 the manifest of the segment that lies in this folder itself

A version is written once, under a number that nobody else has taken. So two writers never lose each other's work: the
one who comes too late takes the other's version as its base, and tries the next number.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from .document import MOST_BYTES, Named, dump_document, parse_document, read_document
from .errors import CorruptFile, UsageError
from .files import fsync_folder, make_folder, write_file
from .manifest import (
    HEADER_BYTES,
    MANIFEST,
    VERSIONS,
    Count,
    FieldInfo,
    FileInfo,
    Labels,
    Manifest,
    Sha256,
    manifest_bytes,
)
from .opening import read_regular
from .problems import reading
from .schema import FieldName, Schema
from .typed import MOST, Between, Form, OneOf
from .version_files import (
    BASE,
    BASE_MANIFEST,
    DROPPED,
    LAYERS,
    MOST_VERSION_BYTES,
    SEGMENTS,
    SIDES,
    has_versions,
    is_dropped,
    is_root,
    require_no_links,
    version_name,
    version_numbers,
    version_path,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION: Final = 3
SPLIT: Final = "split"
"""The name of the side of a row in conditions."""
NO_SIDE: Final = 255
"""The number of a row that is on no side."""
MOST_FOLDS: Final = 100
WHOLE: Final = 1_000_000
"""Shares of a split are counted in millionths."""
MOST_SEGMENTS: Final = 1024
CHANGES: Final = ("pack", "append", "add-field", "drop-rows", "relabel", "merge", "compact", "purge", "split")
_YEAR_10000: Final = 253_402_300_800

Identity = Annotated[str, Form("[0-9a-f]{32}", "32 hexadecimal digits")]
PartName = Annotated[str, Form("[0-9a-f]{16}", "16 hexadecimal digits")]
Seconds = Annotated[int, Between(0, _YEAR_10000 - 1)]
SegmentName = Annotated[str, Form(f"[0-9a-f]{{16}}|{BASE}", f"16 hexadecimal digits, or {BASE}")]


@dataclass(frozen=True)
class ManifestInfo:
    """The manifest of a segment or a layer, with which all of its files are known.

    Attributes:
        bytes: Its size.
        sha256: Its SHA-256, in hexadecimal digits.
    """

    bytes: Annotated[int, Between(0, MOST_BYTES)]
    sha256: Sha256

    @classmethod
    def of(cls, data: Buffer) -> Self:
        """Returns that of a manifest of these bytes."""
        return cls(memoryview(data).nbytes, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class RootDocument:
    """The content of the manifest.json of a dataset of versions.

    Attributes:
        dataset: A random number that no other dataset has; of a dataset that was packed first, it follows from that.
        base: The manifest of the segment in the folder itself; None if there is none.
    """

    dataset: Identity
    base: ManifestInfo | None

    def dump(self) -> bytes:
        """The bytes of manifest.json."""
        return dump_document({"version": VERSION, **asdict(self)})


@dataclass(frozen=True)
class Layer:
    """Further fields of a segment, or other labels.

    Attributes:
        name: Name of its folder.
        manifest: Its manifest.
        fields: What is read from it: names of fields, and ``label``.
    """

    name: PartName
    manifest: ManifestInfo
    fields: tuple[FieldName, ...]


@dataclass(frozen=True)
class DroppedRows(FileInfo):
    """Rows that a version leaves out of a segment, in ``dropped/<name>.npy``.

    Attributes:
        records: How many there are.
    """

    records: Count


@dataclass(frozen=True)
class Segment:
    """A segment of a version.

    Attributes:
        name: Name of its folder, or ``base`` for the one in the dataset's folder itself.
        manifest: Its manifest.
        records: Number of its rows, the dropped ones included.
        dropped: The rows that the version leaves out; None if there are none.
        layers: What was added to it.
    """

    name: SegmentName
    manifest: ManifestInfo
    records: Count
    dropped: DroppedRows | None = None
    layers: tuple[Layer, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows that the version has of it."""
        return self.records - (0 if self.dropped is None else self.dropped.records)

    def folder(self, dataset: Path) -> Path:
        """Its folder, in the dataset's folder or that folder itself."""
        beside = dataset / SEGMENTS / self.name
        # In a staged copy all segments lie beside each other.
        return dataset if self.name == BASE and not beside.is_symlink() else beside


@dataclass(frozen=True)
class SegmentSides(FileInfo):
    """The sides of the rows of a segment, in ``sides/<name>.npy``.

    Attributes:
        segment: Name of the segment.
    """

    segment: SegmentName


@dataclass(frozen=True)
class Split:
    """The split of a version, and which side each row is on.

    Attributes:
        val: Share of the rows that is for validation, in millionths.
        test: Share for testing, in millionths.
        folds: Number of folds; 0 if rows are split in train, val and test.
        seed: What the hashes of the keys begin with.
        by: What the keys are: ``path``, ``path:REGEX`` or names of fields.
        stratified: True if each class is split by itself.
        rows: The sides of the rows of each segment; those of a segment that is not named have none.
    """

    val: Annotated[int, Between(0, WHOLE - 1)]
    test: Annotated[int, Between(0, WHOLE - 1)]
    folds: Annotated[int, Between(0, MOST_FOLDS)]
    seed: Annotated[int, Between(0, (1 << 64) - 1)]
    by: tuple[str, ...]
    stratified: bool
    rows: tuple[SegmentSides, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sides; the number of a side is its place here."""
        return tuple(f"fold-{fold}" for fold in range(self.folds)) if self.folds else ("train", "val", "test")

    def of(self, segment: str) -> SegmentSides | None:
        """The sides of the rows of a segment; None if they have none."""
        return next((each for each in self.rows if each.segment == segment), None)


@dataclass(frozen=True)
class Change:
    """The change that a version makes to the one before it.

    Attributes:
        kind: One of `CHANGES`.
        text: A line for people.
    """

    kind: Annotated[str, OneOf(CHANGES)]
    text: str


@dataclass(frozen=True)
class Version:
    """The content of a document of ``versions/``.

    Attributes:
        dataset: As in `RootDocument`.
        number: Its number, from 1.
        parent: SHA-256 of the document of the version before; None for the first one.
        writer: A random number of the process that wrote it.
        written_by: Name and version of the program that wrote it.
        created: When it was written, in seconds since 1970.
        change: What it does to the version before.
        fields: The stored fields of all segments; the image, if there is one, comes first.
        labels: Type of the labels.
        classes: Class names by label, or None.
        records: Number of rows.
        segments: The segments, whose rows stand one after the other.
        split: Which side each row is on; None if the dataset was never split.
    """

    dataset: Identity
    number: Annotated[int, Between(1, MOST)]
    parent: Sha256 | None
    writer: Identity
    written_by: str
    created: Seconds
    change: Change
    fields: tuple[FieldInfo, ...]
    labels: Labels
    classes: tuple[str, ...] | None
    records: Count
    segments: tuple[Segment, ...]
    split: Split | None = None

    @property
    def schema(self) -> Schema:
        """The fields and labels of a sample."""
        return Schema(tuple(field.plain for field in self.fields), self.labels, self.classes)

    @property
    def columns(self) -> dict[str, FileInfo]:
        """The files beside its segments that say something of their rows, by name in the dataset's folder."""
        dropped = (segment.dropped for segment in self.segments if segment.dropped is not None)
        there = {segment.name for segment in self.segments}
        sides = () if self.split is None else (each for each in self.split.rows if each.segment in there)
        return {f"{DROPPED}/{each.name}.npy": each for each in dropped} | {
            f"{SIDES}/{each.name}.npy": each for each in sides
        }

    def dump(self) -> bytes:
        """The bytes of its document.

        Raises:
            UsageError: Readers would refuse it: it is too long, or a sum in it is too large.
        """
        body = {"version": VERSION, **asdict(self), "labels": str(self.labels)}
        if self.split is None:
            del body[SPLIT]
        data, name = dump_document(body), version_name(self.number)
        try:
            if len(data) > MOST_VERSION_BYTES:
                raise ValueError(f"it would have {len(data):,} bytes, and {MOST_VERSION_BYTES:,} are read at most")
            # It stays for ever, and the dataset cannot be opened any more if it is refused.
            parse_version(data, Path(name), RootDocument(self.dataset, None), self.number)
        except (ValueError, CorruptFile) as error:
            raise UsageError(
                f"{name} cannot be written, so the dataset stays as it is ({error}): pack it anew with `packtrain pack`"
            ) from error
        return data

    def after(self, change: Change, segments: Sequence[Segment]) -> Version:
        """The version that follows this one, with the same schema; `publish` gives it its number.

        Raises:
            UsageError: It would have no row, or too many segments.
        """
        records = sum(segment.rows for segment in segments)
        require_rows(records)
        if len(segments) > MOST_SEGMENTS:
            raise UsageError(
                f"the dataset has {len(segments) - 1:,} segments, as many as a version can have: join them with "
                "`packtrain compact`, then run the same command again"
            )
        split, names = self.split, {segment.name for segment in segments}
        if split is not None:
            split = replace(split, rows=tuple(each for each in split.rows if each.segment in names))
        return replace(self, change=change, records=records, segments=tuple(segments), split=split)

    def _check(self) -> None:
        """Checks what concerns several values."""
        Schema(self.fields, self.labels, self.classes)
        if not 0 < len(self.segments) <= MOST_SEGMENTS:
            raise ValueError(f"{len(self.segments)} segments")
        names = [segment.name for segment in self.segments]
        names += [layer.name for segment in self.segments for layer in segment.layers]
        if len(set(names)) < len(names):
            raise ValueError("two segments or layers have the same name")
        for segment in self.segments:
            fields = [field for layer in segment.layers for field in layer.fields]
            if len(set(fields)) < len(fields):
                raise ValueError(f"two layers of segment {segment.name} have the same field")
            if segment.rows < 1:
                raise ValueError(f"no row is left of segment {segment.name}")
            if segment.dropped is not None:
                _require_size(segment.dropped, 8 * segment.dropped.records)
        if self.split is not None:
            if not self.split.by:
                raise ValueError("the split has no key")
            split = [each.segment for each in self.split.rows]
            if len(set(split)) < len(split) or not set(split) <= {segment.name for segment in self.segments}:
                raise ValueError("the split names a segment twice, or one that is not there")
            for segment in self.segments:
                if (sides := self.split.of(segment.name)) is not None:
                    _require_size(sides, segment.records)
        if sum(segment.rows for segment in self.segments) != self.records:
            raise ValueError("the counts of records do not add up")


def _require_size(column: FileInfo, values: int) -> None:
    """Raises ValueError if a file is said to be larger or smaller than its values: readers have it in memory."""
    if column.bytes != HEADER_BYTES + values:
        raise ValueError(f"{column.name}.npy is said to have {column.bytes} bytes, not {HEADER_BYTES + values}")


@dataclass(frozen=True)
class Pin:
    """The content of a document of ``pins/``.

    Attributes:
        number: Number of the version that is needed.
        by: Who needs it: a path or an address.
        created: Since when, in seconds since 1970.
    """

    number: Annotated[int, Between(1, MOST)]
    by: str
    created: Seconds


def require_rows(records: int) -> None:
    """Raises UsageError if a version would have no row."""
    if not records:
        raise UsageError("no row would be left: a version has at least one")


def load_root(folder: Path) -> RootDocument:
    """Reads the manifest.json of a dataset of versions.

    Raises:
        NotADataset: There is none.
        CorruptFile: It is damaged.
        UnreadableFile: It cannot be read.
    """
    return parse_root(manifest_bytes(folder), folder / MANIFEST)


def parse_root(data: bytes, path: Named) -> RootDocument:
    """Reads and checks the manifest.json of a dataset of versions, whose bytes were read from `path`.

    Raises:
        CorruptFile: It is damaged.
    """
    return parse_document(RootDocument, read_document(data, path, newest=VERSION), path)


def load_version(folder: Path, number: int | None = None, *, also_dropped: bool = False) -> Version:
    """Reads the document of a version; None: of the newest one.

    Args:
        folder: The dataset.
        number: Its number.
        also_dropped: True to read that of one that nobody may open any more.

    Raises:
        UsageError: There is no such version, or it was dropped; the message names those that there are.
        NotADataset: There is no dataset of versions.
        CorruptFile: It is damaged, or is not a version of this dataset.
        UnreadableFile: It cannot be read.
    """
    return _read_version(folder, number, also_dropped=also_dropped)[0]


def _read_version(folder: Path, number: int | None, *, also_dropped: bool = False) -> tuple[Version, bytes]:
    root, numbers = load_root(folder), version_numbers(folder)
    if not numbers:
        raise CorruptFile(f"{folder} has no version: {VERSIONS}/ is empty", file=VERSIONS)
    chosen = numbers[-1] if number is None else number
    if chosen not in numbers or (is_dropped(folder, chosen) and not also_dropped):
        if number is None and version_numbers(folder)[-1] > chosen:
            # Somebody has just made a newer one, and dropped this one.
            return _read_version(folder, None)
        live = ", ".join(str(each) for each in numbers if not is_dropped(folder, each))
        what = "was dropped" if chosen in numbers else "does not exist"
        raise UsageError(f"{folder}: version {chosen} {what}; there are {live}. `packtrain log` shows them")
    path = version_path(folder, chosen)
    with reading(path, file=version_name(chosen)):
        data = read_regular(path, MOST_VERSION_BYTES)
    return parse_version(data, path, root, chosen), data


def parse_version(data: bytes, path: Named, root: RootDocument, number: int) -> Version:
    """Reads and checks the document of a version, whose bytes were read from `path`, which need not be here.

    Raises:
        CorruptFile: It is damaged, or is another version, or one of another dataset.
    """
    version = parse_document(Version, {SPLIT: None, **read_document(data, path, newest=VERSION)}, path)
    try:
        version._check()
        if (version.dataset, version.number) != (root.dataset, number):
            raise ValueError(f"it is version {version.number} of dataset {version.dataset}")
    except (ValueError, UsageError) as error:
        raise CorruptFile(f"{path} is damaged: {error}", file=version_name(number)) from error
    return version


def load_part(path: Path, described: ManifestInfo, records: int) -> Manifest:
    """Reads the manifest of a segment or a layer, which must be the one that a version describes.

    Raises:
        CorruptFile: It is missing, or another one.
        UnreadableFile: It cannot be read.
    """
    with reading(path):
        data = read_regular(path, described.bytes)
    if ManifestInfo.of(data) != described:
        raise CorruptFile(f"{path} is damaged: it is not the manifest that the version names", file=path.name)
    manifest = Manifest.parse(data, path)
    if manifest.records != records:
        raise CorruptFile(f"{path} is damaged: {manifest.records} records, not {records}", file=path.name)
    return manifest


def segment_manifest(folder: Path, segment: Segment) -> Manifest:
    """The manifest of a segment of the dataset in `folder`; raises what `load_part` raises."""
    return load_part(segment_manifest_path(folder, segment), segment.manifest, segment.records)


def segment_manifest_path(folder: Path, segment: Segment) -> Path:
    """The file of the manifest of a segment."""
    place = segment.folder(folder)
    return place / (BASE_MANIFEST if place == folder and has_versions(folder) else MANIFEST)


def layer_manifest(folder: Path, segment: Segment, layer: Layer) -> Manifest:
    """The manifest of a layer of a segment; raises what `load_part` raises."""
    return load_part(folder / LAYERS / layer.name / MANIFEST, layer.manifest, segment.records)


def begin_versions(folder: Path) -> None:
    """Makes a dataset of versions of one that is packed, unless it is one.

    Whoever does it at the same time writes the same bytes, and a run that is stopped is simply done again. What is
    there stays, because readers may hold a lock on it.

    Raises:
        NotADataset: There is no dataset.
        OutputConflict: A link stands in the place of one of its folders.
        CorruptFile: It is damaged.
        UnreadableFile: It cannot be read.
        UsageError: What `Version.dump` raises.
    """
    require_no_links(folder)
    path = folder / MANIFEST
    data = manifest_bytes(folder)
    if is_root(data):
        return
    root, first = first_version(Manifest.parse(data, path), data)
    document = first.dump()
    make_folder(folder / VERSIONS)
    for file, content in ((folder / BASE_MANIFEST, data), (version_path(folder, 1), document), (path, root.dump())):
        if _holds(file, content):
            # Whoever wrote it may have been stopped before this.
            fsync_folder(file.parent)
        else:
            write_file(file, [content])


def _holds(path: Path, data: bytes) -> bool:
    try:
        return read_regular(path, len(data)) == data
    except OSError:
        return False


def newest_version(folder: Path) -> Version:
    """The newest version of a dataset; of one that is packed, the version 1 that `begin_versions` would write.

    Raises:
        NotADataset: There is no dataset.
        CorruptFile: It is damaged.
        UnreadableFile: It cannot be read.
    """
    data = manifest_bytes(folder)
    return load_version(folder) if is_root(data) else first_version(Manifest.parse(data, folder / MANIFEST), data)[1]


def first_version(manifest: Manifest, data: bytes) -> tuple[RootDocument, Version]:
    """The documents that a packed dataset gets, whose manifest has these bytes."""
    info = ManifestInfo.of(data)
    root = RootDocument(info.sha256[:32], info)
    return root, Version(
        dataset=root.dataset,
        number=1,
        parent=None,
        writer=root.dataset,
        written_by=manifest.written_by,
        created=0,
        change=Change("pack", f"packed {manifest.records:,} samples"),
        fields=manifest.fields,
        labels=manifest.labels,
        classes=manifest.classes,
        records=manifest.records,
        segments=(Segment(BASE, info, manifest.records),),
    )


def create_version(folder: Path, version: Version) -> bool:
    """Writes the document of a version, unless there is one with its number. Returns whether it did."""
    try:
        write_file(version_path(folder, version.number), [version.dump()], exclusive=True)
    except FileExistsError:
        return False
    return True


def publish(
    folder: Path,
    change: Callable[[Version], Version],
    create: Callable[[Path, Version], bool] = create_version,
) -> Version:
    """Writes the next version.

    Args:
        folder: The dataset.
        change: Makes the next version of the newest one, or gives that back if there is nothing to change. It is
            called again if somebody else was faster.
        create: Does what `create_version` does, also where the dataset lies elsewhere. If somebody else was faster, the
            newest version is in `folder` afterwards.

    Raises:
        PacktrainError: What `change` or `create` raises.
    """
    writer = secrets.token_hex(16)
    while True:
        newest, data = _read_version(folder, None)
        if (changed := change(newest)) is newest:
            return newest
        version = replace(
            changed,
            number=newest.number + 1,
            parent=hashlib.sha256(data).hexdigest(),
            writer=writer,
            written_by=f"packtrain {metadata.version('packtrain')}",
            created=int(time.time()),
        )
        if create(folder, version):
            return version
