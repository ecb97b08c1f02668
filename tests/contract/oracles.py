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


Value = bytes | npt.NDArray[Any]


@dataclass(frozen=True)
class FoundSample:
    """A sample of many fields in a container.

    Attributes:
        line: Its key.
        label: A number, a list of numbers, or None.
        fields: The fields that it has: an array where the container has a type, else bytes.
    """

    line: int
    label: Any
    fields: dict[str, Value]


@dataclass(frozen=True)
class Oracle:
    """A format, and how its shards are read without packtrain.

    Attributes:
        format: Its name.
        records: Yields what is in a shard of images: in the order of the file, or of the keys.
        samples: Yields what is in a shard of any fields.
    """

    format: str
    records: Callable[[Path], Iterator[Found]]
    samples: Callable[[Path], Iterator[FoundSample]]


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


def _tar_samples(shard: Path) -> Iterator[FoundSample]:
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(shard, "r:") as archive:
        for member in archive:
            key, _, extension = member.name.partition(".")
            parts = samples.setdefault(key, {})
            assert samples[key] is list(samples.values())[-1], "the members of a sample are adjacent"
            assert extension not in parts
            parts[extension] = archive.extractfile(member).read()  # type: ignore[union-attr]
    for key, parts in samples.items():
        label = next((parts.pop(kind) for kind in ("cls", "json") if kind in parts), b"null")
        named = {name.partition(".")[0] if "." in name else "image": payload for name, payload in parts.items()}
        yield FoundSample(int(key), json.loads(label), dict(named))


def _hdf5_samples(shard: Path) -> Iterator[FoundSample]:
    with h5py.File(shard, "r") as file:
        groups: dict[str, Any] = {name: {key: group[key][()] for key in group} for name, group in _groups(file)}
        lines, labels = file["lines"][()].tolist(), file["labels"][()].tolist() if "labels" in file else None
    for i, line in enumerate(lines):
        fields = {
            name: _record(group, i) for name, group in groups.items() if "present" not in group or group["present"][i]
        }
        yield FoundSample(line, None if labels is None else labels[i], fields)


def _groups(file: Any) -> Iterator[tuple[str, Any]]:
    if "images" in file:
        yield "image", {"data": file["images"], **{key: file[key] for key in file if key not in ("images", "fields")}}
    for name in file.get("fields", ()):
        yield name, file["fields"][name]


def _record(group: dict[str, npt.NDArray[Any]], i: int) -> Value:
    data, offsets = group["data"], group.get("offsets")
    record = data[i] if offsets is None else data[offsets[i] : offsets[i + 1]]
    if "shapes" in group:
        return np.asarray(record.view(f"<u{len(record) // np.prod(group['shapes'][i])}").reshape(group["shapes"][i]))
    return np.asarray(record)


def _lmdb_samples(shard: Path) -> Iterator[FoundSample]:
    found: dict[int, dict[str, bytes]] = {}
    with (
        lmdb.open(str(shard), subdir=False, readonly=True, lock=False, max_dbs=100) as environment,
        environment.begin() as transaction,
    ):
        for name in list(transaction.cursor().iternext(values=False)):
            for key, payload in transaction.cursor(environment.open_db(name, transaction, create=False)):
                found.setdefault(int.from_bytes(key, "big"), {})[name.decode()] = payload
    for line, values in found.items():
        label = json.loads(values.pop("labels", b"null"))
        yield FoundSample(line, label, {_field_of(name): payload for name, payload in values.items()})


def _field_of(database: str) -> str:
    return "image" if database == "images" else database.removeprefix("fields/")


def _npy(payload: bytes) -> npt.NDArray[np.uint8]:
    array: npt.NDArray[np.uint8] = np.load(io.BytesIO(payload))
    return array


TAR = Oracle("tar", _tar, _tar_samples)
HDF5 = Oracle("hdf5", _hdf5, _hdf5_samples)
LMDB = Oracle("lmdb", _lmdb, _lmdb_samples)
