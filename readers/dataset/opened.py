"""Opens the records of a dataset where they are, staged, or in an object store. Does not import torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from packtrain._core.arguments import unexpected
from packtrain._core.errors import DatasetError, StagingError, UsageError
from packtrain._core.manifest import Manifest
from packtrain._core.paths import is_url, local_path
from packtrain._storage.location import remote_base

from .sound import Check
from .store import RecordStore

if TYPE_CHECKING:
    from packtrain._storage.staging.options import StageOptions


def open_store(
    path: str | os.PathLike[str],
    stage: str | os.PathLike[str] | StageOptions | None,
    budget: str | int | None,
    *,
    io: str = "auto",
    check: Check = True,
) -> RecordStore:
    """Opens the records of a dataset; arguments and errors are those of `open_dataset`."""
    stage = _checked_stage(stage)
    if is_url(os.fspath(path)) or (stage is not None and _has_shards_elsewhere(path)):
        from .streamed import open_streamed

        return open_streamed(path, stage, budget, io=io, check=check)
    if budget is not None:
        raise UsageError(
            f"budget={budget!r}: {os.fspath(path)} is on this machine, and only the cache of a dataset in an object "
            "store has a budget; stage=packtrain.StageOptions(to=..., budget=...) limits staged copies"
        )
    if stage is None:
        return RecordStore(path, io=io, check=check)
    from packtrain._storage.staging.stager import stage as staged

    # The lease of the copy is released at the end of the function, when the store holds its own.
    copied = staged(path, stage)
    return RecordStore(copied.path, io=io, check=check)


def _has_shards_elsewhere(path: str | os.PathLike[str]) -> bool:
    """True for a folder of this machine whose shards are objects in a store."""
    try:
        return remote_base(Path(path), Manifest.load(Path(path))) is not None
    except (DatasetError, OSError):
        # Who opens it says what is wrong.
        return False


def _checked_stage(stage: str | os.PathLike[str] | StageOptions | None) -> str | os.PathLike[str] | StageOptions | None:
    if stage is None:
        return None
    from packtrain._storage.staging.options import StageOptions

    if not isinstance(stage, str | os.PathLike | StageOptions):
        raise unexpected("stage", stage, "a folder for staged copies, or packtrain.StageOptions")
    if not isinstance(stage, StageOptions) and not os.path.lexists(local_path(stage)):
        raise StagingError(
            f"there is no folder {os.fspath(stage)}: make it, or name another one, on a local disk or in memory, as "
            'in stage="/dev/shm"'
        )
    return stage
