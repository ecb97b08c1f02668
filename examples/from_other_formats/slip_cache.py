"""Packs a cache of slipstream: python slip_cache.py FOLDER OUT."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from slipstream.cache import OptimizedCache

from packtrain import pack


class Cache:
    """The samples of a cache of JPEGs, as a map-style dataset."""

    def __init__(self, folder: str) -> None:
        self.cache = OptimizedCache.load(Path(folder), verbose=False)

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, row: int) -> dict[str, Any]:
        found = self.cache.load_batch(np.array([row]), parallel=False)
        return {name: _value(field) for name, field in found.items()}


def _value(field: dict[str, Any]) -> Any:
    value = field["data"][0]
    return value[: int(field["sizes"][0])].tobytes() if "sizes" in field else value


if __name__ == "__main__":
    pack(Cache(sys.argv[1]), sys.argv[2])
