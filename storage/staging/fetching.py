"""What every reader of a dataset in an object store needs, without its shards, in a folder of this machine."""

from __future__ import annotations

from pathlib import Path

from packtrain._core.errors import StagingError
from packtrain._core.files import file_errors
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, REJECTS, Manifest

from ..remote.download import download_all
from ..remote.objects import Objects
from ..remote.urls import Url
from .origin import Origin


def fetch_without_shards(url: Url, objects: Objects, folder: Path) -> Manifest:
    """Fetches all but the shards of a dataset into an empty folder, as they are: nothing but the manifest is checked.

    What the store does not have is missing there, too.

    Returns:
        The manifest.

    Raises:
        NotADataset: There is no manifest.
        UnsupportedVersion: A newer packtrain wrote it.
        CorruptFile: It is damaged.
        RemoteError: The object store does not answer as it should.
        NoSpace: The disk is full.
        StagingError: The folder cannot be written to.
    """
    manifest = Origin(url, objects).manifest()
    with file_errors(folder, StagingError):
        (folder / MANIFEST).write_bytes(manifest.dump())
        (folder / INDEX).mkdir()
    names = [PLAN, REJECTS, *(f"{INDEX}/{column.name}.npy" for column in manifest.columns)]
    download_all(objects, url, names, folder)
    return manifest
