"""Files and documents that are damaged or forged, and what `verify` says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from packtrain import verify
from packtrain._core.document import dump_document
from packtrain._core.index import IndexWriter
from packtrain._core.manifest import Manifest
from packtrain.errors import DatasetError


@contextmanager
def changed(path: Path, change: Callable[[bytes], bytes | None]) -> Iterator[None]:
    """The file with other content, or for None without the file, for a while."""
    sound = path.read_bytes()
    data = change(sound)
    assert data != sound
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    yield
    path.write_bytes(sound)


def flipped(*offsets: int, mask: int = 0x55) -> Callable[[bytes], bytes]:
    """Changes one byte at each offset."""

    def change(data: bytes) -> bytes:
        array = bytearray(data)
        for offset in offsets:
            array[offset] ^= mask
        return bytes(array)

    return change


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a document, and gives it the checksum that then belongs to it."""
    body = json.loads(path.read_bytes())
    del body["checksum"]
    change(body)
    path.write_bytes(dump_document(body))


def reindexed(dataset: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes columns of the index, and every checksum that would show it."""
    manifest = Manifest.load(dataset)
    columns = {info.name: np.array(np.load(dataset / "index" / f"{info.name}.npy")) for info in manifest.columns}
    change(columns)
    writer = IndexWriter(dataset / "index", manifest.records)
    for name in columns:
        if not name.startswith("path_") and not name.endswith("blocks"):
            writer.add(name, columns[name])
    writer.add_text("path", columns["path_offsets"], columns["path_bytes"])
    (dataset / "manifest.json").write_bytes(replace(manifest, columns=writer.finish()).dump())


def assert_named_by_verify(folder: Path, name: str, case: object) -> None:
    """`verify` says that this file is damaged."""
    try:
        found = {problem.file for problem in verify(folder).problems}
    except DatasetError as error:
        assert name == "manifest.json", case
        found = {str(error.file)}
    assert name in found, (case, found)
