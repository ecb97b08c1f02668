"""Decompresses shards into a folder, where they can be indexed like any others. Only a piece is in memory at a time."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import importlib
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from packtrain._core.errors import MissingDependency, PackError, ShardFailed, UsageError
from packtrain._core.files import MiB, file_errors, make_folder, remove_temporaries, write_file
from packtrain._core.opening import open_regular
from packtrain._storage.location import Location
from packtrain._storage.remote.urls import Url

from ..engine import run_tasks
from ..parts import Part
from .headers import BLOCK, BadArchive, check_sum, compression
from .shard_files import unreadable

_PIECE: Final = MiB
_MOST_OF_SMALL: Final = 256 * MiB
_MOST_TIMES: Final = 250
"""Images hardly shrink when they are compressed, texts and labels with their tar headers to a hundredth at best."""
_MAGIC_BYTES: Final = 8
_SUFFIX: Final = re.compile(r"(\.tar)?\.(gz|bz2|xz|zst|zstd)$|\.(tgz|tbz|tbz2|txz|tzst)$", re.IGNORECASE)
_DAMAGED: Final = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError)


@dataclass(frozen=True)
class _Unpacking:
    """A task: decompress one shard.

    Attributes:
        shard: The compressed shard.
        target: Where the decompressed one goes.
    """

    shard: Path
    target: Path

    def __str__(self) -> str:
        return f"decompressing {self.shard}"


def unpacked_shards(
    shards: Sequence[Location], folder: Path, *, workers: int, part: Part | None = None
) -> list[Location]:
    """Decompresses those of the shards that are compressed.

    A shard that was decompressed before, and has not changed since, is left as it is.

    Args:
        shards: The shards; those that lie in an object store stay as they are.
        folder: Where the decompressed ones go, each with the name and the time of the compressed one, below a folder
            that is named by what the path of that one is.
        workers: Number of worker processes.
        part: Part of the shards to which decompressing is confined; None for all.

    Returns:
        All shards by their decompressed names, in the same order.

    Raises:
        PackError: A shard cannot be read, or is damaged.
        UsageError: A shard is compressed in a way that is not known here.
        MissingDependency: A package that is needed is not installed.
        NoSpace: The file system is full.
    """
    folder = Path(os.path.abspath(folder))
    places, tasks = list[Location](), []
    own = range(len(shards)) if part is None else part.shards(len(shards))
    for number, shard in enumerate(shards):
        if isinstance(shard, Url) or _compression(shard) is None:
            places.append(shard)
            continue
        of = hashlib.sha256(os.fsencode(os.path.realpath(shard))).hexdigest()[:8]
        target = folder / of / f"{_SUFFIX.sub('', shard.name)}.tar"
        places.append(target)
        if number in own and not _is_there(target, shard):
            tasks.append(_Unpacking(shard, target))
    for _ in run_tasks(_unpack, tasks, workers=min(workers, len(tasks)), on_progress=lambda _: None):
        pass
    return places


def _unpack(task: _Unpacking, report: Callable[[None], None]) -> None:
    with file_errors(task.target, ShardFailed):
        make_folder(task.target.parent)
        remove_temporaries(task.target.parent)
        write_file(task.target, _pieces(task.shard))
        modified = os.stat(task.shard).st_mtime_ns
        # The time tells whether the shard has changed, and makes the same index of it each time.
        os.utime(task.target, ns=(modified, modified))


def _pieces(shard: Path) -> Iterator[bytes]:
    """The content of a compressed file, in pieces."""
    kind = _compression(shard)
    damaged = (*_DAMAGED, _zstandard(shard).ZstdError) if kind == "zstd" else _DAMAGED
    with os.fdopen(open_regular(shard), "rb") as file:
        try:
            with _decompressed(file, kind, shard) as content:
                yield from _bounded(content, shard, os.fstat(file.fileno()).st_size)
        except (OSError, *damaged) as error:
            # bz2 says with an OSError without a number that its data is invalid.
            if isinstance(error, OSError) and error.errno is not None:
                raise unreadable(shard, error) from error
            raise PackError(
                f"{shard} is damaged: it cannot be decompressed ({error}). Write or copy it again, or leave it out"
            ) from error


def _bounded(content: Any, shard: Path, size: int) -> Iterator[bytes]:
    """The pieces of a tar. Ends with an error as soon as it is seen to be none, or is larger than any tar of samples.

    A few bytes may become any number of them, all of which would be written before anybody looks for a sample.
    """
    most, total = max(_MOST_OF_SMALL, _MOST_TIMES * size), 0
    while piece := content.read(_PIECE):
        if not total:
            _require_header(piece, shard)
        total += len(piece)
        if total > most:
            raise PackError(
                f"{shard} has {size} bytes, but more than {most} decompressed, which no archive of samples has. Leave "
                "it out, or, if you know that it is sound, decompress it yourself and index the tar file"
            )
        yield piece


def _require_header(piece: bytes, shard: Path) -> None:
    if len(piece) < _PIECE and not any(piece):
        return  # An archive without members.
    try:
        check_sum(piece[:BLOCK], 0)
    except (BadArchive, IndexError) as error:
        raise PackError(
            f"{shard} holds no tar archive: decompressed, it begins with {piece[:16]!r}. Leave it out"
        ) from error


def _decompressed(file: IO[bytes], kind: str | None, shard: Path) -> Any:
    if kind == "zstd":
        return _zstandard(shard).ZstdDecompressor().stream_reader(file, read_across_frames=True)
    openers: dict[str | None, Callable[[IO[bytes]], Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
    if kind not in openers:
        raise UsageError(f"{shard} is compressed with {kind}, which packtrain does not read: decompress it first")
    return openers[kind](file)


def _zstandard(shard: Path) -> Any:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError as error:
        raise MissingDependency(
            f"{shard} is compressed with zstd, which needs a package: `pip install zstandard`; or decompress it with "
            "`zstd -d`"
        ) from error
    return zstandard


def _compression(shard: Path) -> str | None:
    try:
        with os.fdopen(open_regular(shard), "rb", buffering=0) as file:
            return compression(file.read(_MAGIC_BYTES))
    except OSError as error:
        raise unreadable(shard, error) from error


def _is_there(target: Path, shard: Path) -> bool:
    try:
        return os.lstat(target).st_mtime_ns == os.stat(shard).st_mtime_ns
    except OSError:
        return False
