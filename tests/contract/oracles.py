"""Reads shards with other people's code. Nothing of packtrain is used here: that is what makes these oracles."""

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
        samples: Yields what is in a shard: in the order of the file, or of the keys.
    """

    format: str
    samples: Callable[[Path], Iterator[FoundSample]]

    def records(self, shard: Path) -> Iterator[Found]:
        """The content of a shard of images."""
        for found in self.samples(shard):
            value = found.fields["image"]
            payload = value if isinstance(value, bytes) else value.tobytes()
            if isinstance(value, bytes):
                pixels = np.load(io.BytesIO(value)) if value.startswith(b"\x93NUMPY") else None
            else:
                pixels = value if value.ndim == 3 else None
            yield Found(found.line, payload, found.label, pixels)


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


TAR = Oracle("tar", _tar_samples)
HDF5 = Oracle("hdf5", _hdf5_samples)
LMDB = Oracle("lmdb", _lmdb_samples)
