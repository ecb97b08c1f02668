"""A dataset that is written to an object store: each shard as it is finished, and the manifest last.

Shards are packed in a *spool*, a folder of this machine, and leave it when they are finished. What counts is what lies
in the store: a spool that is lost costs the shards in progress. So each run has a spool of its own, which is locked as
long as the run lives, and removes those of runs that were killed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from packtrain._core.arguments import path_of
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import Denied, NotThere, OutputConflict, RemoteError, UsageError
from packtrain._core.files import file_errors, make_folder, write_file
from packtrain._core.locks import Lock
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, REJECTS, ShardInfo
from packtrain._core.overriding import override
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.download import download, in_threads
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

from .notes import PARTS, ShardNote, note_path
from .output import Output
from .publishing import upload_index

_LOCK: Final = "lock"
_DATASET: Final = "dataset"
_MOST_BYTES: Final = 4 << 30
"""Files that are larger are not fetched as a whole."""
_SMALL_BYTES: Final = 16 << 20
"""Files that are known to be larger are fetched in parts, so that they are never in memory as a whole."""
_LISTINGS: Final = 10
"""The most times that the store may list what is gone when it is read."""
_PROBES: Final = 3
_THREADS: Final = 16
"""Files that are fetched at the same time."""


class ObjectOutput(Output):
    """A folder in an object store. It is fetched from and written to by a process of its own, see `ObjectStore`.

    Args:
        url: Its address.
        folder: Folder of this machine in which shards are packed.
        spools: Folder for spools on each machine; None for the folder of temporary files.
        patient: True if the store is known to have answered.
        objects: What reads and writes objects; None: something new of its own.
    """

    def __init__(
        self,
        url: Url,
        folder: Path,
        spools: Path | None = None,
        *,
        patient: bool = False,
        objects: Objects | None = None,
    ) -> None:
        url.require_writable()
        super().__init__(folder)
        self._url = url
        self._spools = spools
        self._objects: Final[Objects] = ObjectStore(patient=patient) if objects is None else objects
        self._there: dict[str, int] = {}
        """Sizes of the objects that are known to be there, by their names."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Who sends it to another process has read what lies in the store.
        return partial(ObjectOutput, patient=True), (self._url, self.folder, self._spools)

    @property
    @override
    def address(self) -> Url:
        return self._url

    @override
    def prepare(self) -> None:
        # Others may remove what has just been listed: a marker means nothing then, and anything else, another state.
        if not any(self._prepared() for _ in range(_LISTINGS)):
            raise self._changing()

    def _changing(self) -> RemoteError:
        return RemoteError(
            f"{self._url} is changed by somebody else, or lists what cannot be read: run the same command again"
        )

    def _prepared(self) -> bool:
        """Brings what lies in the store; False if it has changed meanwhile."""
        self._there = {found.name: found.bytes for found in self._objects.list(self._url)}
        if self._there and PLAN not in self._there:
            names = ", ".join(sorted(self._there)[:3])
            raise OutputConflict(
                f"{self._url} is not empty ({names}), and has no {PLAN} of packtrain's. Choose an empty folder"
            )
        wanted = [name for name in self._there if _is_in(name, PARTS) and not (self.folder / name).exists()]
        wanted += [PLAN] if PLAN in self._there else []
        if not all(in_threads(self._fetch, wanted, self._objects, _THREADS)):
            return False
        # Last: what it names must be there.
        return MANIFEST not in self._there or self._fetch(MANIFEST)

    @override
    def bring_index(self) -> None:
        wanted = [name for name in self._there if name == REJECTS or _is_in(name, INDEX)]
        if not all(in_threads(self._fetch, wanted, self._objects, _THREADS)):
            raise self._changing()

    @override
    def offer_plan(self, data: bytes) -> None:
        make_folder(self.folder)
        self._objects.write(self._url / PLAN, data, new=True)
        # Another machine may have been faster.
        self._fetch(PLAN)

    @override
    def holds(self, info: ShardInfo) -> bool:
        files = [(file.name, file.bytes) for file in (info, *info.sidecars)]
        for name, _ in files:
            if name not in self._there:
                with suppress(NotThere):
                    self._there[name] = self._objects.size(self._url / name)
        return all(self._there.get(name) == size for name, size in files)

    @override
    def shard_done(self, note: ShardNote) -> None:
        files = (note.info, *note.info.sidecars)
        address, data = self._url / PARTS / note_path(self.folder, note.info.name).name, note.dump()
        # A note of something else must not outlive it.
        with suppress(NotThere):
            if self._objects.read(address, _MOST_BYTES) != data:
                self._objects.remove(address)
        for file in files:
            upload_compared(self._objects, self._url / file.name, self.folder / file.name, file.crc32c)
            self._there[file.name] = file.bytes
        self._objects.write(address, data)
        # Only now: a shard that has a note here is not packed again.
        super().shard_done(note)
        for file in files:
            (self.folder / file.name).unlink()

    @override
    @contextmanager
    def arrive(self, plan_sha256: str) -> Iterator[Output]:
        # The spool of the process that made the plan is on its machine, and this may be another one.
        with spooled(self._url, self._spools, patient=True) as output:
            make_folder(output.folder / PARTS)
            yield output

    @override
    def gather(self, shards: Sequence[str]) -> None:
        self.prepare()

    @override
    def unpublish(self) -> None:
        for path in sorted((self.folder / PARTS).glob("*.npz")):
            self._objects.upload(self._url / PARTS / path.name, path)
        self._objects.remove(self._url / MANIFEST)
        (self.folder / MANIFEST).unlink()
        del self._there[MANIFEST]

    @override
    def mark(self, name: str, data: bytes | None) -> None:
        super().mark(name, data)
        with suppress(RemoteError):
            if data is None:
                self._objects.remove(self._url / PARTS / name)
            else:
                self._objects.write(self._url / PARTS / name, data)

    @override
    def finish(self) -> None:
        if MANIFEST not in self._there:
            upload_index(self._objects, self.folder, self._url)
            self._objects.upload(self._url / MANIFEST, self.folder / MANIFEST)
        # Who may write and not remove leaves the notes there: the dataset is finished all the same.
        with suppress(Denied), ThreadPoolExecutor(_THREADS) as pool:
            notes = [self._url / PARTS / found.name for found in self._objects.list(self._url / PARTS)]
            # The first that is refused takes those that wait out of the queue.
            list(pool.map(self._objects.remove, notes))

    def close(self) -> None:
        """Ends the process that fetches and writes."""
        self._objects.close()

    def _fetch(self, name: str) -> bool:
        """Fetches a file. Says if it was there; of markers, always."""
        path = self.folder / name
        make_folder(path.parent)
        try:
            if self._there.get(name, 0) > _SMALL_BYTES:
                download(self._objects, self._url / name, path)
            else:
                # A spool does not outlive a crash of the machine.
                write_file(path, [self._objects.read(self._url / name, _MOST_BYTES)], durable=False)
        except NotThere:
            return name.startswith(f"{PARTS}/") and not name.endswith(".npz")
        return True


