"""Rows of Parquet files with images inside, as samples: of many files at once, in their order, a few rows at a time."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

from packtrain._core.errors import ListError, UnreadableFile, UsageError
from packtrain._core.opening import open_regular

from .features import Features, plain_sample
from .lists.folder import is_image_name
from .lists.parquet import is_type, open_parquet, require_pyarrow
from .options import Columns
from .sources import Refused

PARQUET: Final = (".parquet", ".pq")
_FOOTER: Final = 1 << 20
_BATCH_BYTES: Final = 2 << 20
"""About so many bytes of rows are in memory at a time: what a cache of the processor holds is copied faster."""
_MOST_ROWS: Final = 1024
_OF_SPLIT: Final = re.compile(r"(.+)-[0-9]+-of-[0-9]+|(train|validation|val|test)")
"""Stems of files that hold a split, or a piece of one."""
AnyPath = TypeVar("AnyPath", bound=PurePath)


class ParquetFile(NamedTuple):
    """A Parquet file.

    Attributes:
        path: Where it lies.
        name: What messages, rejects and the index call it; the same on any machine.
        identity: What tells its content from another; empty to take that from the file.
    """

    path: Path
    name: str
    identity: str = ""


def parquet_files(source: Path) -> list[Path]:
    """The Parquet files that a path names: it alone, those of a pattern, or those in a folder.

    Raises:
        UsageError: The folder has several splits, or several folders with such files.
    """
    if not source.is_dir():
        if source.suffix not in PARQUET:
            return []
        return (not source.exists() and sorted(map(Path, glob.glob(str(source), recursive=True)))) or [source]
    beside = [path for folder in (source, source / "data") for path in folder.glob("*") if path.suffix in PARQUET]
    return of_one_folder(source, beside or _below(source))


def of_one_folder(folder: AnyPath, files: Sequence[AnyPath]) -> list[AnyPath]:
    """Those of these files that are meant by a folder: those in it, or in its `data`, or all below, in order.

    Raises:
        UsageError: They belong to several splits, or lie in several folders.
    """
    for place in (folder, folder / "data"):
        if found := [path for path in files if path.parent == place]:
            return _of_one_split(sorted(found))
    return _of_one_split(sorted(files))


def _below(folder: Path) -> list[Path]:
    """The Parquet files in the folders below; none in an image folder, which may be large."""
    found: list[Path] = []
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if any(map(is_image_name, names)):
            return []
        found += [Path(path, name) for name in names if name.endswith(PARQUET)]
    return found


def _of_one_split(files: list[AnyPath]) -> list[AnyPath]:
    folders = sorted({path.parent for path in files})
    if len(folders) > 1:
        shown = ", ".join(map(str, folders[:5])) + ", ..." * (len(folders) > 5)
        raise UsageError(
            f"{len(folders)} folders have Parquet files: {shown}. Pack each into a dataset of its own, or name the "
            f"files that belong together by a pattern, such as {str(folders[0] / '*.parquet')!r}"
        )
    matches = [_OF_SPLIT.fullmatch(path.stem) for path in files]
    splits = sorted({match[1] or match[2] for match in matches if match})
    if len(splits) > 1:
        raise UsageError(
            f"{folders[0]} has the files of several splits: {', '.join(splits)}. Pack each into a dataset of its "
            f"own; {str(folders[0] / splits[0]) + '*' + files[0].suffix!r} as the source names the files of one"
        )
    return files


def named_files(paths: Sequence[Path]) -> list[ParquetFile]:
    """The files with the names that tell them apart: their paths from the folder that has all of them."""
    whole = [os.path.abspath(path) for path in paths]
    start = os.path.commonpath([os.path.dirname(path) for path in whole])
    return [ParquetFile(path, os.path.relpath(name, start)) for path, name in zip(paths, whole, strict=True)]


class _Group(NamedTuple):
    """A group of rows.

    Attributes:
        file: Number of the file.
        number: Number of the group in it.
        first: Number in the file of its first row.
        rows: Number of rows.
        sizes: Bytes of each column, by its name.
        missing: Columns in which a value may be missing; an empty list looks like one.
    """

    file: int
    number: int
    first: int
    rows: int
    sizes: dict[str, int]
    missing: frozenset[str]


class _Batch(NamedTuple):
    """Rows of a group that are in memory: from `first` to below `stop`."""

    first: int
    stop: int
    columns: dict[str, Any]

    def value(self, name: str, place: int) -> Any:
        """The value of a column. Of an image it is the bytes of its file, if it has them."""
        column = self.columns[name]
        if isinstance(column, tuple):
            data, path = column
            return data[place].as_py() or {"path": path[place].as_py()}
        return column[place].as_py()


class ParquetSamples:
    """The rows of Parquet files with images inside, as a map-style dataset, for readers that go forward.

    Args:
        files: The files, one after the other.
        asked: The columns that are asked for, if they are known already.

    Attributes:
        columns: The columns of samples, which the caller sets before it asks for any.
        named: True for names of classes in place of labels, where a column has names.

    Raises:
        MissingDependency: pyarrow is not installed.
        ListError: One is no Parquet file, or has other columns than the first.
    """

    columns: Columns
    named: bool = False

    def __init__(self, files: Sequence[ParquetFile], asked: Columns | None = None) -> None:
        self._files: Final = tuple(files)
        self._groups: list[_Group] = []
        self._states: list[tuple[int, int]] = []
        digest, schema = hashlib.sha256(), None
        for number, (path, name, identity) in enumerate(self._files):
            with os.fdopen(open_regular(path), "rb") as file:
                opened = open_parquet(file, name)
                self._states.append(_state(file))
                # It has the place and the size of every column of every group.
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _FOOTER))
                digest.update(f"{name} {size}\n".encode("utf-8", "surrogateescape"))
                digest.update(identity.encode() or file.read())
                schema = opened.schema_arrow if schema is None else schema
                _require_alike(schema, self._files[0].path, opened.schema_arrow, path)
                self._groups += _groups(number, name, opened.metadata, schema)
        assert schema is not None, "there is a file"
        self._starts: Final = [0, *accumulate(group.rows for group in self._groups)]
        self._digest: Final = digest.hexdigest()
        self.features: Final = Features.of(schema, asked)
        self._reader: tuple[int, Iterator[_Batch], _Batch] | None = None

    def __repr__(self) -> str:
        return f"ParquetSamples({self._digest})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reader": None}

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, row: int) -> dict[str, Any]:
        number = bisect_right(self._starts, row) - 1
        place = row - self._starts[number]
        if self._reader is None or self._reader[0] != number or place < self._reader[2].first:
            batches = self._batches(number, self.columns.names)
            self._reader = number, batches, next(batches)
        _, batches, batch = self._reader
        while place >= batch.stop:
            batch = next(batches)
            self._reader = number, batches, batch
        return self._sample(number, batch, place - batch.first)

    def look(self, row: int) -> dict[str, Any]:
        """See `Rows`."""
        number = bisect_right(self._starts, row) - 1
        small = [name for name in self.columns.names if name not in self.features.images]
        place = row - self._starts[number]
        for batch in self._batches(number, small) if small else ():
            if place < batch.stop:
                return self._sample(number, batch, place - batch.first)
        return {}

    def name(self, row: int) -> str:
        """See `Rows`: the file and the number of the row in it, as in ``train-00000-of-00002.parquet:17``."""
        number = bisect_right(self._starts, row) - 1
        group = self._groups[number]
        return f"{self._files[group.file].name}:{group.first + row - self._starts[number]}"

    def size(self, row: int) -> int:
        """See `Rows`: that of the mean row of the group."""
        group = self._groups[bisect_right(self._starts, row) - 1]
        return sum(group.sizes[name] for name in self.columns.names) // group.rows

    def missing(self) -> frozenset[str]:
        """The columns in which a value is missing, and those of images in which one may be."""
        doubted = frozenset[str]().union(*(group.missing for group in self._groups))
        return frozenset(name for name in doubted if name in self.features.images or self._has_nulls(name))

    def _has_nulls(self, name: str) -> bool:
        groups = (number for number, group in enumerate(self._groups) if name in group.missing)
        return any(batch.columns[name].null_count for number in groups for batch in self._batches(number, [name]))

    def distinct(self, column: str) -> set[str]:
        """The texts in a column."""
        found: set[Any] = set()
        for number in range(len(self._groups)):
            for batch in self._batches(number, [column]):
                for text in batch.columns[column].unique():
                    # A row of a text that is not UTF-8 is refused.
                    with suppress(UnicodeDecodeError):
                        found.add(text.as_py())
        return found - {None}

    def _sample(self, number: int, batch: _Batch, place: int) -> dict[str, Any]:
        sample = {}
        for column in batch.columns:
            try:
                sample[column] = batch.value(column, place)
            except (ValueError, ArithmeticError) as error:
                # A text that is not UTF-8, or a time that Python has no room for.
                raise Refused(f"column {column!r}: {error}") from error
        folder = self._files[self._groups[number].file].path.parent
        return plain_sample(sample, self.features, self.columns, folder, named=self.named)

    def _column(self, batch: Any, name: str) -> Any:
        column = batch.column(name)
        if name in self.features.images and is_type(column.type, "struct"):
            return column.field("bytes"), column.field("path")
        return column

    def _batches(self, number: int, names: Sequence[str]) -> Iterator[_Batch]:
        """The rows of a group, some at a time. A group may be larger than the memory."""
        group = self._groups[number]
        path, name, _ = self._files[group.file]
        rows = _BATCH_BYTES * group.rows // max(1, sum(group.sizes[each] for each in names))
        wanted = list(dict.fromkeys(names))
        most, first = max(1, min(rows, _MOST_ROWS)), 0
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                if _state(file) != self._states[group.file]:
                    raise UnreadableFile(
                        f"{path} has changed since packing began. Leave it as it is, and pack into another folder"
                    )
                opened = open_parquet(file, name)
                for found in opened.iter_batches(most, row_groups=[group.number], columns=wanted, use_threads=False):
                    yield _Batch(first, first + len(found), {each: self._column(found, each) for each in wanted})
                    first += len(found)
        except (require_pyarrow()[0].ArrowException, OSError) as error:
            raise UnreadableFile(f"{path} cannot be read: {error}. Fetch it again, or leave it out") from error
        if first < group.rows:
            raise UnreadableFile(
                f"{path} cannot be read: group {group.number} has {first} rows, and its description says {group.rows}. "
                "Fetch it again, or leave it out"
            )


def _state(file: BinaryIO) -> tuple[int, int]:
    """Size and time of a file, which tell it from one that has taken its place."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _leaves(dtype: Any) -> int:
    """In how many columns Parquet stores a type."""
    dtype = getattr(dtype, "storage_type", dtype)
    return sum(_leaves(dtype.field(number).type) for number in range(dtype.num_fields)) or 1


