"""Staged copies of datasets: make one, list them, evict, pin and repair them.

`docs/staging.md` describes the guarantees.
"""

from packtrain._storage.staging.entries import Entry as Entry
from packtrain._storage.staging.entries import entries as entries
from packtrain._storage.staging.entries import pin as pin
from packtrain._storage.staging.entries import strays as strays
from packtrain._storage.staging.eviction import evict as evict
from packtrain._storage.staging.locks import Lease as Lease
from packtrain._storage.staging.locks import lease_on as lease_on
from packtrain._storage.staging.options import StageOptions as StageOptions
from packtrain._storage.staging.options import StageProgress as StageProgress
from packtrain._storage.staging.stager import RepairReport as RepairReport
from packtrain._storage.staging.stager import Staged as Staged
from packtrain._storage.staging.stager import repair as repair
from packtrain._storage.staging.stager import stage as stage

__all__ = [name for name in dir() if not name.startswith("_")]
