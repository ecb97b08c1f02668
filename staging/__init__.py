"""Staging: verified, shared, leased copies of datasets on fast storage of one machine.

`docs/staging.md` describes the guarantees, and how the folders and locks are used. Each module is imported when one of
its names is first used: opening any dataset needs `lease_on`, but few datasets are staged.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .eviction import evict
    from .inventory import Entry, entries, pin
    from .locks import Lease
    from .options import StageOptions, StageProgress
    from .repairing import RepairReport, repair
    from .root import lease_on
    from .stager import Staged, stage

_HOME = {
    "Entry": "inventory",
    "Lease": "locks",
    "RepairReport": "repairing",
    "StageOptions": "options",
    "StageProgress": "options",
    "Staged": "stager",
    "entries": "inventory",
    "evict": "eviction",
    "lease_on": "root",
    "pin": "inventory",
    "repair": "repairing",
    "stage": "stager",
}

__all__ = [
    "Entry",
    "Lease",
    "RepairReport",
    "StageOptions",
    "StageProgress",
    "Staged",
    "entries",
    "evict",
    "lease_on",
    "pin",
    "repair",
    "stage",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
