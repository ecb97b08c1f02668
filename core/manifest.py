"""manifest.json: what a finished dataset consists of. It is written last; without it there is no dataset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from .document import dump_document, load_document
from .errors import CorruptFile, NotADataset, PacktrainError
from .options import LabelSpec, StoreOptions

VERSION: Final = 1
MANIFEST: Final = "manifest.json"
PLAN: Final = "plan.json"
REJECTS: Final = "rejects.jsonl"
INDEX: Final = "index"


@dataclass(frozen=True)
class FileInfo:
    """A file of the dataset.

    Attributes:
        name: Plain name of the file, without a folder.
        bytes: Size of the file.
        crc32c: crc32c of the whole file.
    """

    name: str
    bytes: int
    crc32c: int


@dataclass(frozen=True)
class ShardInfo(FileInfo):
    """A shard and the files that belong to it.

    Attributes:
        records: Number of records in the shard.
        sidecars: Files beside the shard for other tools: DALI's index of a tar shard.
    """

    records: int
    sidecars: tuple[FileInfo, ...] = ()


@dataclass(frozen=True)
class ColumnInfo(FileInfo):
    """A column of the index, in ``index/<name>.npy``. Its `name` has no suffix.

    Attributes:
        dtype: numpy type string, such as ``"<i8"``.
        shape: Shape of the array.
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        name: Prefix of the shard names.
        format: Container format: ``"tar"``, ``"hdf5"`` or ``"lmdb"``.
        store: How pixels are stored.
        labels: Type of the labels.
        classes: Class names by label, or None.
        records: Number of records, and so of rows.
        lines: Number of lines of the list that are not blank.
        rejects: Number of refused lines.
        duplicates: Number of lines that repeat an earlier line exactly; they are packed as well.
        plan_sha256: SHA-256 of plan.json, in hexadecimal digits.
        written_by: Names and versions of the programs that wrote the dataset.
        rejects_file: The file rejects.jsonl.
        columns: The columns of the index.
        shards: The shards, by number.
    """

    name: str
    format: str
    store: StoreOptions
    labels: LabelSpec
    classes: tuple[str, ...] | None
    records: int
    lines: int
    rejects: int
    duplicates: int
    plan_sha256: str
    written_by: str
    rejects_file: FileInfo
    columns: tuple[ColumnInfo, ...]
    shards: tuple[ShardInfo, ...]

    def dump(self) -> bytes:
        """The bytes of manifest.json."""
        return dump_document({"version": VERSION, **asdict(self), "labels": str(self.labels)})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads and checks the manifest of the dataset in `folder`.

        Raises:
            NotADataset: There is none.
            UnsupportedVersion: It was written by a newer packtrain.
            CorruptFile: It is damaged, or names files outside the dataset.
        """
        path = folder / MANIFEST
        try:
            body = load_document(path, newest=VERSION)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotADataset(_why_no_dataset(folder), file=MANIFEST) from error
        try:
            return cls._parse(body)
        except (KeyError, TypeError, ValueError, AttributeError, PacktrainError) as error:
            raise CorruptFile(f"{path} is not a sound manifest: {error}", file=MANIFEST) from error

    @classmethod
    def _parse(cls, body: dict[str, Any]) -> Self:
        manifest = cls(
            **{
                **{field.name: body[field.name] for field in fields(cls)},
                "store": StoreOptions(**body["store"]),
                "labels": LabelSpec.parse(body["labels"]),
                "classes": None if body["classes"] is None else tuple(map(str, body["classes"])),
                "rejects_file": FileInfo(**body["rejects_file"]),
                "columns": tuple(
                    ColumnInfo(**{**column, "shape": tuple(column["shape"])}) for column in body["columns"]
                ),
                "shards": tuple(
                    ShardInfo(**{**shard, "sidecars": tuple(FileInfo(**item) for item in shard["sidecars"])})
                    for shard in body["shards"]
                ),
            }
        )
        manifest._check()
        return manifest

    def _check(self) -> None:
        for info in self.files():
            _check_plain_name(info.name)
            _check_counts(info.bytes, info.crc32c)
        for column in self.columns:
            _check_plain_name(column.name)
            _check_counts(column.bytes, column.crc32c, *column.shape)
        for text in (self.name, self.format, self.plan_sha256, self.written_by):
            if not isinstance(text, str):
                raise ValueError(f"{text!r} is not a text")
        _check_counts(self.records, self.lines, self.rejects, self.duplicates)
        if self.records + self.rejects != self.lines or sum(shard.records for shard in self.shards) != self.records:
            raise ValueError("the counts of records, rejects and lines do not add up")

    def files(self) -> Iterable[FileInfo]:
        """Every file directly in the dataset's folder, other than plan and manifest."""
        yield self.rejects_file
        for shard in self.shards:
            yield shard
            yield from shard.sidecars

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)


def _why_no_dataset(folder: Path) -> str:
    if not folder.exists():
        return f"there is no dataset {folder}: no such folder"
    if not folder.is_dir():
        of = f": give {folder.parent}" if (folder.parent / MANIFEST).exists() else ""
        return f"{folder} is a file, but a dataset is a folder{of}"
    if (folder / PLAN).exists():
        return f"{folder} has no {MANIFEST}: packing did not finish: run the same pack command again"
    return f"{folder} has no {MANIFEST}: not a dataset"


def _check_plain_name(name: Any) -> None:
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not a plain file name")


def _check_counts(*values: Any) -> None:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
            raise ValueError(f"{value!r} is not a count")
