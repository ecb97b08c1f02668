"""Removes versions of a dataset, and then what no version needs any more."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packtrain._core.arguments import checks_names, flag, whole
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import DatasetError, OutputConflict, UsageError
from packtrain._core.files import NO_LOCKS, file_errors, fsync_folder, write_file
from packtrain._core.locks import Lock, lock_holders
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, Manifest
from packtrain._core.opening import read_regular
from packtrain._core.versions import (
    BASE,
    BASE_MANIFEST,
    MARK,
    has_versions,
    is_dropped,
    load_version,
    require_no_links,
    version_numbers,
    version_path,
)

from .notes import PARTS
from .pins import pins_of
from .version_check import named_by, unnamed
from .workplace import folder_of

GRACE_SECONDS: Final = 7 * 24 * 3600.0
"""Time for which files stay where nobody can tell whether somebody uses them."""


@dataclass(frozen=True)
class RemovalReport:
    """A removal of versions, and of what only they needed.

    Attributes:
        dataset: Folder of the dataset.
        versions: Numbers of the versions that nobody can open any more.
        removed: What was removed, as paths in the folder of the dataset; ``base`` are the files of the first segment of
            a packed dataset, which lie in the folder itself.
        bytes: Size of all that.
        waiting: What will be removed a week after its version was dropped, because the file system has no locks, and
            nobody can tell who reads it.
        dry_run: True if nothing was removed, and all of this is what would be.
    """

    dataset: Path
    versions: tuple[int, ...]
    removed: tuple[str, ...]
    bytes: int
    waiting: tuple[str, ...] = ()
    dry_run: bool = False


@checks_names()
def drop_version(
    dataset: str | os.PathLike[str], versions: int | Iterable[int] = (), *, dry_run: bool = False
) -> RemovalReport:
    """Drops versions of a dataset for ever, and removes what no other version needs.

    All of them are dropped, or none. Also removes what runs left that were stopped. If it is stopped itself, the same
    call goes on from there.

    Args:
        dataset: The folder of the dataset.
        versions: Numbers of the versions; none to remove only what no version needs.
        dry_run: True to remove nothing, and report what would be removed.

    Raises:
        UsageError: There is no such version, or it is the newest one.
        OutputConflict: A version is open in a process, or another dataset needs it; the message says who. Or a link
            stands in the place of one of the dataset's folders.
        CorruptFile: The document of another version is damaged, so that nobody knows what it needs.
        PacktrainError: The dataset cannot be read, or not be written to.
    """
    folder = folder_of(dataset, "drop-version")
    numbers = [versions] if isinstance(versions, int) else list(versions)
    numbers = sorted({whole("versions", number, 1) for number in numbers})
    if not has_versions(folder):
        Manifest.load(folder)
        raise UsageError(f"{folder} has no versions: it was never changed since it was packed")
    flag("dry_run", dry_run)
    require_no_links(folder)
    _require_droppable(folder, numbers)
    # Before anything is marked: it may fail.
    _needed(folder, numbers)
    with file_errors(folder):
        with sole_user(folder, numbers):
            if not dry_run:
                for number in numbers:
                    if not is_dropped(folder, number):
                        write_file(version_path(folder, number).with_suffix(MARK), [])
        return _remove_unneeded(folder, numbers, dry_run=dry_run)


def _require_droppable(folder: Path, numbers: Sequence[int]) -> None:
    there = version_numbers(folder)
    for number in numbers:
        if number not in there:
            raise UsageError(f"{folder}: version {number} does not exist. `packtrain log` shows those that there are")
        if number == there[-1]:
            raise UsageError(f"{folder}: version {number} is the newest one, which cannot be dropped")


@contextmanager
def sole_user(folder: Path, numbers: Iterable[int]) -> Iterator[None]:
    """Holds versions so that nobody opens them meanwhile, where the file system has locks.

    Raises:
        OutputConflict: A version is open, or there is a pin on it; the message says who needs it.
    """
    live = [number for number in numbers if not is_dropped(folder, number)]
    with ExitStack() as stack:
        for number in live:
            path = version_path(folder, number)
            try:
                stack.enter_context(Lock(path, wait=False, inherited=False, flags=os.O_RDWR))
            except BlockingIOError as error:
                ids = ", ".join(map(str, lock_holders(os.stat(path))))
                who = f"by process {ids}" if ids else "on another machine"
                raise OutputConflict(
                    f"{folder}: version {number} is open {who}. Wait until it is closed, then run the command again"
                ) from error
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
        _require_no_pin(folder, live)
        yield


def _require_no_pin(folder: Path, numbers: Sequence[int]) -> None:
    for path, pin in pins_of(folder):
        if pin.number in numbers:
            words = shlex.join(["packtrain", "unpin", str(folder), str(pin.number), "--by", pin.by])
            raise OutputConflict(
                f"{folder}: version {pin.number} is needed by {pin.by}, as {path} says. If it is not needed any more, "
                f"`{words}`, and run the command again"
            )


def removal_before(folder: Path, numbers: Sequence[int], kept: Collection[str]) -> RemovalReport:
    """The report of a dry run: on versions that go once there is another one, which names what is `kept`."""
    return _remove_unneeded(folder, numbers, dry_run=True, kept=kept)


def _remove_unneeded(
    folder: Path, numbers: Sequence[int], *, dry_run: bool, kept: Collection[str] = ()
) -> RemovalReport:
    """Removes what no version needs that was not dropped."""
    gone = numbers if dry_run else ()
    removed, size = list[str](), 0
    with ExitStack() as stack:
        chosen = _Unneeded(folder, gone, stack)
        # A version that names some of it may have been written before it was locked.
        needed = _needed(folder, gone) | {*kept}
        for name in (name for name in chosen.free if name not in needed):
            paths = _base_files(folder) if name == BASE else [folder / name]
            size += sum(map(_size, paths))
            removed.append(name)
            for path in paths if not dry_run else ():
                _remove(path)
    return RemovalReport(folder, tuple(numbers), tuple(removed), size, tuple(chosen.waiting), dry_run)


class _Unneeded:
    """Parts that only dropped versions name, or none. Folders that could be written to are locked until the stack ends.

    Attributes:
        free: What nobody uses.
        waiting: What somebody may use who opened a version before it was dropped.
    """

    def __init__(self, folder: Path, gone: Collection[int], stack: ExitStack) -> None:
        self._folder, self._stack, self._locks = folder, stack, _has_locks(folder)
        self._marked = dict[str, float]()
        for number in version_numbers(folder):
            if number in gone or is_dropped(folder, number):
                self._note_mark(number, time.time() if number in gone else None)
        names = unnamed(folder, named := _needed(folder, gone))
        if BASE not in named and (folder / _base_manifest(folder)).exists():
            names.append(BASE)
        self.free = [name for name in names if self._is_free(name)]
        self.waiting = [name for name in names if name in self._marked and not self._locks and name not in self.free]

    def _note_mark(self, number: int, when: float | None) -> None:
        """Notes when a version was dropped, for what it named; one that is damaged names nothing."""
        with suppress(DatasetError):
            names = named_by([load_version(self._folder, number, also_dropped=True)])
            marked = os.stat(version_path(self._folder, number).with_suffix(MARK)).st_mtime if when is None else when
            self._marked |= {name: max(marked, self._marked.get(name, 0)) for name in names}

    def _is_free(self, name: str) -> bool:
        path = self._folder / (BASE_MANIFEST if name == BASE else name)
        is_folder = path.is_dir()
        if is_folder and self._locks:
            try:
                flags = os.O_RDONLY | os.O_DIRECTORY
                self._stack.enter_context(Lock(path, wait=False, inherited=False, flags=flags))
            except (BlockingIOError, FileNotFoundError):
                return False
        if name in self._marked:
            return self._locks or time.time() - self._marked[name] > GRACE_SECONDS
        # A folder that is locked has no writer. Of a file, only its age tells.
        return (is_folder and self._locks) or time.time() - _last_change(path) > GRACE_SECONDS


def _has_locks(folder: Path) -> bool:
    try:
        Lock(folder / MANIFEST, shared=True, wait=False, inherited=False, flags=os.O_RDONLY).close()
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _needed(folder: Path, gone: Collection[int]) -> set[str]:
    """The parts that versions name which were not dropped, without those that are `gone`."""
    live = (each for each in version_numbers(folder) if each not in gone and not is_dropped(folder, each))
    return named_by([load_version(folder, number) for number in live])


def _base_manifest(folder: Path) -> str:
    return BASE_MANIFEST if has_versions(folder) else MANIFEST


def _base_files(folder: Path) -> list[Path]:
    """The files of the segment in the dataset's folder itself; last the one that says which they are."""
    path = folder / _base_manifest(folder)
    manifest = Manifest.parse(read_regular(path, MOST_BYTES), path)
    linked = {shard.name for shard in manifest.shards if shard.link is not None}
    files = [folder / file.name for file in manifest.files() if file.name not in linked]
    return [*files, folder / INDEX, folder / PARTS, folder / PLAN, path]


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


def _size(path: Path) -> int:
    return sum(status.st_size for status in _tree(path) if stat.S_ISREG(status.st_mode))


def _last_change(path: Path) -> float:
    return max((status.st_mtime for status in _tree(path)), default=0)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # Without it, a folder of which a part is left is no segment.
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    fsync_folder(path.parent)
