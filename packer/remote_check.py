"""Checks a dataset in an object store, shard by shard: one at a time lies on this machine for each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from packtrain._core.errors import NotThere, RemoteError
from packtrain._core.files import checksum_file
from packtrain._core.manifest import FileInfo, Manifest
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.download import download
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url
from packtrain._storage.staging.remote_origin import shard_url

from .problem import Problem, other_bytes
from .shard_check import CheckProgress, ShardCheck, ShardFindings, check_shard


@dataclass(frozen=True, kw_only=True)
class RemoteShardCheck(ShardCheck):
    """A task: fetch one shard, check it, and remove it.

    Attributes:
        url: Address of the dataset. `folder` has everything but its shards.
    """

    url: Url


def check_remote_shard(check: RemoteShardCheck, report: Callable[[CheckProgress], None]) -> ShardFindings:
    """Checks one shard."""
    report(CheckProgress(check.number, 0))
    manifest = Manifest.load(check.folder)
    info, url = manifest.shards[check.number], shard_url(check.url, manifest, check.number)
    paths = [check.folder / file.name for file in (info, *info.sidecars)]
    try:
        with closing(ObjectStore(patient=True)) as objects:
            for file, path in zip((info, *info.sidecars), paths, strict=True):
                try:
                    _fetch(objects, url if file is info else check.url / file.name, file, path)
                except RemoteError as error:
                    lost = f"; its {info.records} records are lost" if isinstance(error, NotThere) else ""
                    problem = Problem(file.name, f"{error}{lost}", unreadable=not lost)
                    return ShardFindings(check.number, info.records, (problem,))
        return check_shard(check, report)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def check_object(objects: Objects, url: Url, info: FileInfo) -> Iterator[Problem]:
    """Compares size and checksum of an object with what the manifest says, without keeping it."""
    try:
        size = objects.size(url)
        if size != info.bytes:
            yield Problem(info.name, f"has {size} bytes, {info.bytes} were written")
        elif (checksum := objects.checksum(url)) != info.crc32c:
            yield Problem(info.name, other_bytes(checksum, info.crc32c))
    except RemoteError as error:
        yield Problem(info.name, str(error), unreadable=not isinstance(error, NotThere))


def _fetch(objects: Objects, url: Url, info: FileInfo, path: Path) -> None:
    download(objects, url, path)
    if path.stat().st_size == info.bytes and checksum_file(path) != info.crc32c:
        # What went wrong on the way is no damage.
        download(objects, url, path)
