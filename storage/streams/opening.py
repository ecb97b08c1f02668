"""Opens a remote dataset: finds a complete copy of it or the entry of its cache, or makes that entry."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packtrain._core.errors import DatasetError, NoRoom, SourceChanged, StagingError, UsageError
from packtrain._core.files import checksum_file, file_errors, fsync_file, remove_temporaries, write_file
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, Manifest
from packtrain._core.sizes import size

from ..location import Location, shard_place
from ..remote.download import download_all
from ..remote.objects import Objects
from ..remote.urls import Url
from ..staging.backing import Backing
from ..staging.copying import wait_for_build_lock
from ..staging.eviction import Usage, discard_copy, look_at_sources, make_room
from ..staging.folder import Folder
from ..staging.locks import Lease, extend
from ..staging.notes import (
    BLOCK,
    RESERVATION,
    STREAM,
    STREAMED,
    allocated_bytes,
    in_blocks,
    read_reservation,
    write_origin,
    write_reservation,
)
from ..staging.options import OnStageProgress, StageOptions
from ..staging.origin import Origin
from ..staging.room import Room, room
from ..staging.root import Root
from ..staging.source import Source, plan_of, readable_name
from ..staging.stager import Staged, find_complete
from .chunks import ChunkTable
from .client import ChunkCache
from .connections import name_origin
from .entry import CHUNKS, Present, is_of_this_boot
from .starting import BUCKET

_SLACK: Final = 8 << 20
_DATA: Final = "data"
_COPY_FIRST: Final = "or copy the whole dataset first, with `packtrain stage`"
_OPTIONS_OF_A_COPY: Final = {
    "partial": 'and say how much the cache may hold, as in open_dataset(..., budget="200GiB")',
    "warm": _COPY_FIRST,
    "threads": _COPY_FIRST,
}
"""What to do in place of the options of staging that a cache does not honour."""


@dataclass(frozen=True)
class _File:
    """A file of the dataset other than its shards."""

    name: str
    bytes: int
    crc32c: int


def open_stream(
    location: Location,
    options: StageOptions,
    budget: int | None,
    objects: Objects,
    *,
    fetch_with: str = BUCKET,
    check: bool = False,
    on_progress: OnStageProgress | None = None,
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
        on_progress: Called while another process makes the cache.

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
    _require_options_of_a_cache(options)
    origin = Origin(location, objects)
    manifest = origin.manifest()
    url = location if isinstance(location, Url) else Url.parse(str(manifest.base))
    most = _whole(manifest)
    if budget is None:
        budget = most
    most = min(most, budget)
    place = Root.make(options.to)
    with file_errors(place.path, StagingError):
        source = Source.without_plan(origin, manifest)
        staged = find_complete(place, source)
        key = source.key if staged is not None else source.key + STREAM
        if staged is not None:
            _keep(place, key, options)
            return staged
        lease = Lease(place, key)
        entry = place.find_entry(key)
        if (
            entry is None
            or read_reservation(entry) < most
            or place.find_copy(key) is not None
            or not _is_furnished(entry, manifest)
        ):
            with wait_for_build_lock(place, key, on_progress or (lambda progress: None)):
                entry = place.find_entry(key)
                _reserve(place, key, entry, url, manifest, budget, most, options)
                if entry is None:
                    entry = _build(place, key, origin, url, manifest, objects)
                elif not _is_furnished(entry, manifest):
                    _furnish_again(place, key, entry, origin, manifest, objects)
                with place.ledger():
                    # Of a process that was killed just before its end.
                    discard_copy(place, key)
                remove_temporaries(entry.path, RESERVATION)
                write_reservation(entry, url, max(most, read_reservation(entry)))
        _mend(entry, url, manifest)
        cache = ChunkCache(entry.path, budget, fetch_with, check, url)
        if any(cache.present) and not is_of_this_boot(entry):
            # The machine has started again since: what was not on the medium then may be anything. A fetcher removes
            # it before it answers.
            cache.state()
        _keep(place, key, options)
        lease.close()
    return cache


def _keep(root: Root, key: str, options: StageOptions) -> None:
    """Keeps an entry from eviction for the time that was asked for. Its lease must be held, or nothing may be there."""
    if options.grace:
        extend(root, key, time.time() + options.grace)


def _require_options_of_a_cache(options: StageOptions) -> None:
    """Refuses what only a copy of everything honours.

    A complete copy changes nothing, so that machines with and without one behave alike.
    """
    for name, remedy in _OPTIONS_OF_A_COPY.items():
        value = getattr(options, name)
        if value not in (None, False):
            raise UsageError(
                f"StageOptions({name}={value}): a dataset in an object store is read through a cache, which knows no "
                f"`{name}`: leave it out, {remedy}"
            )


def _whole(manifest: Manifest) -> int:
    """Bytes that a cache with all of a dataset takes at most."""
    index = sum(in_blocks(file.bytes) for file in _files(manifest))
    # Chunks take whole blocks, of which a small shard has one of its own, and there are table, plan and log.
    return index + manifest.bytes + manifest.bytes // 50 + len(manifest.shards) * BLOCK + _SLACK


def _reserve(
    root: Root,
    key: str,
    entry: Folder | None,
    url: Url,
    manifest: Manifest,
    budget: int,
    most: int,
    options: StageOptions,
) -> None:
    """Makes room for the cache, which takes `most` bytes of its budget, by evicting other entries if need be."""
    present = 0 if entry is None else allocated_bytes(entry)
    overhead = sum(in_blocks(file.bytes) for file in _files(manifest))
    if budget <= overhead:
        raise NoRoom(
            f"the index of {url} takes {size(overhead)}, and the cache may take {size(budget)}: raise the budget, to "
            f"{size(overhead + manifest.bytes)} for all of it"
        )

    need = max(0, most - present)

    def measure(usage: Usage, freed: int) -> Room:
        return room(
            root.place,
            budget=options.budget,
            used=usage.used,
            promised=usage.promised,
            reserve=options.reserve,
            need=need,
            freed=freed,
        )

    try:
        with Backing() as backing:
            try:
                with root.ledger():
                    make_room(root, key, need, measure, backing)
            except NoRoom:
                look_at_sources(root, backing)
                with root.ledger():
                    make_room(root, key, need, measure, backing)
    except NoRoom as error:
        raise NoRoom(f"a cache of {size(budget)} for {url} does not fit: {error}; or lower its budget") from None


def _build(root: Root, key: str, origin: Origin, url: Url, manifest: Manifest, objects: Objects) -> Folder:
    """Makes the entry. The caller holds its build lock."""
    copy = root.make_copy(key)
    entry = copy.own_folder(_DATA).path
    dataset = entry / STREAMED
    for number in range(len(manifest.shards)):
        shard_place(url, manifest, number)
    _furnish(dataset, origin, manifest, objects)
    table = ChunkTable.of(manifest, Index.of(dataset, manifest))
    table.save(entry)
    shutil.rmtree(entry / CHUNKS, ignore_errors=True)
    (entry / CHUNKS).mkdir(mode=0o700)
    Present.mend(entry, len(table))
    write_origin(Folder.open(entry), url)
    with root.ledger():
        return root.publish(copy, _DATA, readable_name(origin.location), key)


def _furnish(dataset: Path, origin: Origin, manifest: Manifest, objects: Objects) -> None:
    """Fetches what every reader needs to a folder that is this process's alone."""
    (dataset / INDEX).mkdir(parents=True, exist_ok=True)
    write_file(dataset / PLAN, [plan_of(origin, manifest)])
    _fetch(origin.location, manifest, dataset, objects)
    write_file(dataset / MANIFEST, [manifest.dump()])


