"""Lets pytest explain the assertions of the suite, which is not a test file by name."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("contract.packing", "contract.reading")
