"""The golden datasets, and how they were packed: the packtrain of today has to write the same.

Never made anew: every later packtrain has to read them as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from helpers.support import packed

from packtrain._core.options import StoreOptions

HERE: Final = Path(__file__).parent
GOLDEN: Final = HERE / "v1"
CHANGED: Final = HERE / "v3" / "tar-changed"
"""The golden ``tar-verbatim``, to which two samples were appended; then rows 0 and 3 were dropped."""
SOURCES: Final = GOLDEN / "sources"

# Sources of the raw ones are PNG files of the asked-for size, so that no decoder's or filter's rounding is in them.
RAW: Final = StoreOptions("raw", resize="8x6")
DATASETS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    f"{format}-{store}": (format, {"store": StoreOptions(store) if store == "verbatim" else RAW})
    for format in ("tar", "hdf5", "lmdb")
    for store in ("verbatim", "raw")
} | {f"tar-{store}": ("tar", {"store": StoreOptions(store)}) for store in ("crop-ready", "coefficients")}
LISTS: Final = {
    "verbatim": ("train.txt", 1200),
    "raw": ("pixels.txt", 2 * 8 * 6 * 3),
    "crop-ready": ("crops.txt", 20000),
    "coefficients": ("crops.txt", 20000),
}
"""The list of each store mode, and a shard size that gives more than one shard."""


def pack_again(name: str, out: Path) -> Path:
    """Packs the sources of a golden dataset as they were packed for it."""
    format, options = DATASETS[name]
    listing, shard_bytes = LISTS[options["store"].store]
    options = {**options, "classes": SOURCES / "classes.txt", "shard_size": shard_bytes}
    return packed(SOURCES / listing, out, format, max_rejects="1", **options)
