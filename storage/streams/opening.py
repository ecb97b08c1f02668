"""Opens a remote dataset: finds a complete copy of it or the entry of its cache, or makes that entry.

A version of a dataset that was changed has a bounded cache for each large segment, and copies of the rest. The key of a
cache is that of its segment, so versions share what both have. An entry of the version has its documents, and links to
copies and caches; it is a dataset of versions in which the large segments have no shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from packtrain._core.errors import CorruptFile, DatasetError, NoRoom, StagingError
from packtrain._core.files import file_errors, remove_temporaries
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, Manifest
from packtrain._core.sizes import size
from packtrain._core.version_files import SEGMENTS

from ..location import Location, shard_place
from ..remote.objects import Objects
from ..remote.urls import Url
from ..staging.copying import delete_temporaries, wait_for_build_lock
from ..staging.documents import (
    BLOCK,
    RESERVATION,
    STREAM,
    STREAMED,
    allocated_bytes,
    read_reservation,
    write_origin,
    write_reservation,
)
from ..staging.eviction import discard_copy, make_room, under_ledger
from ..staging.folder import Folder
from ..staging.locks import Lease, promise
from ..staging.options import StageOptions, require_cache
from ..staging.origin import Origin
from ..staging.pieces import Journal
from ..staging.root import Root
from ..staging.source import SourceDataset
from ..staging.stager import Staged, find_complete, held, stage_part
from ..staging.transfer import copy_files
from ..staging.versions import SourceVersion, VersionPart
from .chunks import ChunkTable
from .client import ChunkCache
from .connections import BUCKET
from .cutting import MOST
from .layout import CHUNKS, Present, is_of_this_boot

_SLACK: Final = 8 << 20
_DATA: Final = "data"
_FEW_CHUNKS: Final = 4
"""A segment of at most so many is copied: a cache of it would need room for as many at least."""


def open_stream(
    location: Location,
    options: StageOptions,
    budget: int | None,
    objects: Objects,
    *,
    fetch_with: str = BUCKET,
    check: bool = False,
) -> Staged | ChunkCache:
    """Opens a remote dataset: a complete copy of it if there is one, otherwise a bounded cache.

    What every reader of a cache needs is fetched once, by one process while others wait: manifest, plan, rejects and
    index.

    Args:
        location: Address of the dataset's folder; or the folder, if only the shards are in a store.
        options: Where copies and caches are, and what all of them together may take.
        budget: Bytes that the cache may take, index included; None: as many as the whole dataset takes.
        objects: The object store, for this process.
        fetch_with: What makes the fetcher's object store, ``"MODULE:NAME"``.
        check: Whether each record that is read is compared with its checksum, see `ChunkCache`.

    Returns:
        The complete copy, with a lease on it; or the cache, whose `dataset` is a folder without shards.

    Raises:
        UsageError: A cache cannot do what `options` say.
        RemoteError: The object store does not give it.
        NotADataset: There is no dataset at this address.
        DatasetError: It is damaged.
        NoRoom: There is not enough room for the budget, or not even the index fits.
        StagingError: The cache cannot be made there.
    """
    require_cache(options)
    origin = Origin(location, objects)
    return stream_of(SourceDataset.without_plan(origin, origin.manifest()), options, budget, fetch_with, check)


def stream_of(
    source: SourceDataset, options: StageOptions, budget: int | None, fetch_with: str, check: bool
) -> Staged | ChunkCache:
    """The same as `open_stream` for a dataset whose manifest is known."""
    root = Root.make(options.to)
    opening = _Opening(root, source, options, whole_bytes(source) if budget is None else budget)
    with file_errors(root.path, StagingError):
        if (staged := find_complete(root, source)) is not None:
            promise(root, source.key, options.grace)
            return staged
        with Lease(root, opening.key):
            entry = opening.entry()
            cache = ChunkCache(entry.path, opening.budget, fetch_with, check, opening.url)
            if any(cache.present) and not is_of_this_boot(entry):
                # The machine has started again since: what was not on the medium then may be anything. A fetcher
                # removes it before it answers.
                cache.state()
            promise(root, opening.key, options.grace)
    return cache


def whole_bytes(source: SourceDataset) -> int:
    """Bytes that a cache with all of a dataset takes at most."""
    manifest = source.manifest
    # Chunks take whole blocks, of which a small shard has one of its own, and there are table, plan and log.
    return source.shared_bytes + manifest.bytes + manifest.bytes // 50 + len(manifest.shards) * BLOCK + _SLACK


@dataclass(frozen=True)
class _Opening:
    """One call of `stream_of`.

    Attributes:
        root: The root that the cache is in.
        source: The dataset.
        options: What all copies and caches may take together.
        budget: Bytes that the cache may take.
    """

    root: Root
    source: SourceDataset
    options: StageOptions
    budget: int

    @property
    def key(self) -> str:
        """Key of the cache."""
        return self.source.key + STREAM

    @property
    def url(self) -> Url:
        """Address of the shards."""
        location = self.source.location
        return location if isinstance(location, Url) else Url.parse(str(self.source.manifest.base))

    def entry(self) -> Folder:
        """Return the entry of the cache, with all that every reader needs, and a reservation."""
        most = min(whole_bytes(self.source), self.budget)
        entry = self.root.find_entry(self.key)
        if (
            entry is None
            or read_reservation(entry) < most
            or self.root.find_copy(self.key) is not None
            or not self._is_furnished(entry)
        ):
            entry = self._furnished(most)
        try:
            self._mend(entry)
        except CorruptFile:
            # A file of the index of the right size, with another header.
            entry = self._furnished(most, anew=True)
            self._mend(entry)
        return entry

    def _furnished(self, most: int, *, anew: bool = False) -> Folder:
        """The entry, after waiting for any other process that makes or furnishes it."""
        with wait_for_build_lock(self.root, self.key, lambda progress: None):
            entry = self.root.find_entry(self.key)
            self._reserve(entry, most)
            if entry is None:
                entry = self._build()
            elif anew or not self._is_furnished(entry):
                self._furnish_again(entry)
            with self.root.ledger():
                # Of a process that was killed just before its end.
                discard_copy(self.root, self.key)
            remove_temporaries(entry.path, RESERVATION)
            write_reservation(entry, self.url, max(most, read_reservation(entry)))
        return entry

    def _reserve(self, entry: Folder | None, most: int) -> None:
        """Makes room for the cache, which takes `most` bytes of its budget, by evicting other entries if need be."""
        overhead = self.source.shared_bytes
        if self.budget <= overhead:
            raise NoRoom(
                f"the index of {self.url} takes {size(overhead)}, and the cache may take {size(self.budget)}: raise "
                f"the budget, to {size(overhead + self.source.manifest.bytes)} for all of it"
            )
        need = max(0, most - (0 if entry is None else allocated_bytes(entry)))
        try:
            under_ledger(self.root, lambda checks, last: make_room(self.root, self.key, need, self.options, checks))
        except NoRoom as error:
            why = str(error).replace("(`budget`)", "(`StageOptions.budget`)")
            raise NoRoom(
                f"a cache of {size(self.budget)} for {self.url} does not fit: {why}; or lower its own "
                "(`open_dataset(budget=)`)"
            ) from None

    def _build(self) -> Folder:
        """Makes the entry. The caller holds its build lock."""
        manifest = self.source.manifest
        for number in range(len(manifest.shards)):
            shard_place(self.url, manifest, number)
        copy = self.root.make_copy(self.key)
        dataset = self._furnish(copy)
        entry = copy.folder(_DATA)
        table = ChunkTable.of(manifest, Index.of(dataset.path, manifest))
        table.save(entry.path)
        entry.own_folder(CHUNKS)
        Present.mend(entry.path, len(table))
        write_origin(entry, self.url)
        with self.root.ledger():
            return self.root.publish(copy, _DATA, self.source.readable_name, self.key)

    def _furnish(self, copy: Folder) -> Folder:
        """Copies what every reader needs. Returns the folder of the dataset, which is this process's alone."""
        data = copy.own_folder(_DATA)
        dataset = data.own_folder(STREAMED)
        for folder in (data, dataset):
            delete_temporaries(folder)
        dataset.write(PLAN, self.source.origin.plan(self.source.manifest))
        with Journal(copy) as journal:
            copy_files(self.source.origin, dataset, self.source.shared, journal)
        dataset.write(MANIFEST, self.source.manifest.dump())
        return dataset

    def _is_furnished(self, entry: Folder) -> bool:
        """True if nobody has removed or cut off what every reader needs. Its content is compared when it is read."""
        return entry.has_own_file(f"{STREAMED}/{PLAN}") and all(
            entry.file_status(f"{STREAMED}/{file.name}", file.bytes) for file in self.source.shared
        )

    def _furnish_again(self, entry: Folder) -> None:
        """Copies again what somebody has removed. The caller holds the build lock; who has the old files keeps them."""
        copied, dataset = self._furnish(self.root.make_copy(self.key)), entry.own_folder(STREAMED)
        dataset.own_folder(INDEX)
        for name in [PLAN, *(file.name for file in self.source.shared), MANIFEST]:
            copied.rename(name, dataset, name)

    def _mend(self, entry: Folder) -> None:
        """Makes anew what is damaged in an entry, and has it fetch from this address."""
        dataset = entry.path / STREAMED
        try:
            known = Manifest.load(dataset)
        except DatasetError:
            entry.folder(STREAMED).write(MANIFEST, self.source.manifest.dump())
            known = Manifest.load(dataset)
        index = Index.of(dataset, known)
        for each in known.fields:
            index.field(each.name)
        table = ChunkTable.mended(entry.path, known, index)
        Present.mend(entry.path, len(table))
        # Copies of a dataset share a cache. This one was there a moment ago, which of another one nobody knows.
        write_origin(entry, self.url)


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
    location: Location,
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
        location: Address of the dataset; or its folder, if the shards of some segments are in a store.
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
    with held(source):
        return _version_of(source, options, budget, fetch_with, check)


def _version_of(
    source: SourceVersion, options: StageOptions, budget: int, fetch_with: str, check: bool
) -> VersionStream:
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
            f"the layers and small segments of {source.location}, which are copied as a whole, take "
            f"{size(budget - room)}, and all may take {size(budget)}: raise the budget, to "
            f"{size(budget - room + total)} for all of it"
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
    found = SourceDataset.without_plan(origin, origin.manifest(of_base=part.location == source.location))
    return found if found.manifest.bytes > _FEW_CHUNKS * MOST and origin.any_remote(found.files) else None
