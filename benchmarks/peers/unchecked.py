"""packtrain without its checksums: what the other loaders do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packtrain.readers import open_dataset
from packtrain.readers.transforms import RandomCrop

from . import packtrain
from .common import SIDE, Batch

OPTIONS: Final = {**packtrain.OPTIONS, "check": False}


def raw(folder: Path) -> Iterator[Batch]:
    return packtrain.batches(packtrain.repeated(open_dataset(folder / "raw", RandomCrop(SIDE), check=False)))
