"""Opens the records of a dataset where they are, staged, or in an object store. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from packtrain._core.arguments import unexpected
from packtrain._core.errors import DatasetError, StagingError, UnsupportedVersion, UsageError
from packtrain._core.manifest import Manifest
from packtrain._core.paths import is_url, local_path
from packtrain._core.sizes import byte_count
from packtrain._core.versions import Version, load_version, segment_manifest
from packtrain._storage.location import Location, location_of, object_store, real, remote_base
from packtrain._storage.remote.urls import Url

from .sound import Check
from .store import RecordStore

if TYPE_CHECKING:
    from packtrain._storage.staging.options import StageOptions
    from packtrain._storage.streams.client import ChunkCache

    Stage = str | os.PathLike[str] | StageOptions


def open_store(
    path: str | os.PathLike[str],
    stage: Stage | None,
    budget: str | int | None,
    *,
    io: str = "auto",
    check: Check = True,
) -> RecordStore:
    """Opens the records of a dataset; arguments and errors are those of `open_dataset`."""
    stage = _checked_stage(stage)
    url = is_url(os.fspath(path))
    elsewhere = not url and (stage is not None or budget is not None) and _has_shards_elsewhere(Path(path))
    if url or (elsewhere and stage is not None):
        return _streamed(location_of(path), stage, budget, io, check)
    if not elsewhere:
        _require_no_budget(os.fspath(path), budget)
    if stage is None:
        # Says where the shards are if they lie elsewhere.
        return RecordStore(path, io=io, check=check)
    from packtrain._storage.staging.stager import stage as staged

    # The lease of the copy is released at the end of the function, when the store holds its own.
    copied = staged(path, stage)
    return RecordStore(copied.path, io=io, check=check)


def _streamed(location: Location, stage: Stage | None, budget: str | int | None, io: str, check: Check) -> RecordStore:
    if stage is None:
        raise UsageError(
            f"{location} is in an object store: name a folder for its local cache, and the cache's maximum size: "
            f'open_dataset("{location}", stage="/nvme", budget="200GiB"); without budget=, all of it is kept'
        )
    from packtrain._storage.staging.options import options_from
    from packtrain._storage.streams.client import ChunkCache
    from packtrain._storage.streams.opening import open_stream

    limit = None if budget is None else byte_count("budget", budget)
    with closing(object_store()) as objects:
        opened = open_stream(location, options_from(stage), limit, objects, check=bool(check))
    if isinstance(opened, ChunkCache):
        return RecordStore(opened.dataset, io=io, check=check, chunks=opened)
    # Its lease is released as that of a copy above.
    return RecordStore(opened.path, io=io, check=check, copied=True)


def open_version(
    location: Location, stage: Stage | None, budget: str | int | None, number: int | None, *, check: Check
) -> tuple[Path, Mapping[str, ChunkCache], bool, object]:
    """Opens a version of a dataset that was changed; arguments and errors are those of `open_dataset`.

    Returns:
        Its folder; the caches that segments are read from, by the names of these; whether shards of the version lie in
        an object store, and it is staged; and what keeps all that from being evicted.
    """
    remote = isinstance(location, Url)
    if isinstance(location, Path) and (stage is not None or budget is not None):
        remote = _has_shards_elsewhere(location, load_version(location, number))
    if not remote:
        _require_no_budget(str(location), budget)
    if stage is None:
        assert isinstance(location, Path), "what lies at an address is staged"
        # Who opens its segments says where their shards are if they lie elsewhere.
        return location, {}, False, None
    if budget is None:
        from packtrain._storage.staging.stager import stage as staged

        copied = staged(location, stage, version=number)
        return copied.path, {}, remote, copied
    from packtrain._storage.staging.options import options_from
    from packtrain._storage.streams.opening import open_version as open_stream

    limit = byte_count("budget", budget)
    with closing(object_store()) as objects:
        stream = open_stream(real(location), options_from(stage), limit, objects, number=number, check=bool(check))
    return stream.path, stream.caches, remote, stream


def _has_shards_elsewhere(folder: Path, version: Version | None = None) -> bool:
    """True for a folder of this machine whose shards, or those of a segment of a version, are objects in a store.

    Raises:
        UnsupportedVersion: It is a dataset of versions, and none is given; or a newer packtrain wrote it.
    """
    try:
        if version is None:
            return remote_base(folder, Manifest.load(folder)) is not None
        manifests = ((each.folder(folder), segment_manifest(folder, each)) for each in version.segments)
        return any(remote_base(*each) is not None for each in manifests)
    except UnsupportedVersion:
        raise
    except (DatasetError, OSError):
        # Who opens it says what is wrong.
        return False


def _require_no_budget(path: str, budget: str | int | None) -> None:
    if budget is not None:
        raise UsageError(
            f"budget={budget!r}: {path} is on this machine, and only the cache of a dataset in an object store has a "
            "budget; stage=packtrain.StageOptions(to=..., budget=...) limits staged copies"
        )


def _checked_stage(stage: Stage | None) -> Stage | None:
    if stage is None:
        return None
    from packtrain._storage.staging.options import StageOptions

    if not isinstance(stage, str | os.PathLike | StageOptions):
        raise unexpected("stage", stage, "a folder for staged copies, or packtrain.StageOptions")
    if not isinstance(stage, StageOptions) and not os.path.lexists(local_path(stage)):
        raise StagingError(
            f"there is no folder {os.fspath(stage)}: make it, or name another one, on a local disk or in memory, as "
            'in stage="/dev/shm"'
        )
    return stage
