"""A dataset in an object store that is copied."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import override

from packtrain._core.crc import combine
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, NotADataset, NotThere, RemoteError, SourceChanged, UsageError
from packtrain._core.manifest import MANIFEST, PLAN, Manifest

from ..remote.objects import Head, Objects
from ..remote.urls import Url, is_address
from .files import Location, SourceFile
from .origin import MOST_PLAN_BYTES, FileStatus, Origin, OriginFile, RangeReader

_THREADS: Final = 16
"""Requests in flight: a single one is far from what a store can send."""
_REQUEST: Final = 8 << 20
"""Bytes per request: enough to forget how long it takes until the first one comes."""


class RemoteOrigin(Origin):
    """A folder of an object store.

    A manifest names all files, so the store need not be able to list them. Each file is looked at once before it is
    read, which gives its stamp.

    Args:
        url: Address of the folder.
        objects: What the store is read by.
        dataset: What the dataset is called in messages, if that is not its address.
    """

    def __init__(self, url: Url, objects: Objects, dataset: Path | None = None) -> None:
        self._url = url
        self._dataset = url if dataset is None else dataset
        self._objects = objects
        self._heads: dict[SourceFile, Head] = {}

    @property
    @override
    def location(self) -> Url:
        return self._url

    @property
    @override
    def threads(self) -> int:
        return _THREADS

    @property
    @override
    def request(self) -> int:
        return _REQUEST

    @override
    def manifest(self) -> Manifest:
        try:
            return self._parsed_manifest()
        except CorruptFile:
            # It may have been damaged on its way.
            return self._parsed_manifest()

    def _parsed_manifest(self) -> Manifest:
        url = self._url / MANIFEST
        try:
            data = self._objects.read(url, MOST_BYTES)
        except NotThere as error:
            raise NotADataset(self._why_no_dataset(error), file=MANIFEST) from error
        return Manifest.parse(data, url)

    @override
    def plan(self) -> bytes:
        try:
            return self._objects.read(self._url / PLAN, MOST_PLAN_BYTES)
        except NotThere as error:
            raise CorruptFile(f"{self._url}: {PLAN} is missing", file=PLAN) from error

    @override
    def at(self, file: SourceFile) -> Url:
        return self._url / file.name if file.elsewhere is None else _linked(self._url, file.name, str(file.elsewhere))

    @override
    def link_target(self, file: SourceFile) -> None:
        return None

    @override
    def statuses(self, files: Sequence[SourceFile]) -> Iterator[FileStatus]:
        def status(file: SourceFile) -> FileStatus:
            head = self._objects.head(self.at(file))
            return FileStatus(head.bytes, head.stamp, identity=None)

        pool = ThreadPoolExecutor(_THREADS)
        try:
            yield from pool.map(status, files)
        finally:
            pool.shutdown(cancel_futures=True)

    @override
    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OriginFile]:
        head = self._head(file)
        if head.bytes != file.bytes:
            raise self.changed(file, f"it has {head.bytes} bytes, but had {file.bytes} when it was packed")
        yield _RemoteFile(self, file, head.stamp)

    def read(self, file: SourceFile, view: memoryview, offset: int) -> int:
        """Fills `view` from `offset` in a file on, as far as the file goes. Returns the number of bytes."""
        part = view[: max(0, file.bytes - offset)]
        with self._watched(file):
            self._objects.read_into(self.at(file), offset, part)
        return len(part)

    def copy(self, file: SourceFile, target: int, offset: int, most: int) -> tuple[int, int]:
        """Copies `most` bytes from `offset` on, as far as the file goes. Returns their number, and their crc32c."""
        size = max(0, min(most, file.bytes - offset))
        # Another process writes it, which may outlive this one by a moment: whoever continues waits for it.
        fcntl.flock(target, fcntl.LOCK_SH)
        with self._watched(file):
            return size, self._objects.copy_into(self.at(file), offset, size, target)

    @contextmanager
    def _watched(self, file: SourceFile) -> Iterator[None]:
        """Raises SourceChanged in place of RemoteError if the file is another one than it was."""
        try:
            yield
        except RemoteError:
            before = self._head(file)
            self.forget(file)
            if self._head(file) != before:
                raise self.changed(file, "it was replaced while it was read") from None
            raise

    @override
    def stop(self) -> None:
        self._objects.close()

    @override
    def forget(self, file: SourceFile) -> None:
        self._heads.pop(file, None)

    @override
    def changed(self, file: SourceFile, what: str) -> SourceChanged:
        return SourceChanged(
            f"{self.at(file)} is not what was packed: {what}. Either it was replaced or never uploaded whole, or the "
            f"store sends wrong data. Run `packtrain verify {self._dataset}` for details, then upload it again",
            file=file.name,
        )

    def _head(self, file: SourceFile) -> Head:
        found = self._heads.get(file)
        if found is None:
            try:
                # Another thread may have been faster: the stamp has to be from before the first byte was read.
                found = self._heads.setdefault(file, self._objects.head(self.at(file)))
            except NotThere:
                raise self.changed(file, "it is missing") from None
        return found

    def _why_no_dataset(self, error: NotThere) -> str:
        with suppress(RemoteError):
            self._objects.head(self._url / PLAN)
            return (
                f"{self._url} has no {MANIFEST}: packing did not finish, or the upload did not. Run the same pack "
                "command again; of a dataset that you upload yourself, the manifest comes last"
            )
        return f"there is no dataset at {self._url}: {error}"


@dataclass(frozen=True)
class _RemoteFile:
    """A file in an object store."""

    origin: RemoteOrigin
    file: SourceFile
    stamp: str

    def clone_into(self, descriptor: int) -> bool:
        return False

    @contextmanager
    def range(self, offset: int, length: int) -> Iterator[RangeReader]:
        yield self

    def read(self, view: memoryview, offset: int) -> int:
        return self.origin.read(self.file, view, offset)

    def copy(self, target: int, offset: int, view: memoryview, checksum: int) -> tuple[int, int]:
        count, found = self.origin.copy(self.file, target, offset, len(view))
        return count, combine(checksum, found, count)


def shard_url(url: Url, manifest: Manifest, number: int) -> Url:
    """The address of a shard of the dataset at `url`, which may be linked.

    Raises:
        UsageError: It is linked, and lies where only the machine that indexed it finds it.
    """
    info = manifest.shards[number]
    if info.link is None or manifest.base is None:
        return url / info.name
    return _linked(url, info.name, f"{manifest.base}/{info.link.path}")


def shard_place(location: Location, manifest: Manifest, number: int) -> Location:
    """Where a shard of the dataset at `location` lies: the dataset may be a folder, and its shards objects.

    Raises:
        UsageError: It is linked, and cannot be found from there.
    """
    if isinstance(location, Url):
        return shard_url(location, manifest, number)
    info = manifest.shards[number]
    if not manifest.in_store or info.link is None or os.path.lexists(location / info.name):
        return manifest.shard_path(location, number)
    return Url.parse(f"{manifest.base}/{info.link.path}")


def _linked(url: Url, name: str, where: str) -> Url:
    try:
        return Url.parse(where) if is_address(where) else url.resolve(where)
    except UsageError as error:
        raise UsageError(
            f"{url}: shard {name} is linked, and {error}: index the shards again where they are now (`packtrain index`)"
        ) from error
