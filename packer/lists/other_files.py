"""Files that people give in place of a list: what they are, and what to type instead."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError
from packtrain._core.manifest import MANIFEST, PLAN

from ..foreign.headers import BLOCK, BadArchive, check_sum, compression
from .folder import IMAGE_SUFFIXES
from .suggestions import utf_16

HEAD_BYTES: Final = 4096
"""Number of bytes of a file that `refuse_other_file` has to see."""
_IMAGES: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ")
_LMDB: Final = b"\xde\xc0\xef\xbe"
_LINES: Final = "write a line with path and label for each image"
_PICKLES: Final = (b"\2", b"\3", b"\4", b"\5")
_EXPORT: Final = "write its images to files, and a line with path and label for each"
_PARQUET: Final = b"PAR1"
_UNPACK: Final = "index --unpack DIR"
_TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")
_MOST_NULS: Final = 8
"""More of them in the head of a file are no slips in a text."""


def refuse_other_file(source: Path, head: bytes) -> None:
    """Refuses a file that is no list.

    Args:
        source: The file.
        head: Its first `HEAD_BYTES`.

    Raises:
        ListError: It is something else; the message says what to type.
    """
    if found := _what(source, head):
        what, instead = found
        raise ListError(f"{source} is {what}, not a list: {instead}")


def refuse_other_folder(folder: Path) -> None:
    """Refuses a folder that holds shards, and not images.

    Raises:
        ListError: It does; the message says what to type.
    """
    try:
        with os.scandir(os.fspath(folder)) as found:
            entries = [(entry.name.lower(), entry.is_dir()) for entry in found]
    except OSError:
        # Whoever looks for images there says why it cannot be read.
        return
    tars = [name for name, is_folder in entries if name.endswith(_TARS) and not is_folder]
    if tars and not any(is_folder or name.endswith(IMAGE_SUFFIXES) for name, is_folder in entries):
        plain = all(name.endswith(".tar") for name in tars)
        instead = _typed("index" if plain else _UNPACK, folder)
        raise ListError(f"{folder} is a folder of tar archives, not of images: {instead}")


def _what(source: Path, head: bytes) -> tuple[str, str] | None:
    """Names what a file is that is no list, and what to do with it; None for a list."""
    of_dataset = (source.parent / PLAN).exists()
    if of_dataset and source.name in (MANIFEST, PLAN):
        return "a part of a packed dataset", _typed("pack", source.parent)
    if (packed := compression(head)) is not None:
        return _compressed(source, head, packed)
    if _is_tar(head):
        return "a tar archive", _typed("pack", source.parent) if of_dataset else _typed("index", source)
    if head.startswith(_IMAGES) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return "an image", "give a file with one `path label` per line, or a folder with one folder of images per class"
    shard = _typed("pack", source.parent) if of_dataset else _EXPORT
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return "an HDF5 file", shard
    if head[16:20] == _LMDB:
        return "an LMDB database", shard
    if head.startswith(b"\x93NUMPY"):
        return "an array of numpy's", _LINES
    if head[:1] == b"\x80" and head[1:2] in _PICKLES:
        return "a pickle", _LINES
    if head.count(0) > _MOST_NULS and not head.startswith(_PARQUET) and utf_16(head) is None:
        return "a binary file", "give a file with one `path label` per line"
    return None


def _compressed(source: Path, head: bytes, packed: str) -> tuple[str, str]:
    if packed == "zip" and b"[Content_Types].xml" in head:
        return "a spreadsheet", "save it as CSV"
    if packed == "zip":
        return "a ZIP archive", "unpack it with `unzip`, and give the folder, or a list of the files in it"
    if source.name.lower().endswith(_TARS):
        return f"a tar archive compressed with {packed}", _typed(_UNPACK, source)
    return f"compressed with {packed}", "decompress it first"


def _is_tar(head: bytes) -> bool:
    try:
        check_sum(head[:BLOCK], 0)
    except (BadArchive, IndexError):
        return False
    return len(head) >= BLOCK


def _typed(command: str, path: Path) -> str:
    becomes = "packs it once more" if (path / PLAN).exists() else "makes a dataset of it"
    # What comes through a pipe has no name that could be typed.
    name = shlex.quote(os.fspath(path)) if path.is_dir() or path.is_file() else "FILE"
    return f"`packtrain {command} {name} OUT` {becomes}"
