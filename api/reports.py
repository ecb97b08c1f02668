"""Results and progress of packing, indexing, verifying, filling and tuning.

The functions that return them, or call a `progress` function with them, say what they mean.
"""

from packtrain._extras.tune import TuneResult
from packtrain._growing.status import FillStatus
from packtrain._packer.foreign.indexer import IndexedField, IndexProgress, IndexReport
from packtrain._packer.problem import Problem
from packtrain._packer.pack_run import PackProgress, PackReport
from packtrain._packer.status import FailedShard, PackStatus, UnderWay
from packtrain._packer.verifier import VerifyProgress, VerifyReport

__all__ = [
    "FailedShard",
    "FillStatus",
    "IndexProgress",
    "IndexReport",
    "IndexedField",
    "PackProgress",
    "PackReport",
    "PackStatus",
    "Problem",
    "TuneResult",
    "UnderWay",
    "VerifyProgress",
    "VerifyReport",
]
