"""Opens a remote dataset: finds a complete copy of it or the entry of its cache, or makes that entry."""

from __future__ import annotations

import shutil
from typing import Final

from packtrain._core.errors import DatasetError, NoRoom, StagingError
from packtrain._core.files import file_errors, remove_temporaries
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, Manifest
from packtrain._core.sizes import size

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
from ..staging.stager import Staged, find_complete
from ..staging.transfer import copy_files
from .chunks import ChunkTable
from .client import ChunkCache
from .connections import BUCKET
from .layout import CHUNKS, Present, is_of_this_boot

_SLACK: Final = 8 << 20
_DATA: Final = "data"


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
    manifest, location = source.manifest, source.location
    url = location if isinstance(location, Url) else Url.parse(str(manifest.base))
    whole = whole_bytes(source)
    budget = whole if budget is None else budget
    root = Root.make(options.to)
    with file_errors(root.path, StagingError):
        if (staged := find_complete(root, source)) is not None:
            promise(root, source.key, options.grace)
            return staged
        key = source.key + STREAM
        with Lease(root, key):
            entry = _entry(root, key, url, source, budget, min(whole, budget), options)
            _mend(entry, url, manifest)
            cache = ChunkCache(entry.path, budget, fetch_with, check, url)
            if any(cache.present) and not is_of_this_boot(entry):
                # The machine has started again since: what was not on the medium then may be anything. A fetcher
                # removes it before it answers.
                cache.state()
            promise(root, key, options.grace)
    return cache


def _entry(
    root: Root,
    key: str,
    url: Url,
    source: SourceDataset,
    budget: int,
    most: int,
    options: StageOptions,
) -> Folder:
    """Return the entry of the cache, with all that every reader needs and a reservation of `most` bytes."""
    entry = root.find_entry(key)
    if (
        entry is not None
        and read_reservation(entry) >= most
        and root.find_copy(key) is None
        and _is_furnished(entry, source)
    ):
        return entry
    with wait_for_build_lock(root, key, lambda progress: None):
        entry = root.find_entry(key)
        _reserve(root, key, entry, url, source, budget, most, options)
        if entry is None:
            entry = _build(root, key, source, url)
        elif not _is_furnished(entry, source):
            _furnish_again(root, key, entry, source)
        with root.ledger():
            # Of a process that was killed just before its end.
            discard_copy(root, key)
        remove_temporaries(entry.path, RESERVATION)
        write_reservation(entry, url, max(most, read_reservation(entry)))
    return entry


def whole_bytes(source: SourceDataset) -> int:
    """Bytes that a cache with all of a dataset takes at most."""
    manifest = source.manifest
    # Chunks take whole blocks, of which a small shard has one of its own, and there are table, plan and log.
    return source.shared_bytes + manifest.bytes + manifest.bytes // 50 + len(manifest.shards) * BLOCK + _SLACK


def _reserve(
    root: Root,
    key: str,
    entry: Folder | None,
    url: Url,
    source: SourceDataset,
    budget: int,
    most: int,
    options: StageOptions,
) -> None:
    """Makes room for the cache, which takes `most` bytes of its budget, by evicting other entries if need be."""
    present, overhead = 0 if entry is None else allocated_bytes(entry), source.shared_bytes
    if budget <= overhead:
        raise NoRoom(
            f"the index of {url} takes {size(overhead)}, and the cache may take {size(budget)}: raise the budget, to "
            f"{size(overhead + source.manifest.bytes)} for all of it"
        )
    need = max(0, most - present)
    try:
        under_ledger(root, lambda checks, last: make_room(root, key, need, options, checks))
    except NoRoom as error:
        why = str(error).replace("(`budget`)", "(`StageOptions.budget`)")
        raise NoRoom(
            f"a cache of {size(budget)} for {url} does not fit: {why}; or lower its own (`open_dataset(budget=)`)"
        ) from None


def _build(root: Root, key: str, source: SourceDataset, url: Url) -> Folder:
    """Makes the entry. The caller holds its build lock."""
    for number in range(len(source.manifest.shards)):
        shard_place(url, source.manifest, number)
    copy = root.make_copy(key)
    dataset = _furnish(copy, source)
    entry = copy.path / _DATA
    table = ChunkTable.of(source.manifest, Index.of(dataset.path, source.manifest))
    table.save(entry)
    shutil.rmtree(entry / CHUNKS, ignore_errors=True)
    (entry / CHUNKS).mkdir(mode=0o700)
    Present.mend(entry, len(table))
    write_origin(Folder.open(entry), url)
    with root.ledger():
        return root.publish(copy, _DATA, source.readable_name, key)


def _furnish(copy: Folder, source: SourceDataset) -> Folder:
    """Copies what every reader needs. Returns the folder of the dataset, which is this process's alone."""
    data = copy.own_folder(_DATA)
    dataset = data.own_folder(STREAMED)
    for folder in (data, dataset):
        delete_temporaries(folder)
    dataset.write(PLAN, source.origin.plan(source.manifest))
    with Journal(copy) as journal:
        copy_files(source.origin, dataset, source.shared, journal)
    dataset.write(MANIFEST, source.manifest.dump())
    return dataset


def _is_furnished(entry: Folder, source: SourceDataset) -> bool:
    """True if nobody has removed or cut off what every reader needs. Its content is compared when it is read."""
    return entry.has_own_file(f"{STREAMED}/{PLAN}") and all(
        entry.file_status(f"{STREAMED}/{file.name}", file.bytes) for file in source.shared
    )


def _furnish_again(root: Root, key: str, entry: Folder, source: SourceDataset) -> None:
    """Copies again what somebody has removed. The caller holds the build lock; who has the old files keeps them."""
    copied, dataset = _furnish(root.make_copy(key), source), entry.own_folder(STREAMED)
    dataset.own_folder(INDEX)
    for name in [PLAN, *(file.name for file in source.shared), MANIFEST]:
        copied.rename(name, dataset, name)


def _mend(entry: Folder, url: Url, manifest: Manifest) -> None:
    """Makes anew what is damaged in an entry, and has it fetch from `url`."""
    dataset = entry.path / STREAMED
    try:
        known = Manifest.load(dataset)
    except DatasetError:
        entry.folder(STREAMED).write(MANIFEST, manifest.dump())
        known = Manifest.load(dataset)
    table = ChunkTable.mended(entry.path, known, Index.of(dataset, known))
    Present.mend(entry.path, len(table))
    # Copies of a dataset share a cache. This one was there a moment ago, which of another one nobody knows.
    write_origin(entry, url)
