"""Makes the examples importable as they are for scripts in their folder, in the workers that tests start too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
