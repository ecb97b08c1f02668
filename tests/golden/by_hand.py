"""The golden datasets with numbers and strings, which were written by docs/format-versions.md alone, without packtrain.

Never made anew: every later packtrain has to read them as they are. The script that wrote them was this file, up to the
commit that says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
INDEXED: Final = HERE / "v3" / "tar-indexed"
"""The golden ``tar-verbatim``, to which a layer with `ROWS` was added as version 2."""
PACKED: Final = HERE / "v3" / "tar-numbers"
"""The golden ``tar-verbatim``, as if `LIST` had been packed, in which the samples have `ROWS`."""
LIST: Final = HERE / "v3" / "train.jsonl"
ROWS: Final[list[dict[str, Any]]] = [
    {"score": 5, "rating": None, "sharp": True, "source": "laion"},
    {"score": -(1 << 63), "rating": float("nan"), "sharp": False, "source": ""},
    {"score": 7, "rating": 4.5, "sharp": True, "source": None},
]
FIELDS: Final = {"score": "<i8", "rating": "<f8", "sharp": "|b1", "source": None}
