"""The two small documents of staging: where an entry was copied from, and how many bytes a copier has reserved."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from packtrain._core.document import dump_document, load_document
from packtrain._core.errors import CorruptFile, UnsupportedVersion
from packtrain._core.files import write_file

NOTE: Final = "staged.json"
RESERVATION: Final = "reservation.json"
_VERSION: Final = 1


def write_note(folder: Path, source: Path) -> None:
    """Writes into an entry where it was copied from."""
    _write(folder / NOTE, {"source": os.fspath(source), "created": int(time.time())})


def read_note(folder: Path) -> Path | None:
    """Folder that an entry was copied from; None if there is no readable note."""
    source = _read(folder / NOTE).get("source")
    return Path(source) if isinstance(source, str) else None


def write_reservation(folder: Path, source: Path, count: int) -> None:
    """Reserves `count` bytes on the file system for the copy in `folder`."""
    _write(folder / RESERVATION, {"source": os.fspath(source), "bytes": count})


def read_reservation(folder: Path) -> int:
    """Bytes reserved for the copy in `folder`; 0 if there is no readable reservation."""
    count = _read(folder / RESERVATION).get("bytes")
    return count if isinstance(count, int) else 0


def allocated_bytes(folder: Path) -> int:
    """Bytes that all files and folders in `folder` take on the file system; files that vanish meanwhile count as 0."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in (".", *names):
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _write(path: Path, body: dict[str, Any]) -> None:
    write_file(path, [dump_document({"version": _VERSION, **body})])


def _read(path: Path) -> dict[str, Any]:
    try:
        return load_document(path, newest=_VERSION)
    except (OSError, CorruptFile, UnsupportedVersion):
        return {}
