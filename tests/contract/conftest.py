"""Lets pytest explain the assertions of the suite, which is not a test file by name. Its datasets are in memory."""

from __future__ import annotations

import pytest
from helpers.memory import tmp_path_in_memory

__all__ = ["tmp_path_in_memory"]

pytest.register_assert_rewrite("contract.packing", "contract.reading")