def _is_furnished(entry: Folder, manifest: Manifest) -> bool:
    """True if nobody has removed or cut off what every reader needs. Its content is compared when it is read."""
    statuses = {file: entry.status(f"{STREAMED}/{file.name}") for file in _files(manifest)}
    return entry.has_own_file(f"{STREAMED}/{PLAN}") and all(
        status is not None and stat.S_ISREG(status.st_mode) and status.st_size == file.bytes
        for file, status in statuses.items()
    )


def _furnish_again(root: Root, key: str, entry: Folder, origin: Origin, manifest: Manifest, objects: Objects) -> None:
    """Fetches again what somebody has removed. The caller holds the build lock; who has the old files keeps them."""
    copy = root.make_copy(key).own_folder(_DATA)
    _furnish(copy.path / STREAMED, origin, manifest, objects)
    fetched, dataset = copy.folder(STREAMED), entry.own_folder(STREAMED)
    dataset.own_folder(INDEX)
    for name in [PLAN, *(file.name for file in _files(manifest)), MANIFEST]:
        fetched.rename(name, dataset, name)


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
    name_origin(entry.path, url)


def _files(manifest: Manifest) -> Iterator[_File]:
    """What every reader needs, apart from manifest and plan."""
    rejects = manifest.rejects_file
    yield _File(rejects.name, rejects.bytes, rejects.crc32c)
    for column in manifest.columns:
        yield _File(f"{INDEX}/{column.name}.npy", column.bytes, column.crc32c)


def _fetch(location: Location, manifest: Manifest, dataset: Path, objects: Objects) -> None:
    """Fetches what every reader needs, apart from what an earlier attempt has; once more what is not as packed."""
    wrong = [file for file in _files(manifest) if not _is_sound(dataset, file)]
    for _ in range(2):
        if isinstance(location, Url):
            download_all(objects, location, [file.name for file in wrong], dataset)
        else:
            for file in wrong:
                with suppress(FileNotFoundError):
                    shutil.copyfile(location / file.name, dataset / file.name)
        for file in wrong:
            if (dataset / file.name).exists():
                fsync_file(dataset / file.name)
        wrong = [file for file in wrong if not _is_sound(dataset, file)]
        if not wrong:
            return
    raise SourceChanged(
        f"{location / wrong[0].name} is missing, or is not what was packed. Either it was changed, or what holds it "
        f"returns wrong data: `packtrain verify {location}` lists all damage",
        file=wrong[0].name,
    )


def _is_sound(dataset: Path, file: _File) -> bool:
    path = dataset / file.name
    return path.exists() and path.stat().st_size == file.bytes and checksum_file(path) == file.crc32c