def upload_compared(objects: Objects, url: Url, path: Path, checksum: int) -> None:
    """Uploads a file, and compares what then lies there with its crc32c.

    Raises:
        RemoteError: It holds something else, or the store does not answer as it should.
    """
    objects.upload(url, path)
    if (found := objects.checksum(url)) != checksum:
        objects.remove(url)
        raise RemoteError(
            f"{url} does not hold what was uploaded (crc32c {found:08x}, not {checksum:08x}): run the same command "
            "again"
        )


def require_exclusive(objects: Objects, url: Url, dataset: Url, advice: str) -> None:
    """Makes sure that a store leaves an object alone that is there if it is asked to.

    Args:
        objects: What reads and writes objects.
        url: A document that is there and never changes, so that nothing is lost if it is written again.
        dataset: The address of the dataset, for the message.
        advice: The instructions in the message, up to another store.

    Raises:
        RemoteError: It does not.
    """
    data = objects.read(url, MOST_BYTES)
    # Bytes that are equal count as written if an answer was lost, so a single time proves nothing.
    if all(objects.write(url, data, new=True) for _ in range(_PROBES)):
        raise RemoteError(
            f"{dataset}: this store writes an object again that is there and was to be left alone (it ignores "
            f"`If-None-Match: *`), so two writers could lose what the other one writes. {advice}, or use another store"
        )


def _is_in(name: str, folder: str) -> bool:
    """True for a file that lies in a folder of the dataset, and nowhere else once it is fetched."""
    parent, _, last = name.rpartition("/")
    return parent == folder and last not in ("", ".", "..")


@contextmanager
def spooled(url: Url, where: Path | None, *, patient: bool = False) -> Iterator[ObjectOutput]:
    """Gives an output in an object store, with a spool that exists as long as the block.

    Args:
        url: Address of the dataset.
        where: Folder for spools; None for the folder of temporary files.
        patient: True if the store is known to have answered.

    Raises:
        PackError: The spool cannot be made.
    """
    base = None if where is None else where.absolute()
    with spool_for(url, base) as folder, closing(ObjectOutput(url, folder, base, patient=patient)) as output:
        yield output


@contextmanager
def spool_for(url: Url, where: Path | None) -> Iterator[Path]:
    """Gives a folder in a spool for what lies at an address; see `spooled`."""
    base = Path(tempfile.gettempdir()) if where is None else where
    prefix = f"packtrain-{os.geteuid()}-{hashlib.sha256(str(url).encode()).hexdigest()[:12]}-"
    with file_errors(base):
        base.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(base, prefix)
        lock, folder = _make_spool(base, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
        lock.close()
        # Those of workers on this machine that were stopped.
        _remove_abandoned(base, prefix)


def _make_spool(base: Path, prefix: str) -> tuple[Lock, Path]:
    """Makes a spool, and a folder in it for the dataset."""
    while True:
        spool = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        # A run that starts at the same time may remove it as long as it is not locked.
        with suppress(FileNotFoundError):
            lock = Lock(spool / _LOCK)
            folder = spool / _DATASET
            folder.mkdir()
            return lock, folder


def _remove_abandoned(base: Path, prefix: str) -> None:
    """Removes the spools of runs that were killed."""
    for spool in base.glob(f"{prefix}*"):
        with suppress(OSError):
            if not spool.is_symlink() and spool.stat().st_uid == os.geteuid():
                with closing(Lock(spool / _LOCK, wait=False)):
                    shutil.rmtree(spool)


@contextmanager
def output_at(place: Path | Url, spool: str | os.PathLike[str] | None = None) -> Iterator[Output]:
    """Gives the output for a folder, or for an address in an object store.

    Args:
        place: Where the dataset is to lie.
        spool: Folder of this machine for what is on its way to an object store.

    Raises:
        UsageError: Nothing can be written there, or `spool` means nothing.
    """
    if isinstance(place, Url):
        with spooled(place, None if spool is None else path_of("spool", spool)) as output:
            yield output
    elif spool is not None:
        raise UsageError(f"spool={os.fspath(spool)!r}: {place} is a folder, and nothing is on its way: leave it out")
    else:
        yield Output(place)
