"""The files of a growing cache: what it holds, its shards, and its published states, the generations.

    CACHE/
      cache.json                        container format, fields and labels: the same for all shards
      shards/cache-000042.tar           shards, immutable once they have this name
      shards/cache-000042.index.npy     the index of one shard: a structured array with a row per sample
      generations/00000017.json         a published state: a range of shards. Readers hold a lock on it
      readers/<id>                      what a reader has handed out, see `packtrain._core.reading`
      status.json                       figures of the filler
      filler.lock                       held by the filler
      tmp/                              the shard that is being written

Shards are numbered in the order in which they were written, and samples, too. A generation is a range of both, so it
says little about each shard, and everything else is in the shard's index. None of these files is ever rewritten, except
for ``status.json``.
"""

from __future__ import annotations

import io
import os
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Self

import numpy as np
import numpy.typing as npt

from .document import dump_document, load_document, parse_document
from .errors import CorruptFile, GenerationGone, NotADataset
from .files import write_file
from .locks import Lock
from .manifest import Count, Crc32c, FieldInfo, Format, Labels, Time, shard_stem
from .opening import open_regular
from .schema import Field, Schema
from .typed import Form

CACHE: Final = "cache.json"
SHARDS: Final = "shards"
GENERATIONS: Final = "generations"
READERS: Final = "readers"
TEMPORARY: Final = "tmp"
STATUS: Final = "status.json"
FILLER_LOCK: Final = "filler.lock"
_VERSION: Final = 1
_STEM: Final = "cache"
_INDEX: Final = ".index.npy"
_DIGITS: Final = 8
_NAME: Final = re.compile(rf"(\d{{{_DIGITS},}})\.json")

Identity = Annotated[str, Form("[0-9a-f]{32}", "32 hexadecimal digits")]
Table = npt.NDArray[np.void]


@dataclass(frozen=True)
class CacheInfo:
    """The content of cache.json: what all samples of a cache have in common.

    Attributes:
        id: A random number that no other cache has.
        format: Container format of the shards.
        fields: What samples hold.
        labels: Type of their labels.
    """

    id: Identity
    format: Format
    fields: tuple[FieldInfo, ...]
    labels: Labels

    @property
    def schema(self) -> Schema:
        """What a sample holds."""
        names = Field.__dataclass_fields__
        fields = (Field(**{name: getattr(field, name) for name in names}) for field in self.fields)
        return Schema(tuple(fields), self.labels)

    @property
    def bare(self) -> bool:
        """True if values of arrays are stored alone, False if as `.npy` files; see `Manifest.bare`."""
        return self.format == "hdf5"

    def save(self, root: Path) -> None:
        """Writes cache.json, which makes the folder a cache."""
        body = {"version": _VERSION, **asdict(self), "labels": str(self.labels)}
        write_file(root / CACHE, [dump_document(body)], exclusive=True)

    @classmethod
    def load(cls, root: Path) -> Self:
        """Reads cache.json.

        Raises:
            NotADataset: There is none.
            UnsupportedVersion: It was written by a newer packtrain.
            UnreadableFile: It cannot be read.
            CorruptFile: It is damaged.
        """
        path = root / CACHE
        try:
            body = load_document(path, newest=_VERSION)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotADataset(f"{root} has no {CACHE}: not a growing cache", file=CACHE) from error
        return parse_document(cls, body, path)


@dataclass(frozen=True)
class Generation:
    """A published state of a cache: consecutive shards, oldest first.

    Attributes:
        number: Number of the generation; later ones have higher numbers.
        created_ns: When it was published, in nanoseconds since 1970.
        first_shard: Number of its oldest shard.
        first_sample: Number of the first sample of that shard. All samples of a cache are numbered consecutively.
        records: Number of samples of each shard.
        bytes: Size of each shard.
        index_crc32c: Checksum of each shard's index file.
    """

    number: Count
    created_ns: Time
    first_shard: Count
    first_sample: Count
    records: tuple[Count, ...]
    bytes: tuple[Count, ...]
    index_crc32c: tuple[Crc32c, ...]

    @property
    def end_shard(self) -> int:
        """One past the number of its newest shard."""
        return self.first_shard + len(self.records)

    @property
    def end_sample(self) -> int:
        """One past the number of its last sample."""
        return self.first_sample + sum(self.records)

    def without_oldest(self, count: int) -> Self:
        """The same without its `count` oldest shards."""
        return type(self)(
            self.number,
            self.created_ns,
            self.first_shard + count,
            self.first_sample + sum(self.records[:count]),
            self.records[count:],
            self.bytes[count:],
            self.index_crc32c[count:],
        )

    def publish(self, root: Path) -> None:
        """Writes the generation, durably and atomically. Its shards must be there."""
        body = {"version": _VERSION, **asdict(self)}
        write_file(generation_path(root, self.number), [dump_document(body)], exclusive=True)

    @classmethod
    def load(cls, root: Path, number: int) -> Self:
        """Reads a generation.

        Raises:
            GenerationGone: There is none of this number.
            UnsupportedVersion: It was written by a newer packtrain.
            UnreadableFile: It cannot be read.
            CorruptFile: It is damaged.
        """
        path = generation_path(root, number)
        try:
            body = load_document(path, newest=_VERSION)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _gone(root, number) from error
        found = parse_document(cls, body, path)
        if found.number != number or len({len(found.records), len(found.bytes), len(found.index_crc32c)}) != 1:
            raise CorruptFile(f"{path} is damaged: its values do not fit together", file=path.name)
        if not all(found.records):
            raise CorruptFile(f"{path} is damaged: it names a shard without samples", file=path.name)
        return found


