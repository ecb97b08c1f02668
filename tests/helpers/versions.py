"""A dataset that was changed in every way, for tests of what carries all of its versions."""

from __future__ import annotations

from pathlib import Path

from packtrain import FieldColumn, add_field, append, drop_rows

from .support import packed

VERSIONS = (1, 2, 3, 4)


def changed_dataset(images: Path, folder: Path) -> Path:
    """Packs every other image of a list, appends the rest, drops a row of each segment, and adds a field to all."""
    lines = images.read_text().splitlines()
    for number in (0, 1):
        (folder / f"{number}.txt").write_text("\n".join(lines[number::2]))
    out = packed(folder / "0.txt", folder / "out", "tar", root=images.parent, shard_size=4096)
    append(out, folder / "1.txt", root=images.parent)
    drop_rows(out, [1, len(lines) - 1])
    captions = [f"{line.rsplit(maxsplit=1)[0]},{line[::-1]}" for line in lines]
    (folder / "captions.csv").write_text("\n".join(["path,caption", *captions]))
    add_field(out, folder / "captions.csv", [FieldColumn("caption", "text", "caption", by_path=False)])
    return out
