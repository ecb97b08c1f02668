"""A dataset that is changed at an address: a spool has its documents and indexes, and new files go to the store.

A version is made by a request that the store must refuse if there is one with its number. An answer may be lost, and a
client that asks again is refused because of its own first request; so whoever does not know reads the document.

No lock keeps two writers apart. So each draws names for what it writes, which nobody else uses, and a run that was
stopped leaves what no version names.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import (
    CorruptFile,
    NotADataset,
    NotThere,
    OutputConflict,
    PacktrainError,
    RemoteError,
    UsageError,
)
from packtrain._core.files import make_folder, write_file
from packtrain._core.manifest import MANIFEST, PLAN, VERSIONS, Manifest
from packtrain._core.overriding import override
from packtrain._core.version_files import (
    BASE,
    BASE_MANIFEST,
    LAYERS,
    MARK,
    MOST_VERSION_BYTES,
    PINS,
    has_versions,
    version_name,
)
from packtrain._core.versions import (
    Segment,
    Version,
    layer_manifest,
    load_root,
    parse_version,
    publish,
    segment_manifest,
)
from packtrain._storage.location import Location
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.download import download_all
from packtrain._storage.remote.objects import ListedObject, Objects
from packtrain._storage.remote.urls import Url
from packtrain._storage.staging.documents import PROVENANCE
from packtrain._storage.staging.version_documents import VersionDocuments

from .object_output import ObjectOutput, require_exclusive, spool_for, upload_compared
from .output import Output
from .part_files import ObjectPartFiles, PartFiles
from .plan import Plan
from .workplace import NAME_DIGITS, Workplace, part_name, segment_place

_KNOWN_DIGITS: Final = NAME_DIGITS // 2
"""Digits of a name that follow from the plan; the others are drawn."""


class ObjectWorkplace(Workplace):
    """A dataset at an address.

    Args:
        url: The address.
        folder: An empty folder of this machine.
        objects: What reads and writes objects.
    """

    def __init__(self, url: Url, folder: Path, objects: Objects) -> None:
        super().__init__(folder)
        self._url = url
        self._objects = objects
        self._there: set[str] = set()
        """Names of files in `folder` that the store has."""

    @property
    @override
    def address(self) -> Location:
        return self._url

    @override
    def newest(self) -> Version:
        try:
            self._take(MANIFEST, MOST_BYTES)
        except NotThere as error:
            raise NotADataset(f"there is no dataset at {self._url}: {error}", file=MANIFEST) from error
        if has_versions(self.folder):
            self._take_newest()
        return super().newest()

    @override
    def begin(self) -> None:
        self.newest()
        # A document that never changes, so that nothing is lost if it is written again.
        url = self._url / (version_name(1) if has_versions(self.folder) else PLAN)
        advice = "Nothing was changed. Stage the dataset, pack the copy into a folder, change that, and upload it"
        require_exclusive(self._objects, url, self._url, advice)
        if has_versions(self.folder):
            return
        super().begin()
        name = version_name(1)
        for file in (BASE_MANIFEST, name):
            self._objects.write(self._url / file, (self.folder / file).read_bytes(), new=True)
            # Whoever does the same at this time writes the same bytes.
            if self._objects.read(self._url / file, MOST_BYTES) != (self.folder / file).read_bytes():
                raise OutputConflict(
                    f"{self._url / file} is left of another dataset: remove it and run the same command again"
                )
        self._objects.write(self._url / MANIFEST, (self.folder / MANIFEST).read_bytes())
        self._take_newest()

    @override
    def bring(self, names: Iterable[str]) -> None:
        wanted = [name for name in names if not (self.folder / name).exists()]
        for parent in {(self.folder / name).parent for name in wanted}:
            make_folder(parent)
        if missing := download_all(self._objects, self._url, wanted, self.folder):
            raise CorruptFile(f"{self._url / missing[0]} is missing", file=missing[0])
        self._there.update(wanted)

    @override
    def bring_versions(self) -> None:
        listed = self._listed(VERSIONS, ".json", MARK)
        # Asked for one by one as well: a list may be late, and a version that it lacks would lose what it names.
        there = {version_name(number) for number in VersionDocuments(self._url, self._objects).numbers}
        self.bring(there | {f"{VERSIONS}/{found.name}" for found in listed if not found.name.endswith(MARK)})
        for found in listed:
            if found.name.endswith(MARK):
                path = self.folder / VERSIONS / found.name
                path.touch()
                os.utime(path, ns=(found.modified_ns, found.modified_ns))
        self.bring_pins()
        if load_root(self.folder).base is not None:
            with suppress(NotThere):
                self._take(BASE_MANIFEST, MOST_BYTES)

    @override
    def bring_pins(self) -> None:
        shutil.rmtree(self.folder / PINS, ignore_errors=True)
        self.bring(f"{PINS}/{found.name}" for found in self._listed(PINS, ".json"))

    def _listed(self, place: str, *ends: str) -> list[ListedObject]:
        """The files in one of the dataset's folders whose names end like this."""
        # A key may hold anything, and a file of its name must not lie elsewhere.
        return [
            found
            for found in self._objects.list(self._url / place)
            if found.name.endswith(ends) and not {"/", "\0"} & {*found.name}
        ]

    @override
    def part_files(self) -> PartFiles:
        return ObjectPartFiles(self.folder, self._url, self._objects)

    @override
    def write(self, name: str, data: bytes) -> None:
        self._objects.write(self._url / name, data)
        super().write(name, data)

    @override
    def remove(self, name: str) -> None:
        self._objects.remove(self._url / name)
        super().remove(name)

    @override
    def bring_manifests(self, version: Version) -> None:
        layers = [f"{LAYERS}/{layer.name}/{MANIFEST}" for segment in version.segments for layer in segment.layers]
        self.bring([*version.columns, *(self._manifest_of(segment.name) for segment in version.segments), *layers])

    @override
    def bring_indexes(self, version: Version) -> None:
        self.bring_manifests(version)
        names = list[str]()
        for segment in version.segments:
            for place, manifest in self._parts(segment):
                names += (f"{place}{column.file}" for column in manifest.columns)
        self.bring(names)

    def _parts(self, segment: Segment) -> Iterator[tuple[str, Manifest]]:
        """The manifests of a segment and of its layers, and the beginnings of the names of their files."""
        yield segment_place(segment.name), segment_manifest(self.folder, segment)
        for layer in segment.layers:
            yield f"{LAYERS}/{layer.name}/", layer_manifest(self.folder, segment, layer)

    def _manifest_of(self, segment: str) -> str:
        if segment == BASE and has_versions(self.folder):
            return BASE_MANIFEST
        return f"{segment_place(segment)}{MANIFEST}"

    @override
    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        with self._brought([name]):
            yield self.folder / name

    @override
    @contextmanager
    def shards(self, segments: Sequence[Segment]) -> Iterator[None]:
        parts = [part for segment in segments for part in self._parts(segment)]
        with self._brought([f"{place}{shard.name}" for place, manifest in parts for shard in manifest.shards]):
            yield

    @contextmanager
    def _brought(self, names: Sequence[str]) -> Iterator[None]:
        """Has files in `folder` as long as the block takes; those that are there already stay."""
        wanted = [name for name in names if not (self.folder / name).exists()]
        try:
            self.bring(wanted)
            yield
        finally:
            for name in wanted:
                (self.folder / name).unlink(missing_ok=True)

    @override
    def require_shards(self, what: str) -> None:
        raise UsageError(
            f"{what} needs records, which are not fetched from {self._url}: copy the dataset to a disk, change it "
            "there, and copy it back"
        )

    @override
    def name_of(self, plan: Plan) -> str:
        return f"{part_name(plan)[:_KNOWN_DIGITS]}{secrets.token_hex(_KNOWN_DIGITS // 2)}"

    @override
    def expected_name(self, plan: Plan) -> str:
        return f"{part_name(plan)[:_KNOWN_DIGITS]}*"

    @override
    def has_packed(self, version: Version, plan: Plan) -> bool:
        known = part_name(plan)[:_KNOWN_DIGITS]
        alike = [segment for segment in version.segments if segment.name == BASE or segment.name.startswith(known)]
        self.bring(f"{segment_place(segment.name)}{PLAN}" for segment in alike)
        return any(Plan.load(segment.folder(self.folder)).is_same(plan) for segment in alike)

    @override
    @contextmanager
    def writing(self, name: str) -> Iterator[Output]:
        yield ObjectOutput(self._url / name, self.folder / name, patient=True, objects=self._objects)

    @override
    def publish(self, change: Callable[[Version], Version]) -> Version:
        return publish(self.folder, change, self._create)

    def _create(self, folder: Path, version: Version) -> bool:
        """Creates the document of a version, once all that it names is there; see `create_version`.

        Raises:
            RemoteError: The store does not answer as it should, or does not say whether the document is there.
        """
        for name in sorted(version.columns.keys() - self._there):
            if (folder / name).exists():
                upload_compared(self._objects, self._url / name, folder / name, version.columns[name].crc32c)
                self._there.add(name)
        url, unknown = self._url / version_name(version.number), ""
        try:
            if self._objects.write(url, version.dump(), new=True):
                return True
        except RemoteError as error:
            unknown = f"{error}. "
        try:
            found = parse_version(self._objects.read(url, MOST_VERSION_BYTES), url, load_root(folder), version.number)
        except RemoteError as error:
            raise RemoteError(
                f"{unknown or error}It is not known whether version {version.number} of {self._url} was made: see "
                f"`packtrain log {self._url}` before you run the same command again"
            ) from error
        if found.writer == version.writer:
            return True
        self._take_newest()
        return False

    def _take_newest(self) -> None:
        name = version_name(VersionDocuments(self._url, self._objects).numbers[-1])
        if not (self.folder / name).exists():
            self._take(name, MOST_VERSION_BYTES)

    def _take(self, name: str, most: int) -> None:
        """Brings a document, which is small."""
        data = self._objects.read(self._url / name, most)
        make_folder((self.folder / name).parent)
        write_file(self.folder / name, [data], durable=False)


@contextmanager
def workplace_at(place: Location, *, changing: bool = True) -> Iterator[Workplace]:
    """Gives a dataset that is to be changed, in a folder or at an address.

    Args:
        place: The place of the dataset.
        changing: False if it is only to be read.

    Raises:
        UsageError: Nothing can be written there, or it is a staged copy.
        PackError: There is no room for a spool.
    """
    if not isinstance(place, Url):
        if changing and (place / PROVENANCE).exists():
            raise UsageError(
                f"{place} is a staged copy, and whoever stages the same dataset would get what is changed here: change "
                f"the dataset itself, and stage it again; or make one of your own to change: packtrain pack {place} OUT"
            )
        yield Workplace(place)
        return
    if changing:
        place.require_writable()
    with spool_for(place, None) as folder, closing(ObjectStore()) as objects:
        try:
            yield ObjectWorkplace(place, folder, objects)
        except PacktrainError as error:
            # What is wrong with what was brought is wrong with what lies there.
            error.args = (str(error.args[0]).replace(str(folder), str(place)), *error.args[1:])
            raise
