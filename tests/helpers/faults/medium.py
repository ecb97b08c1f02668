"""Finds the changes to a folder that a power cut would lose: a SIGKILL never shows that a file was not synced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from helpers.faults.harness import Call


def unsynced(calls: Sequence[Call], folders: Iterable[str] = ()) -> Iterator[tuple[Call | None, set[str], set[str]]]:
    """Goes through the calls of a program.

    Args:
        calls: All of its calls.
        folders: The folders that are there when it begins, and on the medium.

    Yields:
        Each call (None: the end), the files whose content is not on the medium when it begins, and the files and
        folders whose names are not, as the folder that they are in was not synced.
    """
    files, names, made = set[str](), set[str](), set(folders)
    for call in calls:
        yield call, set(files), set(names)
        name = call.target or call.path
        if call.name.startswith("rename"):
            files, names, made = ({_moved(each, call) for each in found} for found in (files, names, made))
            names.add(name)
        elif call.name.startswith("link"):
            files |= {name} & {_moved(each, call) for each in files}
            names.add(name)
        elif call.name.startswith("mkdir"):
            # One that is there is asked for, too.
            names |= {name} - made
            made.add(name)
        elif call.name.startswith(("unlink", "rmdir")):
            for found in (files, names, made):
                found.discard(name)
        elif call.name in ("fsync", "fdatasync", "msync"):
            files.discard(name)
            names = {each for each in names if str(PurePath(each).parent) != name}
        elif not name.endswith(" (deleted)"):
            # A file without a name is gone after a crash, as it should be.
            files.add(name)
    yield None, files, names


def _moved(name: str, call: Call) -> str:
    """Returns where a file or folder is once it, or a folder around it, was renamed or exchanged with another."""
    path = PurePath(name)
    for before, after in ((call.path, call.target), (call.target, call.path)):
        if path.is_relative_to(before) and (before == call.path or call.name == "renameat2"):
            return str(PurePath(after) / path.relative_to(before))
    return name
