"""Fixtures for tests with other programs: what is packed for them is in memory."""

from __future__ import annotations

from helpers.memory import tmp_path_in_memory

__all__ = ["tmp_path_in_memory"]
