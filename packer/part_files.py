"""The files of segments, layers and columns, for whoever removes some: in a folder, or at an address."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from packtrain._core.document import MOST_BYTES
from packtrain._core.files import NO_LOCKS, fsync_folder
from packtrain._core.locks import Lock
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, Manifest
from packtrain._core.opening import read_regular
from packtrain._core.overriding import override
from packtrain._core.version_files import BASE, BASE_MANIFEST, has_versions
from packtrain._storage.remote.download import in_threads
from packtrain._storage.remote.objects import ListedObject, Objects
from packtrain._storage.remote.urls import Url

from .notes import PARTS
from .version_check import is_part, unnamed


class PartFiles:
    """Those in a folder. A part is called as by `named_by`.

    Args:
        folder: The folder of this machine that has the dataset's documents.

    Attributes:
        has_locks: True if a writer holds a lock on the folder of a part until a version names it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self.has_locks = self._find_locks()

    def _find_locks(self) -> bool:
        try:
            Lock(self._folder / MANIFEST, shared=True, wait=False, inherited=False, flags=os.O_RDONLY).close()
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return False
        return True

    def names(self) -> list[str]:
        """The parts that are there, and what else is called like one."""
        found = unnamed(self._folder, ())
        return [*found, BASE] if (self._folder / _base_manifest(self._folder)).exists() else found

    def is_folder(self, part: str) -> bool:
        """True if a part is a folder of its own."""
        return part != BASE and (self._folder / part).is_dir()

    def lock(self, part: str, stack: ExitStack) -> bool:
        """Locks the folder of a part until the stack ends; False if somebody else has done so, or removed it."""
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY
            stack.enter_context(Lock(self._folder / part, wait=False, inherited=False, flags=flags))
        except (BlockingIOError, FileNotFoundError):
            return False
        return True

    def last_change(self, part: str) -> float:
        """Time of the last change of a part, in seconds since 1970."""
        path = self._folder / (BASE_MANIFEST if part == BASE else part)
        return max((status.st_mtime for status in _tree(path)), default=0)

    def size(self, part: str) -> int:
        """Size of its files."""
        trees = (_tree(path) for path in self._paths(part))
        return sum(status.st_size for tree in trees for status in tree if stat.S_ISREG(status.st_mode))

    def remove(self, part: str) -> None:
        """Removes it."""
        for path in self._paths(part):
            if path.is_dir() and not path.is_symlink():
                # Without it, a folder of which a part is left is no segment.
                (path / MANIFEST).unlink(missing_ok=True)
                with suppress(FileNotFoundError):  # Somebody else removes it at the same time.
                    shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            fsync_folder(path.parent)

    def _paths(self, part: str) -> list[Path]:
        return [self._folder / name for name in _base_names(self._folder)] if part == BASE else [self._folder / part]


class ObjectPartFiles(PartFiles):
    """Those at an address, as they are listed once. What comes later, belongs to somebody who is at work.

    Args:
        folder: The folder of this machine that has the dataset's documents.
        url: The address.
        objects: What reads and writes objects.
    """

    def __init__(self, folder: Path, url: Url, objects: Objects) -> None:
        super().__init__(folder)
        self._url: Final = url
        self._objects: Final = objects
        self._of_parts: Final[dict[str, list[ListedObject]]] = {}
        there = list(objects.list(url))
        for found in there:
            part = "/".join(found.name.split("/")[:2])
            if is_part(part):
                self._of_parts.setdefault(part, []).append(found)
        if _base_manifest(folder) in {found.name for found in there}:
            base = _base_names(folder)
            self._of_parts[BASE] = [each for each in there if each.name.partition("/")[0] in base]

    @override
    def _find_locks(self) -> bool:
        return False

    @override
    def names(self) -> list[str]:
        return list(self._of_parts)

    @override
    def is_folder(self, part: str) -> bool:
        return part != BASE and not part.endswith(".npy")

    @override
    def last_change(self, part: str) -> float:
        return max(found.modified_ns for found in self._of_parts[part]) / 1e9

    @override
    def size(self, part: str) -> int:
        return sum(found.bytes for found in self._of_parts[part])

    @override
    def remove(self, part: str) -> None:
        names = [found.name for found in self._of_parts[part]]
        # As in a folder: a segment goes without its manifest, and the first one is known by base.json to the end.
        first = [name for name in names if part != BASE and name == f"{part}/{MANIFEST}"]
        last = [BASE_MANIFEST] if part == BASE else []
        rest = [name for name in names if name not in (*first, *last)]
        for some in (first, rest, last):
            for _ in in_threads(lambda name: self._objects.remove(self._url / name), some, self._objects):
                pass


def _base_manifest(folder: Path) -> str:
    return BASE_MANIFEST if has_versions(folder) else MANIFEST


def _base_names(folder: Path) -> list[str]:
    """The files of the segment in the dataset's folder itself; last the one that says which they are.

    None if that is gone, because somebody else has just removed them.
    """
    name = _base_manifest(folder)
    try:
        manifest = Manifest.parse(read_regular(folder / name, MOST_BYTES), folder / name)
    except FileNotFoundError:
        return []
    linked = {shard.name for shard in manifest.shards if shard.link is not None}
    return [*(file.name for file in manifest.files() if file.name not in linked), INDEX, PARTS, PLAN, name]


def _tree(path: Path) -> Iterator[os.stat_result]:
    """The status of a file, or of a folder and all in it."""
    with suppress(FileNotFoundError):
        yield os.lstat(path)
    if path.is_symlink():
        return
    for place, folders, files in os.walk(path):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                yield os.lstat(os.path.join(place, name))
