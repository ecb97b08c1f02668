"""Parquet files with images inside, as Hugging Face's `datasets` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.support import encoded, picture, require_module

NAMES = ("tench", "goldfish", "Zoë")
COUNT = 11


def images() -> list[bytes]:
    return [encoded(picture(number, 20, 16), "PNG" if number % 4 == 3 else "JPEG") for number in range(COUNT)]


def written(
    folder: Path, files: int = 2, described: bool = True, names: tuple[str, ...] = NAMES, **more: list[Any]
) -> Path:
    """Parquet files as `datasets` writes them, with groups of three rows, written without it."""
    require_module("pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    data = images()
    features = {"picture": {"_type": "Image"}, "fish": {"_type": "ClassLabel", "names": list(names)}}
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {
            "picture": pa.array([{"bytes": each, "path": f"{row}.jpg"} for row, each in enumerate(data)], struct),
            "fish": [row % 3 for row in range(COUNT)],
            "caption": [f"n° {row}" for row in range(COUNT)],
            "boxes": [[[row, 1.5]] for row in range(COUNT)],
            "info": [{"id": row} for row in range(COUNT)],
            **more,
        }
    )
    if described:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    folder.mkdir()
    step = -(-COUNT // files)
    for number in range(files):
        parquet.write_table(table.slice(number * step, step), folder / f"part-{number}.parquet", row_group_size=3)
    return folder
