"""Completion notes: what a finished shard holds. A shard with a note is not packed again.

A note is an `.npz` file of the shard's columns in place order and a JSON text, ``parts/<shard>.npz``, and behind it
the crc32c of it all. The merge turns all notes into the index and removes them.
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
"""Columns that every note has; ``label`` comes on top where there are labels."""


@dataclass(frozen=True)
class ShardNote:
    """What a finished shard holds.

    Attributes:
        plan_sha256: The plan it was packed by.
        info: For the manifest.
        rejects: The lines that were refused.
        columns: Arrays [records, ...] in place order, by name.
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
    """Where the note of `shard` lies."""
    return folder / PARTS / f"{shard}.npz"


def load_note(folder: Path, plan: Plan, number: int) -> ShardNote | None:
    """The note of shard `number`, or None where the shard has to be packed.

    That is: there is no note, it cannot be read, it belongs to another plan, or its shard is not there as it says.
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
    """Whether the shard and its sidecars are there, with the right sizes."""
    try:
        return all((folder / file.name).stat().st_size == file.bytes for file in (info, *info.sidecars))
    except OSError:
        return False


def note_columns(plan: Plan, rows: Sequence[tuple[Any, ...]], labels: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
    """The columns of a note from tuples in the order of `NOTE_COLUMNS`, and labels."""
    transposed = zip(*rows, strict=True) if rows else ((),) * len(NOTE_COLUMNS)
    columns = {name: np.array(values, ROW_COLUMNS[name]) for name, values in zip(NOTE_COLUMNS, transposed, strict=True)}
    if plan.labels.kind != "none":
        columns["label"] = np.array(labels, plan.labels.dtype).reshape(plan.labels.shape(len(rows)))
    return columns


def _checksum(data: memoryview) -> bytes:
    return crc32c(data).to_bytes(_CHECKSUM_BYTES, "little")


def _shard_info(facts: dict[str, Any]) -> ShardInfo:
    return ShardInfo(**{**facts, "sidecars": tuple(FileInfo(**item) for item in facts["sidecars"])})
