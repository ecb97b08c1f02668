"""Looks for files that are not where a list says."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from packtrain._core.paths import is_url
from packtrain._storage.remote.urls import Url

from .folder import TORCHVISION_SUFFIXES
from .remedies import Remedy, escaped, sed
from .rows import ColumnPlace

_MOST_FOLDERS: Final = 200
_ENDS: Final = ("", *(end for suffix in TORCHVISION_SUFFIXES for end in (suffix, suffix.upper())))


def find_missing(path: str, root: Path | Url, place: ColumnPlace | None) -> Remedy | None:
    """Looks for a file that is not there under similar names, and in folders near by.

    Args:
        path: The path as the list gives it.
        root: Folder that it should start from.
        place: Place of the paths in the list; None if it is not made of lines.
    """
    if isinstance(root, Url) or is_url(path) or "\0" in path or os.path.lexists(root / path):
        return None
    if "\\" in path:
        flat = path.replace("\\", "/")
        if os.path.lexists(root / flat) or find_missing(flat, root, place):
            return Remedy("The paths have backslashes, but on Linux folders end with /", r"tr '\\' /")
        return None
    with suppress(ValueError):
        if not path.isascii() and os.path.lexists(root / os.fsencode(path).decode("latin-1")):
            return Remedy(
                "The paths are encoded in Latin-1, and the names of the files in UTF-8", "iconv -f LATIN1 -t UTF-8"
            )
    for folder in _near(root):
        for suffix in _ENDS:
            if not os.path.lexists(folder / f"{path}{suffix}"):
                continue
            if folder != root:
                return Remedy(f"{path}{suffix} is in {folder}", "", ("--root", str(folder)))
            rewrite = "" if place is None else _appending(path, suffix, place)
            return Remedy(f"The paths lack a suffix: {root / path}{suffix} is there", rewrite)
    parts = path.split("/")
    for cut in range(1, len(parts)):
        rest = "/".join(parts[cut:])
        prefix = path.removesuffix(rest)
        if rest and "|" not in prefix and os.path.lexists(root / rest):
            return Remedy(
                f"The paths begin with {prefix}, but {rest} is in {root.absolute()}", sed(f"s|{escaped(prefix)}||")
            )
    return None


def _appending(path: str, suffix: str, place: ColumnPlace) -> str:
    """The command that appends a suffix to all paths."""
    if place.separator is None:
        names = r"[^ \t]+" + r" [^ \t]+" * path.count(" ")
    else:
        separator = "\\t" if place.separator == b"\t" else place.separator.decode()
        names = rf'([^{separator}]*{separator}){{{place.column}}}"?[^{separator}"]*'
    return sed(rf"{'1!' if place.header else ''}s/^({names})/\1{suffix}/")


def _near(root: Path) -> list[Path]:
    """A folder, those in it, and those that it is in."""
    try:
        with os.scandir(root) as entries:
            inside = sorted(entry.name for entry in entries if entry.is_dir())[:_MOST_FOLDERS]
    except OSError:
        inside = []
    return [root, *(root / name for name in inside), *list(root.absolute().parents)[:3]]
