"""The names of files: those of the list, made safe for any file system, and distinct.

A path comes from whoever packed the dataset. So no name leads out of the folder, hides itself, holds a control
character, or is longer than file systems allow. Names that differ only in case are taken for the same, as they are on
the disks of Windows and macOS.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np

from packtrain._core.paths import is_address
from packtrain._formats import StoredLabel
from packtrain._readers.dataset.store import RecordStore

from ..lists.folder import IMAGE_SUFFIXES
from .rows import SourceRows

_ODD: Final = re.compile(r"[\x00-\x1f\x7f/\\]")
_SUFFIXES: Final = (*IMAGE_SUFFIXES, ".npy", ".txt", ".json", ".bin")
_MOST_BYTES: Final = 120
"""Of a stem: file systems allow 255 bytes, and an extension with the name of a field takes up to 70."""
_MOST_FOLDERS: Final = 8


@dataclass(frozen=True)
class Names:
    """Names of samples: without extension, with folders in front.

    Attributes:
        folders: Folder of each class, by label; None for the folders of the list.
        dotted: True if names may have dots: then a name alone does not tell where the extension begins.
        changed: Names that would not be distinct, by the number of the row, and what stands for them.
        first: Number of the first row.
    """

    folders: tuple[str, ...] | None
    dotted: bool
    changed: Mapping[int, str] = field(default_factory=dict)
    first: int = 0

    def some(self, start: int, stop: int) -> Self:
        """The names of some rows, which are counted from 0 then."""
        changed = {row: name for row, name in self.changed.items() if start <= row < stop}
        return replace(self, changed=changed, first=self.first + start)

    def name(self, row: int, path: str, label: StoredLabel) -> str:
        """The name of a row, which no other row has."""
        row += self.first
        return self.changed.get(row) or self.wished(row, path, label)

    def wished(self, row: int, path: str, label: StoredLabel) -> str:
        """The name of a row if no other row had it."""
        *above, last = ["", *(part for part in path.split("/") if part not in ("", ".", ".."))]
        stem, suffix = os.path.splitext(last)
        stem = stem if suffix.lower() in _SUFFIXES else last
        name = safe_name(stem if self.dotted else stem.replace(".", "_")) or f"{row:09d}"
        return "/".join([*self._above(above[1:], path, label), name])

    def _above(self, above: Sequence[str], path: str, label: StoredLabel) -> Sequence[str]:
        if self.folders is not None:
            # A crafted index may have any label.
            known = isinstance(label, int) and 0 <= label < len(self.folders)
            return [self.folders[label] if known else f"label {label}"]  # type: ignore[index]
        if path.startswith("/") or is_address(path):
            return []
        # No file is called like such a folder, because it has a dot.
        return [name for part in above[-_MOST_FOLDERS:] if (name := safe_folder(part.replace(".", "_")))]


def safe_name(text: str) -> str:
    """The nearest name that can be one of a file; empty if nothing is left. Bytes that are not UTF-8 stay."""
    name = re.sub(r"\A\.", "_", _ODD.sub("_", text).strip())[:_MOST_BYTES]
    while len(name.encode("utf-8", "surrogateescape")) > _MOST_BYTES:
        name = name[:-1]
    return name.rstrip()


def safe_folder(text: str) -> str:
    """The same for a folder, which webdataset would not take for one of its own (``__name__``)."""
    return re.sub(r"\A__+", "_", safe_name(text)).rstrip(".")


def class_folders(classes: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    """A folder for each class, by label, none of which is called like one of the files `taken`."""
    seen, folders = {_folded(name) for name in taken}, []
    for label, name in enumerate(classes):
        wished = folder = safe_folder(name) or f"class {label}"
        number = 1
        while _folded(folder) in seen:
            number += 1
            folder = f"{wished}-{number}"
        seen.add(_folded(folder))
        folders.append(folder)
    return tuple(folders)


def distinct_names(names: Names, rows: SourceRows) -> Names:
    """The same names, of which those that come again get a number.

    Takes eight bytes of memory for each row: names are compared by their hashes.
    """

    def wished(row: int, store: RecordStore, inner: int) -> str:
        return names.wished(row, store.filename(inner), store.label(inner))  # type: ignore[arg-type]

    hashes = np.fromiter((_hash(wished(row, *place)) for row, place in enumerate(rows)), np.uint64, len(rows))
    known, firsts = np.unique(hashes, return_index=True)
    again = np.ones(len(rows), bool)
    again[firsts] = False
    given, numbers, changed = set[int](), dict[int, int](), dict[int, str]()

    def is_taken(found: int) -> bool:
        place = int(np.searchsorted(known, np.uint64(found)))
        return found in given or (place < len(known) and int(known[place]) == found)

    doubles = np.flatnonzero(again)
    for row, place in zip(doubles.tolist(), rows.some(doubles), strict=True):
        name, number = wished(row, *place), numbers.get(int(hashes[row]), 1) + 1
        while is_taken(found := _hash(f"{name}-{number}")):
            number += 1
        numbers[int(hashes[row])] = number
        given.add(found)
        changed[row] = f"{name}-{number}"
    return replace(names, changed=changed)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())


def _hash(name: str) -> int:
    digest = hashlib.blake2b(_folded(name).encode("utf-8", "surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")
