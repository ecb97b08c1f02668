"""manifest.json: what a finished dataset consists of. It is written last; without it there is no dataset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Self

from .document import dump_document, load_document, parse_document
from .errors import CorruptFile, NotADataset
from .options import FORMATS, LabelSpec, StoreOptions
from .typed import MOST, Between, Form, OneOf, Spelled

VERSION: Final = 1
MANIFEST: Final = "manifest.json"
PLAN: Final = "plan.json"
REJECTS: Final = "rejects.jsonl"
INDEX: Final = "index"

Count = Annotated[int, Between(0, MOST)]
Crc32c = Annotated[int, Between(0, 0xFFFFFFFF)]
Sha256 = Annotated[str, Form("[0-9a-f]{64}", "64 hexadecimal digits")]
Prefix = Annotated[str, Form("[A-Za-z0-9_-]{1,255}", "letters, digits, - and _")]
FileName = Annotated[str, Form("[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", "the plain name of a file")]
Format = Annotated[str, OneOf(FORMATS)]
Labels = Annotated[LabelSpec, Spelled(LabelSpec.parse)]
DType = Annotated[str, Form("[<|](b1|[iu][1248]|f[248])", "the type of a column, such as <i8")]


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
class ShardInfo(FileInfo):
    """A shard and the files that belong to it.

    Attributes:
        records: Number of records in the shard.
        sidecars: Files beside the shard for other tools: DALI's index of a tar shard.
    """

    records: Count
    sidecars: tuple[FileInfo, ...] = ()


@dataclass(frozen=True)
class ColumnInfo(FileInfo):
    """A column of the index, in ``index/<name>.npy``. Its `name` has no suffix.

    Attributes:
        dtype: numpy type string, such as ``"<i8"``.
        shape: Shape of the array.
    """

    dtype: DType
    shape: tuple[Count, ...]


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

    name: Prefix
    format: Format
    store: StoreOptions
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

    def dump(self) -> bytes:
        """The bytes of manifest.json."""
        return dump_document({"version": VERSION, **asdict(self), "labels": str(self.labels)})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads and checks the manifest of the dataset in `folder`.

        Raises:
            NotADataset: There is none.
            UnsupportedVersion: It was written by a newer packtrain.
            UnreadableFile: It cannot be read.
            CorruptFile: It is damaged, or names files outside the dataset.
        """
        path = folder / MANIFEST
        try:
            body = load_document(path, newest=VERSION)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotADataset(_why_no_dataset(folder), file=MANIFEST) from error
        manifest = parse_document(cls, body, path)
        try:
            manifest._check()
        except ValueError as error:
            raise CorruptFile(f"{path} is damaged: {error}", file=MANIFEST) from error
        return manifest

    def _check(self) -> None:
        """Checks what concerns several values."""
        if self.rejects_file.name != REJECTS:
            raise ValueError(f"rejects_file.name: expected {REJECTS}, found {self.rejects_file.name}")
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError("two columns have the same name")
        for number, shard in enumerate(self.shards):
            check_shard_names(self.name, number, shard)
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
    if _has_plan(folder):
        return f"{folder} has no {MANIFEST}: packing did not finish. Run the same pack command again"
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


def _has_plan(folder: Path) -> bool:
    try:
        return (folder / PLAN).exists()
    except OSError:
        return False
