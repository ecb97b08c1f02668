"""manifest.json: what a finished dataset consists of. It is written last; without it there is no dataset."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Self

from .document import MOST_BYTES, Named, dump_document, parse_document, read_document
from .errors import CorruptFile, NotADataset, UnsupportedVersion, UsageError
from .opening import read_regular
from .options import FORMATS, LabelSpec, StoreOptions
from .paths import is_address, without_credentials
from .problems import reading
from .schema import Field, Schema, image_field
from .typed import MOST, Between, Form, OneOf, Spelled

VERSION: Final = 2
"""The version of plan and manifest of any fields with records. Those of an image and a label are still version 1."""
NEWEST: Final = 3
"""The newest version: fields lie in the index, or there are labels alone, or it is that of a dataset of versions."""
MANIFEST: Final = "manifest.json"
PLAN: Final = "plan.json"
REJECTS: Final = "rejects.jsonl"
INDEX: Final = "index"
HEADER_BYTES: Final = 128
"""Length of nearly every header of an .npy file: of all whose shape takes fewer than some 60 characters."""
VERSIONS: Final = "versions"
"""Folder of the versions of a dataset that was changed, see `packtrain._core.versions`."""
CACHE: Final = "cache.json"
"""The file of a growing cache in place of a manifest, see `packtrain._core.generations`."""
LINKED_SUFFIX: Final = ".tar"
"""The ending of the names of linked shards."""
_WITH_CREDENTIALS: Final = (
    "is an address with credentials or a query, which packtrain neither stores nor prints: index the shards again"
)
_IDENTITY: Final = ("label", "path_bytes", "path_offsets")

Count = Annotated[int, Between(0, MOST)]
Crc32c = Annotated[int, Between(0, 0xFFFFFFFF)]
Sha256 = Annotated[str, Form("[0-9a-f]{64}", "64 hexadecimal digits")]
Prefix = Annotated[str, Form("[A-Za-z0-9_-]{1,255}", "letters, digits, - and _")]
FileName = Annotated[str, Form("[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", "the plain name of a file")]
Format = Annotated[str, OneOf(tuple(FORMATS))]
Labels = Annotated[LabelSpec, Spelled(LabelSpec.parse)]
DType = Annotated[str, Form("[<|](b1|[iu][1248]|f[248])", "the type of a column, such as <i8")]
LinkPath = Annotated[
    str, Form(r"(?!\.{1,2}(/|$))[^/\0]+(/(?!\.{1,2}(/|$))[^/\0]+)*", "a relative path without . and ..")
]
Time = Annotated[int, Between(-MOST, MOST)]


@dataclass(frozen=True)
class FileInfo:
    """A file of the dataset.

    Attributes:
        name: Plain name of the file, without a folder.
        bytes: Size of the file.
        crc32c: crc32c of the whole file.
    """

    name: FileName
    bytes: Count
    crc32c: Crc32c


@dataclass(frozen=True)
class Link:
    """Link to a shard that somebody else wrote, with its state when it was indexed.

    Attributes:
        path: Its path, relative to the manifest's `base`, with ``/`` between the parts.
        modified_ns: Time of its last change, in nanoseconds since 1970.
        etag: The entity tag that an object store gave for it, or None.
    """

    path: LinkPath
    modified_ns: Time
    etag: str | None = None


@dataclass(frozen=True)
class ShardInfo(FileInfo):
    """A shard and the files that belong to it.

    Attributes:
        records: Number of records in the shard.
        sidecars: Files beside the shard for other tools: DALI's index of a tar shard.
        link: Where it lies, if that is not the dataset's folder; a staged copy has it there all the same.
    """

    records: Count
    sidecars: tuple[FileInfo, ...] = ()
    link: Link | None = None


@dataclass(frozen=True)
class FieldInfo(Field):
    """A field, and what its records amount to.

    Attributes:
        bytes: Size of all its records; None if it was not recorded, as in version 1.
        maximum: Size of its largest record; None if it was not recorded.
        missing: Number of rows without it.
    """

    bytes: Count | None = None
    maximum: Count | None = None
    missing: Count = 0

    @classmethod
    def of(cls, field: Field, bytes: int | None = None, maximum: int | None = None, missing: int = 0) -> Self:
        """A field with its figures."""
        return cls(**vars(field), bytes=bytes, maximum=maximum, missing=missing)

    @property
    def plain(self) -> Field:
        """The field without its figures."""
        return Field(**{name: getattr(self, name) for name in Field.__dataclass_fields__})


@dataclass(frozen=True)
class ColumnInfo(FileInfo):
    """A column of the index, in ``index/<name>.npy``. Its `name` has no suffix.

    Attributes:
        dtype: numpy type string, such as ``"<i8"``.
        shape: Shape of the array.
    """

    dtype: DType
    shape: tuple[Count, ...]

    @property
    def file(self) -> str:
        """Name of its file in the dataset's folder."""
        return f"{INDEX}/{self.name}.npy"


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        name: Prefix of the shard names.
        format: Container format: ``"tar"``, ``"hdf5"`` or ``"lmdb"``.
        fields: The stored fields; the image, if there is one, comes first.
        labels: Type of the labels.
        classes: Class names by label, or None.
        records: Number of samples, and so of rows.
        lines: Number of lines of the list that are not blank.
        rejects: Number of refused lines.
        duplicates: Number of lines that repeat an earlier line exactly; they are packed as well.
        plan_sha256: SHA-256 of plan.json, in hexadecimal digits.
        written_by: Names and versions of the programs that wrote the dataset.
        rejects_file: The file rejects.jsonl.
        columns: The columns of the index.
        shards: The shards, by number.
        base: Folder that the paths of linked shards start from, absolute or relative to the dataset's; None if no shard
            is linked.
    """

    name: Prefix
    format: Format
    fields: tuple[FieldInfo, ...]
    labels: Labels
    classes: tuple[str, ...] | None
    records: Count
    lines: Count
    rejects: Count
    duplicates: Count
    plan_sha256: Sha256
    written_by: str
    rejects_file: FileInfo
    columns: tuple[ColumnInfo, ...]
    shards: tuple[ShardInfo, ...]
    base: str | None = None

    @cached_property
    def schema(self) -> Schema:
        """The fields and labels of a sample."""
        return Schema(tuple(field.plain for field in self.fields), self.labels, self.classes)

    @property
    def store(self) -> StoreOptions:
        """Store options of the image.

        Raises:
            UsageError: The samples have no image.
        """
        image = self.schema.image
        if image is None or image.store is None:
            raise UsageError(f"samples of this dataset have no image, but {', '.join(self.schema.names)}")
        return image.store

    @property
    def in_store(self) -> bool:
        """True if the shards are linked, and lie in an object store whatever folder the dataset is in."""
        return self.base is not None and is_address(self.base)

    @property
    def bare(self) -> bool:
        """True if arrays, raw masks and raw images are stored as their values alone, False if as `.npy` files."""
        return FORMATS[self.format].bare

    @property
    def version(self) -> int:
        """Version of the document: 1 if that can say everything."""
        return document_version(self.schema, plain=self.base is None)

    def dump(self) -> bytes:
        """The bytes of manifest.json."""
        body = {"version": self.version, **asdict(self), "labels": str(self.labels)}
        if self.version == 1:
            body = as_version_1(body, "base")
            for shard in body["shards"]:
                del shard["link"]
        return dump_document(body)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads and checks the manifest of the dataset in `folder`.

        Raises:
            NotADataset: There is none.
            UnsupportedVersion: It was written by a newer packtrain.
            UnreadableFile: It cannot be read.
            CorruptFile: It is damaged, or names files outside the dataset.
        """
        return cls.parse(manifest_bytes(folder), folder / MANIFEST)

    @classmethod
    def parse(cls, data: bytes, path: Named) -> Self:
        """Reads and checks the manifest whose bytes were read from `path`, which need not be on this machine.

        Raises:
            UnsupportedVersion: It was written by a newer packtrain.
            CorruptFile: It is damaged, or names files outside the dataset.
        """
        body = read_document(data, path, newest=NEWEST)
        if body["version"] == NEWEST and "dataset" in body:
            where = os.path.dirname(str(path))
            raise UnsupportedVersion(
                f"{where} has versions, which `packtrain log {shlex.quote(where)}` shows; this does not work on them "
                "yet. open_dataset reads them",
                file=MANIFEST,
            )
        if body["version"] < 2:
            body = from_version_1(body, FieldInfo.of(image_field(StoreOptions())), base=None)
            if isinstance(shards := body.get("shards"), list):
                body["shards"] = [{"link": None, **shard} if isinstance(shard, dict) else shard for shard in shards]
        manifest = parse_document(cls, body, path)
        try:
            manifest._check()
            require_version(body["version"], manifest.schema)
        except (ValueError, UsageError) as error:
            raise CorruptFile(f"{path} is damaged: {error}", file=MANIFEST) from error
        return manifest

    def _check(self) -> None:
        """Checks what concerns several values."""
        Schema(self.fields, self.labels, self.classes)
        if self.shards and not self.schema.stored:
            raise ValueError("shards, but no field that has records")
        if self.rejects_file.name != REJECTS:
            raise ValueError(f"rejects_file.name: expected {REJECTS}, found {self.rejects_file.name}")
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError("two columns have the same name")
        if self.base is not None and without_credentials(self.base) != self.base:
            raise ValueError(f"base {_WITH_CREDENTIALS}")
        in_store = self.in_store
        for number, shard in enumerate(self.shards):
            if shard.link is None:
                check_shard_names(self.name, number, shard)
            elif self.base is None or shard.sidecars:
                raise ValueError(f"shards[{number}]: a link {'with sidecars' if shard.sidecars else 'without a base'}")
            elif not shard.name.endswith(LINKED_SUFFIX):
                # Any other name may be that of a file of the dataset, or of its staged copy.
                raise ValueError(f"shards[{number}]: a link with a name that does not end in {LINKED_SUFFIX}")
            else:
                os.fsencode(shard.link.path)
                address = f"{self.base}/{shard.link.path}"
                if in_store and without_credentials(address) != address:
                    raise ValueError(f"shards[{number}] {_WITH_CREDENTIALS}")
        if len({shard.name for shard in self.shards}) < len(self.shards):
            raise ValueError("two shards have the same name")
        if any(field.missing > (self.records if field.optional else 0) for field in self.fields):
            raise ValueError("more samples are without a field than can be")
        if self.base is not None and (not os.fsencode(self.base) or "\0" in self.base):
            raise ValueError("base is not a path")
        in_shards = sum(shard.records for shard in self.shards)
        if not self.shards and not self.schema.stored:
            in_shards = self.records
        if self.records + self.rejects != self.lines or in_shards != self.records:
            raise ValueError("the counts of records, rejects and lines do not add up")

    def shard_path(self, folder: Path, number: int) -> Path:
        """Return the path of shard `number` of the dataset in `folder`: there, or elsewhere if it is linked."""
        shard = self.shards[number]
        path = folder / shard.name
        if shard.link is None or self.base is None or os.path.lexists(path):
            return path
        return folder / self.base / shard.link.path

    def modified_ns(self, folder: Path, number: int) -> int | None:
        """When shard `number` was last changed, if it is read where it is linked; None for a file of the dataset.

        A staged copy of a linked shard has its name in the folder, and a time of its own.
        """
        info, path = self.shards[number], self.shard_path(folder, number)
        if info.link is None or (path == folder / info.name and not path.is_symlink()):
            return None
        return info.link.modified_ns

    def files(self) -> Iterable[FileInfo]:
        """Every file of the dataset other than plan, manifest and index, by the name it has in the dataset's folder."""
        yield self.rejects_file
        for shard in self.shards:
            yield shard
            yield from shard.sidecars

    @property
    def identity(self) -> str:
        """Says which sample each row is: the same however a list was packed, another one for other or moved rows."""
        named = [column for column in self.columns if column.name in _IDENTITY]
        texts = sorted(f"{column.name} {column.bytes} {column.crc32c:08x}" for column in named)
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)


