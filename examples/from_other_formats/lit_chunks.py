"""Packs what `litdata.optimize` wrote: python lit_chunks.py FOLDER OUT."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from litdata import StreamingDataset
from litdata.streaming.serializers import JPEGSerializer

from packtrain import pack


class Undecoded(JPEGSerializer):  # type: ignore[misc]
    """Gives JPEGs as the files that they are."""

    def deserialize(self, data: bytes) -> Any:
        return bytes(data)


def samples(folder: str) -> Iterator[dict[str, Any]]:
    source = StreamingDataset(folder, shuffle=False, serializers={"jpeg": Undecoded()})
    for row in range(len(source)):
        yield source[row]


if __name__ == "__main__":
    pack(samples(sys.argv[1]), sys.argv[2])
