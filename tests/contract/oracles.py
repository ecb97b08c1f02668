"""What other people's code finds in a shard. Nothing of packtrain is used here: that is what makes these oracles."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Found:
    """A record in a container.

    Attributes:
        line: Its key.
        payload: Its bytes.
        label: A number, a list of numbers, or None.
        pixels: uint8 [H, W, C] where it is raw, else None.
    """

    line: int
    payload: bytes
    label: Any
    pixels: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Oracle:
    """A format, and how its shards are read without packtrain.

    Attributes:
        format: Its name.
        records: Yields what is in a shard: in the order of the file, or of the keys.
    """

    format: str
    records: Callable[[Path], Iterator[Found]]


def _tar(shard: Path) -> Iterator[Found]:
    with tarfile.open(shard, "r:") as archive:
        content = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    for name, payload in content.items():
        key, extension = name.split(".")
        if extension in ("cls", "json"):
            continue
        label = next((content[f"{key}.{kind}"] for kind in ("cls", "json") if f"{key}.{kind}" in content), b"null")
        yield Found(int(key), payload, json.loads(label), _npy(payload) if extension == "npy" else None)


def _hdf5(shard: Path) -> Iterator[Found]:
    with h5py.File(shard, "r") as file:
        data = {name: file[name][()] for name in file}
    images, lines = data["images"], data["lines"].tolist()
    offsets = data.get("offsets")
    for i, line in enumerate(lines):
        label = data["labels"][i].tolist() if "labels" in data else None
        if offsets is None:
            yield Found(line, images[i].tobytes(), label, images[i])
        else:
            record = images[offsets[i] : offsets[i + 1]]
            pixels = record.reshape(data["shapes"][i]) if "shapes" in data else None
            yield Found(line, record.tobytes(), label, pixels)


def _lmdb(shard: Path) -> Iterator[Found]:
    with (
        lmdb.open(str(shard), subdir=False, readonly=True, lock=False, max_dbs=2) as environment,
        environment.begin() as transaction,
    ):
        labels = None
        if transaction.get(b"labels"):
            labels = environment.open_db(b"labels", transaction, create=False)
        for key, payload in transaction.cursor(environment.open_db(b"images", transaction, create=False)):
            label = json.loads(transaction.get(key, db=labels) or b"") if labels else None
            pixels = _npy(payload) if payload.startswith(b"\x93NUMPY") else None
            yield Found(int.from_bytes(key, "big"), payload, label, pixels)


def _npy(payload: bytes) -> npt.NDArray[np.uint8]:
    array: npt.NDArray[np.uint8] = np.load(io.BytesIO(payload))
    return array


TAR = Oracle("tar", _tar)
HDF5 = Oracle("hdf5", _hdf5)
LMDB = Oracle("lmdb", _lmdb)