def document_version(schema: Schema, *, plain: bool) -> int:
    """Version of the plan or manifest of a dataset: 1, if it is `plain`, or 2 if these can say everything."""
    if _is_newest(schema):
        return NEWEST
    return 1 if plain and schema.plain else VERSION


def require_version(version: int, schema: Schema) -> None:
    """Checks that a document of this version can have these fields.

    Raises:
        ValueError: It cannot.
    """
    if version < NEWEST and _is_newest(schema):
        raise ValueError(f"fields that lie in the index, or none at all, in a document of version {version}")


def _is_newest(schema: Schema) -> bool:
    return bool(schema.indexed) or not schema.fields


def from_version_1(body: dict[str, Any], image: Field, **absent: Any) -> dict[str, Any]:
    """The document of version 2 that says the same as one of version 1, which knows the options of an image alone.

    Args:
        body: The document.
        image: Its only field; what it says of the field's store does not count.
        absent: What documents of version 1 do not have, and its value.
    """
    if body.keys() & {"fields", *absent}:
        # Of neither version, which parsing it says.
        return body
    fields = [{**vars(image), "store": body.get("store")}]
    return {**{name: value for name, value in body.items() if name != "store"}, "fields": fields, **absent}


def as_version_1(body: dict[str, Any], *absent: str) -> dict[str, Any]:
    """The document of version 1 that says the same as one of version 2 about an image and a label alone."""
    store = body["fields"][0]["store"]
    old = {"store" if name == "fields" else name: value for name, value in body.items() if name not in absent}
    return {**old, "store": store}


