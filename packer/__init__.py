"""Packing and verifying datasets."""

from .options import PackOptions
from .runner import PackProgress, PackReport, pack
from .shard_check import Problem, VerifyProgress
from .verifier import VerifyReport, verify

__all__ = ["PackOptions", "PackProgress", "PackReport", "Problem", "VerifyProgress", "VerifyReport", "pack", "verify"]
