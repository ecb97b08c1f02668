"""Opens datasets in object stores, whose records are read from a copy or through a bounded cache on this machine."""

from __future__ import annotations

import os

from packtrain._core.errors import UsageError
from packtrain._core.sizes import byte_count
from packtrain._storage.location import location_of, object_store
from packtrain._storage.remote.urls import Url
from packtrain._storage.staging.options import StageOptions, options_from
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.opening import VersionStream, open_stream, open_version

from .sound import Check
from .store import RecordStore


def open_streamed(
    path: str | os.PathLike[str],
    stage: str | os.PathLike[str] | StageOptions | None,
    budget: str | int | None,
    *,
    io: str,
    check: Check,
) -> RecordStore:
    """Opens a dataset in an object store.

    Args:
        path: Its address; or its folder, if only the shards are in the store.
        stage: The folder for copies and caches, or options that name it.
        budget: How much the cache may take, in bytes or as a text such as ``"200GiB"``; None: as much as everything.
        io: See `RecordStore`.
        check: See `RecordStore`.

    Raises:
        UsageError: An argument is of the wrong type, or there is no folder.
        PacktrainError: What `open_stream` raises.
    """
    location = location_of(path)
    if stage is None:
        raise UsageError(
            f"{location} is in an object store: name a folder for its local cache, and the cache's maximum size: "
            f'open_dataset("{location}", stage="/nvme", budget="200GiB"); without budget=, all of it is kept'
        )
    limit, objects = None if budget is None else byte_count("budget", budget), object_store()
    try:
        opened = open_stream(location, options_from(stage), limit, objects, check=bool(check))
    finally:
        objects.close()
    if isinstance(opened, ChunkCache):
        return RecordStore(opened.dataset, io=io, check=check, chunks=opened)
    # The lease of `opened` is released at the end of the function, when the store holds its own.
    return RecordStore(opened.path, io=io, check=check, copied=True)


def open_streamed_version(
    location: Url,
    stage: str | os.PathLike[str] | StageOptions,
    budget: str | int,
    number: int | None,
    *,
    check: Check,
) -> VersionStream:
    """Opens a version of a dataset in an object store; arguments and errors are those of `open_streamed`."""
    limit, objects = byte_count("budget", budget), object_store()
    try:
        return open_version(location, options_from(stage), limit, objects, number=number, check=bool(check))
    finally:
        objects.close()
