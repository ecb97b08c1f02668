"""Fetches all but the shards of a dataset, for those who look at its documents and its index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from packtrain._core.errors import DatasetError, StagingError, UnsupportedVersion, UsageError
from packtrain._core.files import file_errors
from packtrain._core.manifest import MANIFEST, PLAN, REJECTS, Manifest
from packtrain._core.version_files import BASE, BASE_MANIFEST, LAYERS, SEGMENTS, mark_name, version_name
from packtrain._core.versions import Version, load_version

from ..remote.objects import Objects
from ..remote.urls import Url
from .origin import Origin
from .version_documents import VersionDocuments, is_changed


def fetch_without_shards(url: Url, objects: Objects, folder: Path, *, every_version: bool = False) -> None:
    """Fetches all but the shards of a dataset into an empty folder, as they are: nothing but the manifest is checked.

    What the store does not have is missing there, too.

    Args:
        url: Address of the dataset.
        objects: What reads object stores.
        folder: The folder.
        every_version: Of a dataset that was changed, fetch all versions, and what those need that may be opened; or
            only the newest one.

    Raises:
        NotADataset: There is no manifest.
        UnsupportedVersion: A newer packtrain wrote it.
        CorruptFile: It is damaged, or there is no version.
        RemoteError: The object store does not answer as it should.
        NoSpace: The disk is full.
        StagingError: The folder cannot be written to.
    """
    try:
        manifest = Origin(url, objects).manifest()
    except UnsupportedVersion:
        if not is_changed(url, objects):
            raise
        _fetch_versions(url, objects, folder, every_version)
        return
    with file_errors(folder, StagingError):
        (folder / MANIFEST).write_bytes(manifest.dump())
    _fetch(url, objects, folder, _names(manifest))


def _fetch_versions(url: Url, objects: Objects, folder: Path, every_version: bool) -> None:
    numbers = VersionDocuments(url, objects).numbers
    numbers = numbers if every_version else numbers[-1:]
    documents = [name(number) for number in numbers for name in (version_name, mark_name)]
    _fetch(url, objects, folder, [MANIFEST, BASE_MANIFEST, *documents])
    versions = []
    for number in numbers:
        # Whoever looks at it says what is wrong with it.
        with suppress(DatasetError, UsageError):
            versions.append(load_version(folder, number))
    parts = dict.fromkeys(place for version in versions for place in _parts(version))
    columns = (name for version in versions for name in version.columns)
    _fetch(url, objects, folder, [*columns, *(f"{place}{MANIFEST}" for place in parts if place)])
    names = list[str]()
    for place in parts:
        with suppress(DatasetError, OSError):
            path = folder / (f"{place}{MANIFEST}" if place else BASE_MANIFEST)
            names += (place + name for name in _names(Manifest.parse(path.read_bytes(), path)))
    _fetch(url, objects, folder, names)


def _parts(version: Version) -> Iterator[str]:
    """The folders of segments and layers, as seen from the dataset's, with a slash at the end."""
    for segment in version.segments:
        yield "" if segment.name == BASE else f"{SEGMENTS}/{segment.name}/"
        yield from (f"{LAYERS}/{layer.name}/" for layer in segment.layers)


def _names(manifest: Manifest) -> list[str]:
    return [PLAN, REJECTS, *(column.file for column in manifest.columns)]


def _fetch(url: Url, objects: Objects, folder: Path, names: Iterable[str]) -> None:
    from ..remote.download import download_all  # slow: not on the way to a copy of what lies on a disk

    wanted = list(dict.fromkeys(names))
    with file_errors(folder, StagingError):
        for parent in {(folder / name).parent for name in wanted}:
            parent.mkdir(parents=True, exist_ok=True)
    download_all(objects, url, wanted, folder)
