"""Staged copies of datasets: make one, list them, evict, pin and repair them.

`docs/staging.md` describes the guarantees.
"""

from packtrain._storage.staging.entries import Entry, entries, pin, strays
from packtrain._storage.staging.eviction import evict
from packtrain._storage.staging.locks import Lease, lease_on
from packtrain._storage.staging.options import StageOptions, StageProgress
from packtrain._storage.staging.stager import RepairReport, Staged, repair, stage

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
    "strays",
]
