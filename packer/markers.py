"""Markers: small files beside the notes that say who packs a shard, why that has failed, or how long it took.

A marker is for people, through `pack_status`. Whether a shard is done is told by its note alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Self

from packtrain._core.errors import PacktrainError
from packtrain._core.opening import read_regular
from packtrain._core.processes import ProcessName
from packtrain._core.typed import Mismatch, parse_json

from .notes import PARTS
from .output import Output

PACKING: Final = ".packing"
FAILED: Final = ".failed"
PACKED: Final = ".packed"
ALONE: Final = "run without parts"
"""The role of a run that has none."""
_MOST_BYTES: Final = 1 << 16
_LONGEST_REASON: Final = 2000


@dataclass(frozen=True)
class Marker:
    """A file that a process has left about a shard.

    Attributes:
        host: Name of its machine.
        process: The process, as `ProcessName` writes it.
        role: What the run calls itself, such as ``part 3/16``, or `ALONE`.
        job: Number of the Slurm job, with that of the task in an array; None outside of Slurm.
        why: Why it has failed; None if it has not.
        seconds: How long packing took; None if it is not done.
    """

    host: str
    process: str
    role: str
    job: str | None
    why: str | None = None
    seconds: float | None = None

    @classmethod
    def mine(cls, role: str) -> Self:
        """Returns that of this process, which is packing."""
        return cls(os.uname().nodename, str(ProcessName.mine()), role or ALONE, _slurm_job(os.environ))

    @classmethod
    def load(cls, folder: Path, name: str) -> Self | None:
        """Reads ``parts/NAME`` of a dataset. None if there is none, or none that says anything."""
        try:
            return parse_json(cls, read_regular(folder / PARTS / name, _MOST_BYTES))
        except (OSError, Mismatch):
            return None

    def dump(self) -> bytes:
        """The content of the file."""
        return json.dumps(asdict(self)).encode()


@contextmanager
def marked(output: Output, shard: str, role: str) -> Iterator[None]:
    """Leave a marker while a shard is packed, and then that it is packed, or has failed."""
    mine, began = Marker.mine(role), time.monotonic()
    leave(output, shard + PACKING, mine)
    try:
        yield
        leave(output, shard + FAILED, None)
        leave(output, shard + PACKED, replace(mine, seconds=time.monotonic() - began))
    except (PacktrainError, MemoryError) as error:
        leave_failure(output, shard, role, str(error) or "out of memory")
        raise
    finally:
        # Another process may have begun the same shard meanwhile. Of an object store, the folder does not tell.
        if Marker.load(output.folder, shard + PACKING) in (mine, None):
            leave(output, shard + PACKING, None)


def leave_failure(output: Output, shard: str, role: str, why: str) -> None:
    """Leave a marker of a failure."""
    leave(output, shard + FAILED, replace(Marker.mine(role), why=why[:_LONGEST_REASON]))


def remove_ended(output: Output) -> None:
    """Remove the markers of processes of this machine that have ended without a word."""
    for path in (output.folder / PARTS).glob(f"*{PACKING}"):
        marker = Marker.load(output.folder, path.name)
        process = None if marker is None else ProcessName.parse(marker.process)
        if process is not None and process.ended:
            leave(output, path.name, None)


def leave(output: Output, name: str, marker: Marker | None) -> None:
    """Leave a marker, or remove it, if that can be done: where a disk is full, the work itself is what matters."""
    with suppress(PacktrainError, OSError):
        output.mark(name, None if marker is None else marker.dump())


def _slurm_job(environment: Mapping[str, str]) -> str | None:
    array, task = (environment.get(f"SLURM_ARRAY_{name}") for name in ("JOB_ID", "TASK_ID"))
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID")
