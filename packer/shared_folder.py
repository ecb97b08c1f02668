"""A folder that several machines share: do they see the same one, and all that is in it?"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import PackError, UsageError
from packtrain._core.manifest import PLAN
from packtrain._core.opening import read_regular

from .notes import note_path

_PLAN_SECONDS: Final = 5.0
_NOTE_SECONDS: Final = 90.0
"""Network file systems may remember for a minute that a file was not there."""


@lru_cache(maxsize=8)
def require_plan(folder: Path, sha256: str) -> None:
    """Waits a moment for a plan that has just been written.

    Raises:
        UsageError: It is not there, or another one is.
    """
    path, end = folder / PLAN, time.monotonic() + _PLAN_SECONDS
    while (found := _digest(path)) != sha256:
        if time.monotonic() >= end:
            what = f"{path} is another file there" if found else f"there is no {path} there"
            raise UsageError(
                f"{socket.gethostname()} does not see the folder that is packed to: {what}. OUT must be a folder that "
                "all machines of the cluster share, under the same path"
            )
        time.sleep(0.2)


def _digest(path: Path) -> str | None:
    """SHA-256 of a file in hexadecimal digits; None if it cannot be read."""
    try:
        # Looks at the folder anew, where that is far away.
        os.listdir(path.parent)
        return hashlib.sha256(read_regular(path, MOST_BYTES)).hexdigest()
    except OSError:
        return None


def wait_for_notes(folder: Path, shards: Sequence[str]) -> None:
    """Waits until this machine, too, sees these shards and their notes, which others have finished.

    Raises:
        PackError: It does not.
    """
    end = time.monotonic() + _NOTE_SECONDS
    for name in shards:
        while not (note_path(folder, name).exists() and (folder / name).exists()):
            if time.monotonic() >= end:
                raise PackError(
                    f"{name} has been packed on another machine, but {folder} does not show it here. Is it a folder "
                    "that all machines share? Then run the same command again, which packs what is missing"
                )
            time.sleep(0.5)
            os.listdir(note_path(folder, name).parent)
