"""The files of a dataset that changes: how they are called, and which are there.

`versions.py` says what is in them. Whoever only asks whether a dataset has versions need not import that.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Final

from .document import MOST_BYTES
from .errors import OutputConflict
from .manifest import MANIFEST, VERSIONS, Manifest
from .opening import open_regular, read_regular
from .problems import reading

SEGMENTS: Final = "segments"
LAYERS: Final = "layers"
DROPPED: Final = "dropped"
SIDES: Final = "sides"
BASE: Final = "base"
"""The name of the segment that lies in the dataset's folder itself."""
BASE_MANIFEST: Final = "base.json"
PINS: Final = "pins"
MARK: Final = ".dropped"
"""Suffix of the mark beside the document of a version that was dropped, in place of ``.json``."""
_NAME: Final = re.compile(r"([0-9]{8}|[1-9][0-9]{8,18})\.json")
_HEAD_BYTES: Final = 128
MOST_VERSION_BYTES: Final = 16 << 20
"""Longer documents of versions are not read: one of 1,024 segments, each with ten layers, has 3 MB."""


def random_name() -> str:
    """A name for a segment or a layer that no other one has."""
    return secrets.token_hex(8)


def is_root(data: bytes) -> bool:
    """True if these are the bytes of the manifest.json of a dataset of versions, be they damaged."""
    return b'"version": 3' in data[:_HEAD_BYTES] and b'"dataset": ' in data[:_HEAD_BYTES]


def has_versions(folder: Path) -> bool:
    """True for the folder of a dataset of versions, also if it is damaged."""
    try:
        with os.fdopen(open_regular(folder / MANIFEST), "rb") as file:
            return is_root(file.read(_HEAD_BYTES))
    except (OSError, ValueError):
        return False


def version_name(number: int) -> str:
    """The document of a version, as seen from the dataset's folder."""
    return f"{VERSIONS}/{number:08d}.json"


def mark_name(number: int) -> str:
    """The mark of a version that nobody may open any more, as seen from the dataset's folder."""
    return version_name(number).removesuffix(".json") + MARK


def version_path(folder: Path, number: int) -> Path:
    """The document of a version."""
    return folder / version_name(number)


def version_numbers(folder: Path) -> list[int]:
    """The numbers of all versions, ascending, those that are marked as dropped included.

    Raises:
        CorruptFile: A link that leads to itself is in the place of their folder.
        UnreadableFile: It cannot be read.
    """
    path = folder / VERSIONS
    try:
        with reading(path, missing=False):
            names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def is_dropped(folder: Path, number: int) -> bool:
    """True if nobody may open this version any more."""
    return os.path.lexists(folder / mark_name(number))


def base_manifest(folder: Path) -> Manifest:
    """The manifest of the segment that lies in the folder of a dataset of versions itself.

    Raises:
        CorruptFile: It is missing or damaged.
        UnreadableFile: It cannot be read.
    """
    path = folder / BASE_MANIFEST
    with reading(path):
        return Manifest.parse(read_regular(path, MOST_BYTES), path)


def require_no_links(folder: Path) -> None:
    """Raises OutputConflict if a link stands where a folder of a dataset of versions does: it may lead anywhere."""
    for path in (folder / name for name in (VERSIONS, SEGMENTS, LAYERS, DROPPED, SIDES, PINS)):
        if path.is_symlink():
            raise OutputConflict(
                f"{path} is a link, which leads out of the dataset: put a folder in its place, then run the same "
                "command again"
            )
