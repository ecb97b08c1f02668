"""Completion notes: each says what a finished shard holds. A shard that has a note is not packed again.

A note, ``parts/<shard>.npz``, is an `.npz` file of the shard's columns, in place order, and of a JSON text, followed by
the crc32c of the `.npz` file in 4 bytes. The merge turns the notes into the index and removes them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.files import write_file
from packtrain._core.index import ROW_COLUMNS
from packtrain._core.manifest import FileInfo, ShardInfo

from .listing import Reject
from .plan import Plan

PARTS: Final = "parts"
_CHECKSUM_BYTES: Final = 4
NOTE_COLUMNS: Final = ("line", "offset", "length", "crc32c", "width", "height", "orientation")
"""Columns of every note; if the dataset has labels, there is also ``label``."""


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
        facts = {
            "plan": self.plan_sha256,
            "info": asdict(self.info),
            "rejects": [asdict(item) for item in self.rejects],
        }
        content = io.BytesIO()
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        np.savez(content, allow_pickle=False, facts=text, **self.columns)
        data = content.getbuffer()
        write_file(note_path(folder, self.info.name), [data, _checksum(data)])


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
        data = memoryview(note_path(folder, name).read_bytes())
        if _checksum(data[:-_CHECKSUM_BYTES]) != data[-_CHECKSUM_BYTES:]:
            return None
        with np.load(io.BytesIO(data[:-_CHECKSUM_BYTES]), allow_pickle=False) as content:
            columns = {key: content[key] for key in content.files}
        facts = json.loads(columns.pop("facts").tobytes())
        info = _shard_info(facts["info"])
        note = ShardNote(facts["plan"], info, tuple(Reject(**item) for item in facts["rejects"]), columns)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = note.plan_sha256 == plan.sha256 and info.name == name and shard_is_present(folder, info)
    return note if sound else None


def shard_is_present(folder: Path, info: ShardInfo) -> bool:
    """Returns True if the shard and its sidecars exist and have the right sizes."""
    try:
        return all((folder / file.name).stat().st_size == file.bytes for file in (info, *info.sidecars))
    except OSError:
        return False


def note_columns(plan: Plan, rows: Sequence[tuple[Any, ...]], labels: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
    """Makes the columns of a note.

    Args:
        plan: Plan of the dataset.
        rows: One tuple per record, with its values in the order of `NOTE_COLUMNS`.
        labels: One label per record; ignored if the dataset has no labels.
    """
    transposed = zip(*rows, strict=True) if rows else ((),) * len(NOTE_COLUMNS)
    columns = {name: np.array(values, ROW_COLUMNS[name]) for name, values in zip(NOTE_COLUMNS, transposed, strict=True)}
    if plan.labels.kind != "none":
        columns["label"] = np.array(labels, plan.labels.dtype).reshape(plan.labels.shape(len(rows)))
    return columns


def _checksum(data: memoryview) -> bytes:
    return crc32c(data).to_bytes(_CHECKSUM_BYTES, "little")


def _shard_info(facts: dict[str, Any]) -> ShardInfo:
    return ShardInfo(**{**facts, "sidecars": tuple(FileInfo(**item) for item in facts["sidecars"])})