def manifest_bytes(folder: Path) -> bytes:
    """The manifest.json of a dataset, whichever document that is.

    Raises:
        NotADataset: There is none.
        UnreadableFile: It cannot be read.
        CorruptFile: It is no file, or too large.
    """
    path = folder / MANIFEST
    try:
        with reading(path, missing=False):
            return read_regular(path, MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotADataset(why_no_dataset(folder), file=MANIFEST) from error


def why_no_dataset(folder: Path) -> str:
    """Says why there is no dataset in a folder."""
    if not folder.exists():
        return f"there is no dataset {folder}: no such folder"
    if not folder.is_dir():
        of = f": give {folder.parent}" if (folder.parent / MANIFEST).exists() else ""
        return f"{folder} is a file, but a dataset is a folder{of}"
    if holds(folder, CACHE):
        return (
            f"{folder} is a growing cache, not a packed dataset: read it with packtrain.GrowingCache(path).dataset(). "
            f"`packtrain status {shlex.quote(os.fspath(folder))}` shows its progress"
        )
    if holds(folder, PLAN):
        return (
            f"{folder} has no {MANIFEST}: packing did not finish. Run the same pack command again; if it is packed in "
            f"parts (--part), `packtrain status {shlex.quote(os.fspath(folder))}` says what is left to do"
        )
    return f"{folder} has no {MANIFEST}: not a dataset"


def shard_stem(name: str, number: int) -> str:
    """Returns what the names of a shard and of its sidecars begin with, up to the dot."""
    return f"{name}-{number:06d}"


def check_shard_names(name: str, number: int, shard: ShardInfo) -> None:
    """Checks that a shard and its sidecars are called ``NAME-NNNNNN.*``, so that they are in nobody's way.

    Args:
        name: Prefix of the shard names.
        number: Number of the shard.
        shard: The shard.

    Raises:
        ValueError: One of them has another name, or two have the same.
    """
    names = [file.name for file in (shard, *shard.sidecars)]
    stem = shard_stem(name, number)
    for file in names:
        if file.partition(".")[0] != stem:
            raise ValueError(f"shards[{number}]: {file} is not called {stem}.*")
    if len(set(names)) < len(names):
        raise ValueError(f"shards[{number}]: two of its files have the same name")


def is_dataset(folder: Path) -> bool:
    """True for a folder that holds a dataset, finished or not."""
    # A folder of images may hold the manifest of another program.
    return folder.is_dir() and (
        any((folder / name).exists() for name in (PLAN, CACHE))
        or ((folder / MANIFEST).exists() and any((folder / name).is_dir() for name in (INDEX, VERSIONS)))
    )


def holds(folder: Path, name: str) -> bool:
    """True if there is something of this name in the folder; False also if nobody may know."""
    try:
        return (folder / name).exists()
    except OSError:
        return False
