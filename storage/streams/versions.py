"""Opens a version of a remote dataset that was changed: a bounded cache for each large segment, and copies of the rest.

The key of a cache is that of its segment, so versions share what both have. An entry of the version has its documents,
and links to copies and caches; it is a dataset of versions in which the large segments have no shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from packtrain._core.errors import NoRoom, StagingError
from packtrain._core.files import file_errors
from packtrain._core.sizes import size
from packtrain._core.versions import SEGMENTS

from ..remote.objects import Objects
from ..remote.urls import Url
from ..staging.documents import STREAM, STREAMED, allocated_bytes
from ..staging.folder import Folder
from ..staging.locks import Lease, promise
from ..staging.options import StageOptions, require_cache
from ..staging.origin import Origin
from ..staging.root import Root
from ..staging.source import SourceDataset
from ..staging.stager import Staged, stage_part
from ..staging.versions import SourceVersion, VersionPart
from .client import ChunkCache
from .connections import BUCKET
from .cutting import MOST
from .opening import stream_of, whole_bytes

_FEW_CHUNKS: Final = 4
"""A segment of at most so many is copied: a cache of it would need room for as many at least."""


@dataclass(frozen=True)
class VersionStream:
    """A version that is open. Nothing of it is evicted as long as this lives.

    Attributes:
        path: Its folder, in which the segments that have a cache are without shards.
        caches: These caches, by the names of their segments.
        held: The lease on the folder, and the copies.
    """

    path: Path
    caches: Mapping[str, ChunkCache]
    held: tuple[Lease | Staged, ...] = field(repr=False)


def open_version(
    location: Url,
    options: StageOptions,
    budget: int,
    objects: Objects,
    *,
    number: int | None = None,
    fetch_with: str = BUCKET,
    check: bool = False,
) -> VersionStream:
    """Opens a version of a remote dataset.

    Args:
        location: Address of the dataset.
        options: As for `open_stream`, as all that follow.
        budget: Bytes that the copies and caches of the version may take together. What copies of layers and of small
            segments leave is shared among caches by the sizes of their segments.
        objects: The object store, for this process.
        number: Number of the version; None: the newest one.
        fetch_with: What makes a fetcher's object store.
        check: Whether each record that is read is compared with its checksum.

    Raises:
        PacktrainError: What `open_stream` and `SourceVersion.load` raise.
    """
    require_cache(options)
    source = SourceVersion.load(location, number, objects)
    root = Root.make(options.to)
    copies, large = dict[str, Staged](), dict[str, SourceDataset]()
    for part in source.parts():
        if (found := _large(source, part, root)) is None:
            copies[part.name] = stage_part(source, part, options)
        else:
            large[part.name] = found
    room = budget - sum(allocated_bytes(Folder.open(copy.path)) for copy in copies.values())
    wholes = {name: whole_bytes(each) for name, each in large.items()}
    total = sum(wholes.values())
    if room <= 0:
        raise NoRoom(
            f"the layers and small segments of {location}, which are copied as a whole, take {size(budget - room)}, "
            f"and all may take {size(budget)}: raise the budget, to {size(budget - room + total)} for all of it"
        )
    caches = dict[str, ChunkCache]()
    for name, each in large.items():
        opened = stream_of(each, options, min(wholes[name], room * wholes[name] // total), fetch_with, check)
        if isinstance(opened, ChunkCache):
            caches[name] = opened
        else:
            copies[name] = opened
    paths = {name: copy.path for name, copy in copies.items()} | {name: each.dataset for name, each in caches.items()}
    key = source.key + STREAM * bool(caches)
    with file_errors(root.path, StagingError):
        lease = Lease(root, key)
        entry = source.entry(root, paths, options, lambda progress: None, streamed=bool(caches))
        promise(root, key, options.grace)
    return VersionStream(
        entry.path / STREAMED if caches else entry.path,
        {name.removeprefix(f"{SEGMENTS}/"): cache for name, cache in caches.items()},
        (lease, *copies.values()),
    )


def _large(source: SourceVersion, part: VersionPart, root: Root) -> SourceDataset | None:
    """A part that is read through a cache; None for one that is copied."""
    if not part.name.startswith(SEGMENTS) or root.find_entry(part.key) is not None:
        return None
    origin = Origin(part.location, source.objects)
    manifest = origin.manifest(of_base=part.location == source.location)
    return SourceDataset.without_plan(origin, manifest) if manifest.bytes > _FEW_CHUNKS * MOST else None
