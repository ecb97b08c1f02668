"""A dataset of this machine, made by `packtrain index`, whose shards lie in an object store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from typing_extensions import override

from packtrain._core.errors import SourceChanged
from packtrain._core.manifest import Manifest

from ..remote.objects import Objects
from ..remote.urls import Url
from .files import Location, SourceFile
from .origin import FileStatus, LocalOrigin, Origin, OriginFile
from .remote_origin import RemoteOrigin


class LinkedOrigin(Origin):
    """A folder of this machine that has everything but the shards.

    Args:
        folder: The folder.
        base: Address of the folder that the shards lie in.
        objects: What the store is read by.
    """

    def __init__(self, folder: Path, base: Url, objects: Objects) -> None:
        self._folder = folder
        self._local = LocalOrigin(folder)
        self._remote = RemoteOrigin(base, objects, folder)

    @property
    @override
    def location(self) -> Path:
        return self._folder

    @property
    @override
    def threads(self) -> int:
        return self._remote.threads

    @property
    @override
    def request(self) -> int:
        return self._remote.request

    @override
    def manifest(self) -> Manifest:
        return self._local.manifest()

    @override
    def plan(self) -> bytes:
        return self._local.plan()

    @override
    def at(self, file: SourceFile) -> Location:
        return self._of(file).at(file)

    @override
    def link_target(self, file: SourceFile) -> Path | None:
        return self._of(file).link_target(file)

    @override
    def statuses(self, files: Sequence[SourceFile]) -> Iterator[FileStatus]:
        remote = self._remote.statuses([file for file in files if self._is_remote(file)])
        for file in files:
            yield from [next(remote)] if self._is_remote(file) else self._local.statuses([file])

    @override
    def open(self, file: SourceFile) -> AbstractContextManager[OriginFile]:
        return self._of(file).open(file)

    @override
    def stop(self) -> None:
        self._remote.stop()

    @override
    def forget(self, file: SourceFile) -> None:
        self._of(file).forget(file)

    @override
    def changed(self, file: SourceFile, what: str) -> SourceChanged:
        return self._of(file).changed(file, what)

    def _of(self, file: SourceFile) -> LocalOrigin | RemoteOrigin:
        return self._remote if self._is_remote(file) else self._local

    def _is_remote(self, file: SourceFile) -> bool:
        # A staged copy has the shards themselves.
        return file.elsewhere is not None and not os.path.lexists(self._folder / file.name)
