"""Finds what a filler that was killed has left, and tells it from what packtrain did not make."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packtrain._core.errors import OutputConflict
from packtrain._core.files import fsync_folder, is_temporary
from packtrain._core.generations import GENERATIONS, READERS, SHARDS, TEMPORARY
from packtrain._core.manifest import CACHE
from packtrain._core.reader_reports import ENDED, is_report

from .ownership import FILES, FOLDERS, MODE

_SHARD: Final = re.compile(r"cache-(\d{6,})\.(?:tar|idx|h5|mdb|index\.npy)")
_UNFINISHED: Final = re.compile(r"cache-\d{6,}\.(?:tar|h5|mdb)(?:\.field)?")
_GENERATION: Final = re.compile(r"\d{8,}\.json")
_MOST_NAMED: Final = 3


def shard_number(path: Path) -> int | None:
    """Number of the shard that a file belongs to by its name; None if it belongs to none."""
    found = _SHARD.fullmatch(path.name)
    return None if found is None else int(found[1])


def check_folder(root: Path) -> None:
    """Checks that a folder is a cache, or may become one.

    Raises:
        OutputConflict: It holds something else.
    """
    if not (root / CACHE).exists() and (found := strays(root)):
        raise OutputConflict(
            f"{root} is not a growing cache, and holds {_listed(root, found)}: choose another folder, or empty this one"
        )


def clear_up(root: Path, end_shard: int) -> None:
    """Makes the folders of a cache, and removes what was begun and never published.

    Args:
        root: The cache.
        end_shard: One past the number of the newest shard that is in a generation.
    """
    for name in FOLDERS:
        (root / name).mkdir(MODE, exist_ok=True)
    for folder in (root, *(root / name for name in FOLDERS)):
        for path in list(folder.iterdir()):
            if is_temporary(path) and _is_known(folder, _meant(path), root):
                path.unlink()
    for path in list((root / TEMPORARY).iterdir()):
        if _UNFINISHED.fullmatch(path.name):
            path.unlink()
    for path in list((root / SHARDS).iterdir()):
        number = shard_number(path)
        if number is not None and number >= end_shard:
            path.unlink()
    fsync_folder(root / SHARDS)


def strays(root: Path) -> list[Path]:
    """What is in a cache's folder and was not made by packtrain."""
    return sorted(_strays(root))


def stray_warning(root: Path) -> str:
    """Names what packtrain did not make; empty if there is nothing."""
    found = strays(root)
    if not found:
        return ""
    return f"{root} holds {_listed(root, found)}, not made by packtrain. It is left alone, and counts for the budget"


def _strays(root: Path) -> Iterator[Path]:
    for folder in (root, *(root / name for name in FOLDERS)):
        if not folder.is_dir():
            continue
        for path in folder.iterdir():
            name = _meant(path) if is_temporary(path) else path.name
            if not _is_known(folder, name, root):
                yield path


def _is_known(folder: Path, name: str, root: Path) -> bool:
    """True if packtrain gives this name to something in this folder of a cache."""
    if folder == root:
        return name in (*FILES, *FOLDERS)
    patterns = {SHARDS: _SHARD, GENERATIONS: _GENERATION, TEMPORARY: _UNFINISHED}
    if folder.name == READERS:
        return name == ENDED or is_report(name)
    return patterns[folder.name].fullmatch(name) is not None


def _meant(path: Path) -> str:
    """The name that a temporary file would have had."""
    return path.name.removeprefix(".").rpartition(".tmp-")[0]


def _listed(root: Path, paths: list[Path]) -> str:
    names = [str(path.relative_to(root)) for path in paths[:_MOST_NAMED]]
    more = len(paths) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
