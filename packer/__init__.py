"""Packing and verifying datasets."""

from .options import PackOptions
from .runner import PackProgress, PackReport, pack
from .verifier import Problem, VerifyProgress, VerifyReport, verify

__all__ = ["PackOptions", "PackProgress", "PackReport", "Problem", "VerifyProgress", "VerifyReport", "pack", "verify"]
