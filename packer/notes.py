"""Completion notes: each says what a finished shard holds. A shard that has a note is not packed again.

A note, ``parts/<shard>.npz``, is an `.npz` file of the shard's columns, in place order, and of a JSON text, followed by
the crc32c of the `.npz` file in 4 bytes. The merge turns the notes into the index and removes them.
"""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.errors import OutputConflict
from packtrain._core.files import write_file
from packtrain._core.index import ROW_COLUMNS
from packtrain._core.manifest import Sha256, ShardInfo, check_shard_names
from packtrain._core.opening import read_regular
from packtrain._core.schema import image_field
from packtrain._core.typed import parse_json

from .listing import Reject
from .plan import Plan

PARTS: Final = "parts"
_MOST_BYTES: Final = 1 << 30
"""Notes that are larger are not read: a shard of some twenty million records."""
_CHECKSUM_BYTES: Final = 4
NOTE_COLUMNS: Final = ("line", "offset", "length", "crc32c", "width", "height", "orientation")
"""Columns of every note; if the dataset has labels, there is also ``label``."""


@dataclass(frozen=True)
class _Facts:
    """The JSON text of a note."""

    plan: Sha256
    info: ShardInfo
    rejects: tuple[Reject, ...]


@dataclass(frozen=True)
class ShardNote:
    """What a finished shard holds.

    Attributes:
        plan_sha256: SHA-256 of the plan that the shard was packed by.
        info: What the manifest will say about the shard.
        rejects: Lines of the shard that were refused.
        columns: Arrays [records, ...] in place order, by the name of their column.
    """

    plan_sha256: str
    info: ShardInfo
    rejects: tuple[Reject, ...]
    columns: dict[str, npt.NDArray[Any]]

    def save(self, folder: Path) -> None:
        """Writes the note durably, into the ``parts`` folder of the dataset in `folder`."""
        facts = asdict(_Facts(self.plan_sha256, self.info, self.rejects))
        content = io.BytesIO()
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        np.savez(content, allow_pickle=False, facts=text, **self.columns)
        data = content.getbuffer()
        write_file(note_path(folder, self.info.name), [data, _checksum(data)])


def make_parts(folder: Path) -> None:
    """Makes the ``parts`` folder of the dataset in `folder`.

    Raises:
        OutputConflict: There is something else of that name. A link would lead the notes out of the dataset.
    """
    path = folder / PARTS
    with suppress(FileExistsError):
        path.mkdir()
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise OutputConflict(f"{path} is not a folder: remove it and run the same command again")


def note_path(folder: Path, shard: str) -> Path:
    """Returns the path of the note of `shard`."""
    return folder / PARTS / f"{shard}.npz"


def load_note(folder: Path, plan: Plan, number: int) -> ShardNote | None:
    """Returns the note of shard `number`, or None if the shard has to be packed.

    It has to be packed if there is no note, if the note is damaged or belongs to another plan, or if a file of the
    shard is missing or has another size than the note says.
    """
    name = plan.shards[number].name
    try:
        data = memoryview(read_regular(note_path(folder, name), _MOST_BYTES))
        if _checksum(data[:-_CHECKSUM_BYTES]) != data[-_CHECKSUM_BYTES:]:
            return None
        columns = _load_columns(data[:-_CHECKSUM_BYTES])
        facts = parse_json(_Facts, columns.pop("facts").tobytes())
        check_shard_names(plan.name, number, facts.info)
        if _forms(columns) != _forms(note_columns(plan, (), ())):
            return None
        if any(len(values) != facts.info.records for values in columns.values()):
            return None
    except Exception:
        # A note that was not written by packtrain can make numpy and zipfile raise anything.
        return None
    sound = facts.plan == plan.sha256 and facts.info.name == name and shard_is_present(folder, facts.info)
    return ShardNote(facts.plan, facts.info, facts.rejects, columns) if sound else None


def _load_columns(data: memoryview) -> dict[str, npt.NDArray[Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        # Members that are stored as they are cannot grow: nothing is larger than the note.
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ValueError("a compressed member")
        return {
            name.removesuffix(".npy"): np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
            for name in archive.namelist()
        }


def _forms(columns: dict[str, npt.NDArray[Any]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each column, apart from the number of records."""
    return {name: (values.dtype.str, values.shape[1:]) for name, values in columns.items()}


def shard_is_present(folder: Path, info: ShardInfo) -> bool:
    """Returns True if the shard and its sidecars are regular files of the right sizes."""
    try:
        found = [(os.stat(folder / file.name), file.bytes) for file in (info, *info.sidecars)]
    except OSError:
        return False
    return all(stat.S_ISREG(there.st_mode) and there.st_size == size for there, size in found)


def note_columns(plan: Plan, rows: Sequence[tuple[Any, ...]], labels: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
    """Makes the columns of a note.

    Args:
        plan: Plan of the dataset.
        rows: One tuple per record, with its values in the order of `NOTE_COLUMNS`.
        labels: One label per record; ignored if the dataset has no labels.
    """
    transposed = zip(*rows, strict=True) if rows else ((),) * len(NOTE_COLUMNS)
    dtypes = ROW_COLUMNS | image_field(plan.store).columns()
    columns = {name: np.array(values, dtypes[name]) for name, values in zip(NOTE_COLUMNS, transposed, strict=True)}
    if plan.labels.kind != "none":
        columns["label"] = np.array(labels, plan.labels.dtype).reshape(plan.labels.shape(len(rows)))
    return columns


def _checksum(data: memoryview) -> bytes:
    return crc32c(data).to_bytes(_CHECKSUM_BYTES, "little")
