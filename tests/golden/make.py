"""Makes the golden datasets, once per version of what lies on disk: ``python tests/golden/make.py``.

Never made anew: every later packtrain has to read them as they are.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from helpers.support import encoded, packed, picture  # noqa: E402

from packtrain import append, drop_rows  # noqa: E402
from packtrain._core.options import StoreOptions  # noqa: E402

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


def change() -> None:
    """Makes `CHANGED`."""
    if CHANGED.exists():
        sys.exit(f"{CHANGED} exists. What is on disk is for ever: a new version gets a new folder")
    shutil.copytree(GOLDEN / "tar-verbatim", CHANGED)
    more = SOURCES / "more.txt"
    more.write_text("d.png 1\ngrey.jpg 0\n")
    append(CHANGED, more)
    drop_rows(CHANGED, [0, 3])


def main() -> None:
    """Makes everything in `GOLDEN`."""
    if GOLDEN.exists():
        sys.exit(f"{GOLDEN} exists. What is on disk is for ever: a new version gets a new folder")
    SOURCES.mkdir(parents=True)
    (SOURCES / "a b.jpg").write_bytes(encoded(picture(1, 16, 12), quality=50))
    (SOURCES / "grey.jpg").write_bytes(encoded(picture(2, 12, 16, "L"), quality=50))
    (SOURCES / "c.png").write_bytes(encoded(picture(3, 8, 6), "PNG"))
    (SOURCES / "d.png").write_bytes(encoded(picture(4, 8, 6), "PNG"))
    (SOURCES / "classes.txt").write_text("tench\nZoë's goldfish\n", encoding="utf-8")
    (SOURCES / "train.txt").write_text("a b.jpg 0\n\nmissing.jpg 1\ngrey.jpg 1\nc.png 0\n")
    (SOURCES / "pixels.txt").write_text("c.png 1\nmissing.png 0\nd.png 0\n")
    (SOURCES / "photo.jpg").write_bytes(encoded(picture(5, 250, 180), quality=98, progressive=True))
    (SOURCES / "crops.txt").write_text("photo.jpg 1\nmissing.jpg 0\ngrey.jpg 0\n")
    for name in DATASETS:
        pack_again(name, GOLDEN / name)
    change()


if __name__ == "__main__":
    main()
