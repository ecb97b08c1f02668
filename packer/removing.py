"""Removes versions of a dataset, and then what no version needs any more."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packtrain._core.arguments import checks_names, flag, whole
from packtrain._core.errors import DatasetError, OutputConflict, UsageError
from packtrain._core.files import NO_LOCKS, file_errors
from packtrain._core.locks import Lock, lock_holders
from packtrain._core.version_files import (
    BASE,
    has_versions,
    is_dropped,
    mark_name,
    require_no_links,
    version_numbers,
    version_path,
)
from packtrain._core.versions import load_version
from packtrain._storage.location import Location
from packtrain._storage.remote.urls import place_of

from .object_workplace import workplace_at
from .part_files import PartFiles
from .pins import pins_of
from .version_check import named_by
from .workplace import Workplace

GRACE_SECONDS: Final = 7 * 24 * 3600.0
"""Time for which files stay where nobody can tell whether somebody uses them."""
_LOOKS: Final = 3


@dataclass(frozen=True)
class RemovalReport:
    """A removal of versions, and of what only they needed.

    Attributes:
        dataset: Folder or address of the dataset.
        versions: Numbers of the versions that nobody can open any more.
        removed: What was removed, as paths in the folder of the dataset; ``base`` are the files of the first segment of
            a packed dataset, which lie in the folder itself.
        bytes: Size of all that.
        waiting: What will be removed a week after its version was dropped, because the file system has no locks, as an
            object store has none, and nobody can tell who reads it.
        dry_run: True if nothing was removed, and all of this is what would be.
    """

    dataset: Location
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
        dataset: The folder of the dataset, or its address in an object store.
        versions: Numbers of the versions; none to remove only what no version needs.
        dry_run: True to remove nothing, and report what would be removed.

    Raises:
        UsageError: There is no such version, or it is the newest one.
        OutputConflict: A version is open in a process, or another dataset needs it; the message says who. Or a link
            stands in the place of one of the dataset's folders.
        CorruptFile: The document of another version is damaged, so that nobody knows what it needs.
        PacktrainError: The dataset cannot be read, or not be written to.
    """
    numbers = [versions] if isinstance(versions, int) else list(versions)
    numbers = sorted({whole("versions", number, 1) for number in numbers})
    flag("dry_run", dry_run)
    with workplace_at(place_of("dataset", dataset)) as place:
        require_no_links(place.folder)
        place.newest()
        if not has_versions(place.folder):
            raise UsageError(f"{place.address} has no versions: it was never changed since it was packed")
        place.bring_versions()
        return drop_versions(place, numbers, dry_run=dry_run)


def drop_versions(place: Workplace, numbers: Sequence[int], *, dry_run: bool) -> RemovalReport:
    """Does what `drop_version` does, for a dataset whose versions have been brought."""
    folder = place.folder
    there = version_numbers(folder)
    for number in numbers:
        if number not in there:
            raise UsageError(
                f"{place.address}: version {number} does not exist. `packtrain log` shows those that there are"
            )
        if number == there[-1]:
            raise UsageError(f"{place.address}: version {number} is the newest one, which cannot be dropped")
    # Before anything is marked: it may fail.
    _needed(folder, numbers)
    with file_errors(folder):
        with sole_user(place, numbers):
            if not dry_run:
                for number in numbers:
                    if not is_dropped(folder, number):
                        place.write(mark_name(number), b"")
        return remove_unneeded(place, numbers, dry_run=dry_run)


@contextmanager
def sole_user(place: Workplace, numbers: Iterable[int]) -> Iterator[None]:
    """Holds versions so that nobody opens them meanwhile, where there are locks.

    Raises:
        OutputConflict: A version is open, or there is a pin on it; the message says who needs it.
    """
    folder = place.folder
    live = [number for number in numbers if not is_dropped(folder, number)]
    with ExitStack() as stack:
        for number in live:
            try:
                stack.enter_context(_only_lock(folder, number))
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
        for path, pin in pins_of(folder):
            if pin.number in live:
                words = shlex.join(["packtrain", "unpin", str(place.address), str(pin.number), "--by", pin.by])
                raise OutputConflict(
                    f"{place.address}: version {pin.number} is needed by {pin.by}, as {path} says. If it is not needed "
                    f"any more, `{words}`, and run the command again"
                )
        yield


