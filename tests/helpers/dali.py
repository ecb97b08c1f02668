"""Whether DALI is there."""

from __future__ import annotations

import importlib.util
import platform

import pytest
from helpers.support import require_module


def require_dali() -> None:
    """Skips the test without DALI. With PACKTRAIN_REQUIRE_TOOLS=1 it fails, but only on machines that DALI runs on."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.importorskip("nvidia.dali")
    elif importlib.util.find_spec("nvidia") is None:
        require_module("nvidia")
    else:
        require_module("nvidia.dali")
