"""The files of a growing cache: cache.json, the shards, and the published states, which are called generations.

    CACHE/
      cache.json                        container format, fields and labels: the same for all shards
      shards/cache-000042.tar           shards, immutable once they have this name
      shards/cache-000042.index.npy     the index of one shard: a structured array with a row per sample
      generations/00000017.json         a published state: a range of shards. Readers hold a lock on it
      readers/<id>                      what a reader has handed out, see `packtrain._core.reader_reports`
      status.json                       figures of the filler
      filler.log                        what a filler says that outlives the process that started it
      tmp/                              the shard that is being written

Shards are numbered in the order in which they were written, and samples, too. A generation is a range of both, so it
says little about each shard, and everything else is in the shard's index. None of these files is ever rewritten, except
for ``status.json``. ``docs/format-growing-caches.md`` has the details.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Self

import numpy as np
import numpy.typing as npt

from .document import dump_document, load_document, parse_document
from .errors import CorruptFile, GenerationGone, NotADataset, UnreadableFile, UsageError
from .files import fsync_folder, write_file
from .locks import Lock
from .manifest import CACHE, MANIFEST, Count, Crc32c, Format, Labels, Time, holds, shard_stem
from .npy import table_header
from .opening import names_in, open_regular
from .options import FORMATS
from .problems import reading
from .schema import Field, Schema
from .typed import MOST, Form, is_count

SHARDS: Final = "shards"
GENERATIONS: Final = "generations"
READERS: Final = "readers"
TEMPORARY: Final = "tmp"
STATUS: Final = "status.json"
REMEDY: Final = "A growing cache cannot be repaired: delete its folder, and let it fill again"
"""The remedy for damage."""
LOG: Final = "filler.log"
_VERSION: Final = 1
_STEM: Final = "cache"
_INDEX: Final = ".index.npy"
_DIGITS: Final = 8
_NAME: Final = re.compile(rf"([0-9]{{{_DIGITS}}}|[1-9][0-9]{{{_DIGITS},18}})\.json")
_MOST_INFO_BYTES: Final = 16 << 20
_MOST_GENERATION_BYTES: Final = 64 << 20
"""Longer documents are not read: a generation of about a million shards."""
_PATIENCE: Final = 5.0
"""Seconds to wait while somebody else holds a generation alone. A filler does for as long as it takes to remove it."""
_ROUNDING: Final = 0.001
_LOOK: Final = 0.001
_CLOCK_STEP: Final = 60.0
"""Seconds by which a clock may be put back without ending promises."""

Identity = Annotated[str, Form("[0-9a-f]{32}", "32 hexadecimal digits")]
Table = npt.NDArray[np.void]


@dataclass(frozen=True)
class CacheInfo:
    """The content of cache.json: what all samples of a cache have in common.

    Attributes:
        id: A random number that no other cache has.
        format: Container format of the shards.
        fields: Fields of the samples.
        labels: Type of their labels.
    """

    id: Identity
    format: Format
    fields: tuple[Field, ...]
    labels: Labels

    @cached_property
    def schema(self) -> Schema:
        """Schema of the samples.

        Raises:
            UsageError: The fields do not fit together.
        """
        return Schema(self.fields, self.labels)

    @property
    def bare(self) -> bool:
        """True if values of arrays are stored alone, False if as `.npy` files; see `Manifest.bare`."""
        return FORMATS[self.format].bare

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
        with advising(REMEDY, CACHE):
            try:
                body = load_document(path, newest=_VERSION, most=_MOST_INFO_BYTES, below=root)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotADataset(_why_no_cache(root), file=CACHE) from error
            info = parse_document(cls, body, path)
            try:
                if not Schema(info.fields, info.labels).fields:
                    raise UsageError("a dataset without a field")
            except UsageError as error:
                raise CorruptFile(f"{path} is damaged: {error}", file=CACHE) from error
        return info


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
        """Return the generation without its `count` oldest shards."""
        return replace(
            self,
            first_shard=self.first_shard + count,
            first_sample=self.first_sample + sum(self.records[:count]),
            records=self.records[count:],
            bytes=self.bytes[count:],
            index_crc32c=self.index_crc32c[count:],
        )

    def publish(self, root: Path) -> None:
        """Writes the generation, durably and atomically. Its shards must be there.

        Raises:
            FileExistsError: There is a generation of this number.
        """
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
        file = f"{GENERATIONS}/{path.name}"
        with advising(f"If there are later generations, delete this file: they are read without it. {REMEDY}", file):
            try:
                body = load_document(path, newest=_VERSION, most=_MOST_GENERATION_BYTES, below=root)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise _gone(root, number) from error
            found = parse_document(cls, body, path)
            if problem := found._problem(number):
                raise CorruptFile(f"{path} is damaged: {problem}", file=file)
        return found

    def _problem(self, number: int) -> str | None:
        """Return what is wrong with values that belong together; None if nothing is."""
        if self.number != number:
            return f"it says that it is generation {self.number}"
        if not len(self.records) == len(self.bytes) == len(self.index_crc32c):
            return f"it has {len(self.records)} records, {len(self.bytes)} bytes, {len(self.index_crc32c)} index_crc32c"
        if not self.records:
            return "it has no shard"
        if not all(self.records):
            return f"shard {self.first_shard + self.records.index(0)} has no sample"
        if max(self.end_shard, self.end_sample, sum(self.bytes)) > MOST:
            return "its numbers are too large"
        return None


def generation_path(root: Path, number: int) -> Path:
    """Path of the document of a generation."""
    return root.joinpath(GENERATIONS, f"{number:0{_DIGITS}d}.json")


def generation_numbers(root: Path) -> list[int]:
    """Numbers of the generations that are there, ascending.

    Raises:
        CorruptFile: Their folder is not a folder.
        UnreadableFile: It cannot be read.
    """
    folder = root / GENERATIONS
    with reading(folder):
        try:
            names = names_in(folder, root)
        except FileNotFoundError:
            return []
    numbers = (int(found[1]) for name in names if (found := _NAME.fullmatch(name)))
    return sorted(filter(is_count, numbers))


def shard_path(root: Path, suffix: str, number: int) -> Path:
    """Path of a shard; `suffix` is that of its container format."""
    return root.joinpath(SHARDS, f"{shard_stem(_STEM, number)}{suffix}")


def index_path(root: Path, number: int) -> Path:
    """Path of the index of a shard."""
    return root.joinpath(SHARDS, f"{shard_stem(_STEM, number)}{_INDEX}")


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
    """The content of an index file: an `.npy` file. `table` [samples] has the type that `index_dtype` says."""
    return table_header(table.dtype, len(table)) + table.tobytes()


class GenerationLease(Lock):
    """A reader's lock on a generation: none of its shards is deleted while it is held.

    A forked process does not hold it. It takes a lease of its own before it opens anything.

    Args:
        root: The cache.
        number: Number of the generation.

    Raises:
        GenerationGone: It is no longer there.
        CorruptFile: It is not a file.
        UnreadableFile: It cannot be opened; or another process, which is not a filler, has locked it for long.
    """

    def __init__(self, root: Path, number: int) -> None:
        path = generation_path(root, number)
        try:
            with reading(path, file=f"{GENERATIONS}/{path.name}", missing=False):
                self._take(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _gone(root, number) from error
        if not os.fstat(self._descriptor).st_nlink:
            # The filler removed it between opening and locking.
            self.close()
            raise _gone(root, number)

    def _take(self, path: Path) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return super().__init__(path, shared=True, wait=False, inherited=False, opener=_open)
            except BlockingIOError as error:
                # Never wait in the kernel: anybody who may read a file can lock it, and keep the lock.
                if time.monotonic() > deadline:
                    raise UnreadableFile(
                        f"{path} cannot be read: another process keeps it locked, `fuser -v "
                        f"{shlex.quote(os.fspath(path))}` shows which. End that process",
                        file=f"{GENERATIONS}/{path.name}",
                    ) from error
            time.sleep(_LOOK)


def promise(root: Path, number: int, until: float) -> bool:
    """Keep a generation until a time, in seconds since 1970, even if nobody reads it.

    Returns:
        False if it is gone, or if this user may not change the cache.
    """
    try:
        with GenerationLease(root, number) as lease:
            status = os.fstat(lease.fileno())
            if not promised(status) or status.st_mtime < until:
                os.utime(lease.fileno(), (until, until))
    except (GenerationGone, OSError):
        return False
    return True


def promised(status: os.stat_result) -> float:
    """Return for how many seconds a generation is promised, by the status of its file; 0 if it is not promised.

    A promise sets the time of the last change into the future, as seen from the moment in which that is done, which the
    kernel notes. So a file that was only written is no promise, even if the clock has been put back since. A promise
    that was given at a time that is still to come is void: nobody knows how long it has been kept.
    """
    now = time.time()
    if status.st_mtime <= status.st_ctime or status.st_ctime > now + _CLOCK_STEP:
        return 0.0
    return max(0.0, status.st_mtime - now)


def shorten(root: Path, number: int, promised: float, until: float) -> None:
    """End a promise earlier, unless somebody else has made another one since.

    Args:
        root: The cache's folder.
        number: Number of the generation.
        promised: Until when it was promised.
        until: When the promise is to end.
    """
    # A file system may round times.
    with suppress(GenerationGone, OSError), GenerationLease(root, number) as lease:
        if until < promised and abs(os.fstat(lease.fileno()).st_mtime - promised) < _ROUNDING:
            os.utime(lease.fileno(), (until, until))


def retire(root: Path, number: int) -> bool:
    """Remove a generation, durably, unless somebody holds a lease on it or it is promised. Return True if it is gone.

    Raises:
        OSError: It cannot be opened or removed.
    """
    path = generation_path(root, number)
    try:
        lock = Lock(path, wait=False, opener=_open)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    with lock:
        # Whoever promises holds a lease meanwhile, so no promise comes between this look and the removal.
        if promised(os.fstat(lock.fileno())):
            return False
        path.unlink(missing_ok=True)
        # Otherwise a crash could bring it back, without its shards.
        fsync_folder(path.parent)
    return True


def _open(path: Path, flags: int, mode: int) -> int:
    # A link could lead to a file of this user's, which would be locked, and whose time a promise would change.
    return open_regular(path, below=path.parents[1])


def _gone(root: Path, number: int) -> GenerationGone:
    return GenerationGone(
        f"{root}: generation {number} is no longer there: its oldest samples made room for new ones. Open the cache "
        "again to read the newest generation"
    )


@contextmanager
def advising(what: str, file: str) -> Iterator[None]:
    """Add advice to an error about a damaged file, and the name of the file, relative to the cache."""
    try:
        yield
    except CorruptFile as error:
        raise CorruptFile(f"{error}. {what}", file=file) from error


def _why_no_cache(root: Path) -> str:
    if holds(root, MANIFEST):
        return f"{root} is a packed dataset, not a growing cache: read it with packtrain.open_dataset"
    if not os.path.lexists(root):
        return f"there is no growing cache {root}: no such folder. `packtrain fill` makes one"
    if not os.path.isdir(root):
        return f"{root} is a file, but a growing cache is a folder"
    return f"{root} has no {CACHE}: not a growing cache, or nothing has been written to it yet"