def generation_path(root: Path, number: int) -> Path:
    """Path of the document of a generation."""
    return root / GENERATIONS / f"{number:0{_DIGITS}d}.json"


def generation_numbers(root: Path) -> list[int]:
    """Numbers of the generations that are there, ascending."""
    try:
        names = os.listdir(root / GENERATIONS)
    except FileNotFoundError:
        return []
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def shard_path(root: Path, suffix: str, number: int) -> Path:
    """Path of a shard; `suffix` is that of its container format."""
    return root / SHARDS / f"{shard_stem(_STEM, number)}{suffix}"


def index_path(root: Path, number: int) -> Path:
    """Path of the index of a shard."""
    return root / SHARDS / f"{shard_stem(_STEM, number)}{_INDEX}"


def index_dtype(schema: Schema) -> np.dtype[np.void]:
    """Type of a row of a shard's index.

    ``number`` is the number of the sample, ``label`` its label, and each field has the columns that it has in the index
    of a dataset (`Field.columns`): ``offset``, ``length`` and so on, with its prefix in front. Wide columns come first,
    so that each is aligned.
    """
    columns: list[tuple[str, str, tuple[int, ...]]] = [("number", "<i8", ())]
    if schema.labels.kind != "none":
        columns.append(("label", schema.labels.dtype, schema.labels.shape(1)[1:]))
    columns += [(name, dtype, ()) for name, dtype in schema.columns().items()]
    columns.sort(key=lambda column: -np.dtype(column[1]).itemsize)
    return np.dtype(columns, align=True)


def index_bytes(table: Table) -> bytes:
    """The content of an index file: an `.npy` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, table, version=(1, 0), allow_pickle=False)
    return file.getvalue()


class GenerationLease(Lock):
    """A reader's lock on a generation: none of its shards is deleted while it is held.

    A forked process does not hold it. It takes a lease of its own before it opens anything.

    Args:
        root: The cache.
        number: Number of the generation.

    Raises:
        GenerationGone: It is no longer there.
    """

    def __init__(self, root: Path, number: int) -> None:
        try:
            super().__init__(generation_path(root, number), shared=True, inherited=False, opener=_open)
        except FileNotFoundError as error:
            raise _gone(root, number) from error
        if not os.fstat(self._descriptor).st_nlink:
            # The filler removed it between opening and locking.
            self.close()
            raise _gone(root, number)


def promise(root: Path, number: int, until: float) -> bool:
    """Keeps a generation until a time, in seconds since 1970, even if nobody reads it. False if it is gone."""
    path = generation_path(root, number)
    try:
        if path.stat().st_mtime < until:
            os.utime(path, (until, until))
    except FileNotFoundError:
        return False
    return True


def retire(root: Path, number: int) -> bool:
    """Removes a generation, unless somebody holds a lease on it or it is promised. True if it is gone."""
    path = generation_path(root, number)
    try:
        if path.stat().st_mtime > time.time():
            return False
        lock = Lock(path, wait=False, opener=_open)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    with lock, suppress(FileNotFoundError):
        # A promise may have come before the lock.
        if path.stat().st_mtime > time.time():
            return False
        path.unlink()
    return True


def _open(path: Path, flags: int, mode: int) -> int:
    return open_regular(path)


def _gone(root: Path, number: int) -> GenerationGone:
    return GenerationGone(
        f"{root}: generation {number} is no longer there: its oldest samples made room for new ones. Open the cache "
        "again to read the newest generation"
    )


def is_cache(path: Path) -> bool:
    """True if there is a growing cache in this folder."""
    return (path / CACHE).exists()
