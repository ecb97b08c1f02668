"""Makes the benchmarks importable as they are for `benchmarks/run.py`."""

from __future__ import annotations

import sys
from pathlib import Path

# Last: nothing of packtrain is to be found under another name.
sys.path.append(str(Path(__file__).parents[2]))