def _groups(file: int, name: str, metadata: Any, schema: Any) -> Iterator[_Group]:
    # By their order: a dot in the path of a leaf may belong to the name of its column.
    names = [field.name for field in schema for _ in range(_leaves(field.type))]
    if len(names) != metadata.num_columns:
        raise ListError(f"{name} cannot be read: its schemas of Parquet and of Arrow differ. Write it again")
    first = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        sizes = dict.fromkeys(names, 0)
        missing: set[str] = set()
        for place, column in enumerate(names):
            leaf = group.column(place)
            statistics = leaf.statistics
            sizes[column] += max(0, leaf.total_uncompressed_size)
            if statistics is None or not statistics.has_null_count or statistics.null_count:
                missing.add(column)
        if group.num_rows:
            yield _Group(file, number, first, group.num_rows, sizes, frozenset(missing))
        first += group.num_rows


def _require_alike(first: Any, source: Path, schema: Any, path: Path) -> None:
    """Refuse a file whose columns mean something else than those of the first file, or are not told apart."""
    if repeated := [name for name, count in Counter(schema.names).items() if count > 1]:
        raise ListError(f"{path} has more than one column {repeated[0]!r}: give each a name of its own")
    if not schema.equals(first):
        names = [name for name in schema.names if name not in first.names or schema.field(name) != first.field(name)]
        about = f": {', '.join(map(repr, names))}" if names else ""
        raise ListError(f"{path} has other columns than {source}{about}. Pack each into a dataset of its own")
    here, there = Features.of(schema).classes, Features.of(first).classes
    if names := sorted(name for name in {*here, *there} if here.get(name) != there.get(name)):
        raise ListError(
            f"{path} has other class names than {source} in column {names[0]!r}, so the same label would mean two "
            "classes. Pack each into a dataset of its own"
        )
