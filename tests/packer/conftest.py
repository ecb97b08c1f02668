"""Fixtures for tests of the packer: what they pack is in memory."""

from __future__ import annotations

from helpers.memory import tmp_path_in_memory

__all__ = ["tmp_path_in_memory"]
