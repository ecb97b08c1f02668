"""Packing and verifying datasets."""

from packtrain.packer.options import PackOptions
from packtrain.packer.runner import PackProgress, PackReport, pack

__all__ = ["PackOptions", "PackProgress", "PackReport", "pack"]