def _only_lock(folder: Path, number: int) -> Lock:
    path, ids = version_path(folder, number), ""
    for _ in range(_LOOKS):
        try:
            return Lock(path, wait=False, inherited=False, flags=os.O_RDWR)
        except BlockingIOError:
            ids = ", ".join(map(str, lock_holders(os.stat(path))))
            # Nobody here: it was closed between the two looks, or is open on another machine.
            if ids:
                break
    who = f"by process {ids}" if ids else "on another machine"
    raise OutputConflict(
        f"{folder}: version {number} is open {who}. Wait until it is closed, then run the command again"
    )


def remove_unneeded(
    place: Workplace, numbers: Sequence[int], *, dry_run: bool, kept: Collection[str] = ()
) -> RemovalReport:
    """Removes what no version needs that was not dropped.

    Args:
        place: The dataset, whose versions have been brought.
        numbers: Numbers of the versions that are dropped.
        dry_run: True to remove nothing, and report what would be removed.
        kept: What stays besides.
    """
    gone = numbers if dry_run else ()
    removed, waiting, size = list[str](), list[str](), 0
    # Folders that could be written to are locked meanwhile.
    with ExitStack() as stack:
        files, marked, named = place.part_files(), _marked(place.folder, gone), _needed(place.folder, gone)
        free = list[str]()
        for name in files.names():
            if name in named:
                continue
            if _is_free(files, name, marked.get(name), stack):
                free.append(name)
            elif name in marked and not files.has_locks:
                waiting.append(name)
        # In this order: a version that names some of it may have been written before it was locked, or while it was
        # listed. One that is written from here on names what the newest of these versions names, and besides only what
        # its writer has made, who has a lock on that or has written it less than a week ago.
        if has_versions(place.folder):
            place.bring_versions()
        needed = _needed(place.folder, gone) | {*kept}
        for name in (name for name in free if name not in needed):
            size += files.size(name)
            removed.append(name)
            if not dry_run:
                files.remove(name)
    return RemovalReport(place.address, tuple(numbers), tuple(removed), size, tuple(waiting), dry_run)


def _marked(folder: Path, gone: Collection[int]) -> dict[str, float]:
    """The parts that dropped versions name, and when the last of these was dropped; a damaged one names nothing."""
    marked = dict[str, float]()
    for number in version_numbers(folder):
        if number in gone or is_dropped(folder, number):
            with suppress(DatasetError):
                names = named_by([load_version(folder, number, also_dropped=True)])
                when = time.time() if number in gone else os.stat(folder / mark_name(number)).st_mtime
                marked |= {name: max(when, marked.get(name, 0)) for name in names}
    if gone and not has_versions(folder):
        marked[BASE] = time.time()
    return marked


def _is_free(files: PartFiles, name: str, marked: float | None, stack: ExitStack) -> bool:
    """True if nobody uses a part that no version needs, as far as one can tell."""
    is_locked = files.has_locks and files.is_folder(name)
    if is_locked and not files.lock(name, stack):
        return False
    if marked is not None:
        # Somebody may read it who opened a version before it was dropped.
        return files.has_locks or time.time() - marked > GRACE_SECONDS
    # A folder that is locked has no writer. Of a file, only its age tells.
    return is_locked or time.time() - files.last_change(name) > GRACE_SECONDS


def _needed(folder: Path, gone: Collection[int]) -> set[str]:
    """The parts that versions name which were not dropped, without those that are `gone`."""
    live = (each for each in version_numbers(folder) if each not in gone and not is_dropped(folder, each))
    # Somebody else may drop one before it is read.
    return named_by([load_version(folder, number, also_dropped=True) for number in live])
