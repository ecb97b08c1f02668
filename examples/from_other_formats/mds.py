"""Packs an MDS dataset, which mosaicml-streaming reads: python mds.py FOLDER OUT."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from streaming import StreamingDataset

from packtrain import pack


def encoded(value: Any) -> Any:
    """The file of an image that Pillow has opened, and not decoded yet; anything else as it is."""
    file = getattr(value, "fp", None)
    return value if file is None else file.getvalue()


def samples(folder: str) -> Iterator[dict[str, Any]]:
    source = StreamingDataset(local=folder, shuffle=False, batch_size=1)
    for row in range(len(source)):
        yield {name: encoded(value) for name, value in source[row].items()}


if __name__ == "__main__":
    pack(samples(sys.argv[1]), sys.argv[2])
