"""Foreign tar shards for tests."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from helpers.support import encoded, picture

from packtrain._core.index import Index
from packtrain._core.manifest import Manifest

Members = Sequence[tuple[str, bytes]]


def jpeg(seed: int = 0, width: int = 24, height: int = 16) -> bytes:
    """A small JPEG."""
    return encoded(picture(seed, width, height))


def npy(array: Any) -> bytes:
    """The array as an `.npy` file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def write_tar(path: Path, members: Members, format: int = tarfile.USTAR_FORMAT) -> Path:
    """Writes an archive with these names and contents."""
    with tarfile.open(path, "w", format=format) as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def write_shards(folder: Path, count: int, samples: int = 4) -> list[Path]:
    """Writes shards of samples with a JPEG, a label and a caption."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = []
    for shard in range(count):
        members: list[tuple[str, bytes]] = []
        for sample in range(samples):
            number = shard * samples + sample
            members += [(f"{number:06d}.jpg", jpeg(number, 20 + number, 30)), (f"{number:06d}.cls", b"%d" % number)]
            members += [(f"{number:06d}.txt", f"caption {number}".encode())]
        shards.append(write_tar(folder / f"train-{shard:06d}.tar", members))
    return shards


class Indexed:
    """Compares what an indexed dataset says with the bytes of its shards."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = folder = Path(folder)
        self.manifest = Manifest.load(folder)
        self.index = Index.of(folder, self.manifest)
        self.index.check_content()
        shards = range(len(self.manifest.shards))
        self._shards = [self.manifest.shard_path(folder, number).read_bytes() for number in shards]

    def record(self, name: str, row: int) -> bytes | None:
        """The record of a field, or None if the sample has none."""
        columns = self.index.field(name)
        columns.check(row)
        offset, length = int(columns["offset"][row]), int(columns["length"][row])
        return None if length < 0 else self._shards[int(self.index["shard"][row])][offset : offset + length]

    def samples(self) -> list[dict[str, Any]]:
        """Every sample: its records by field, its label and path."""
        found = []
        for row in range(self.manifest.records):
            sample: dict[str, Any] = {"path": self.index.text("path", row)}
            if "label" in self.index:
                sample["label"] = self.index["label"][row].item()
            for field in self.manifest.fields:
                record = self.record(field.name, row)
                if record is not None:
                    sample[field.name] = record
            found.append(sample)
        return found


def by_key(samples: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Samples by their key, without the name of the shard."""
    return {os.fspath(sample["path"]).partition("/")[2]: sample for sample in samples}
