"""Packs a .beton of FFCV: python beton.py FILE OUT."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np
from ffcv.fields import RGBImageField
from ffcv.reader import Reader

from packtrain import pack

JPEG = 0


class Beton:
    """The samples of a file, as a map-style dataset of images and numbers; other fields are left out."""

    def __init__(self, path: str) -> None:
        reader = Reader(path)
        self.rows, self.names, self.handlers = reader.metadata, reader.field_names, list(reader.handlers.values())
        self.sizes = dict(zip(reader.alloc_table["ptr"].tolist(), reader.alloc_table["size"].tolist(), strict=True))
        with open(path, "rb") as file:
            self.data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        sample = {}
        for place, (name, handler) in enumerate(zip(self.names, self.handlers, strict=True)):
            value = self.rows[row][place]
            if isinstance(handler, RGBImageField):
                sample[name] = self.image(value)
            elif value.dtype.names is None and not value.shape:
                sample[name] = value.item()
        return sample

    def image(self, found: Any) -> Any:
        start = int(found["data_ptr"])
        content = self.data[start : start + self.sizes[start]]
        if found["mode"] == JPEG:
            return bytes(content)
        return np.frombuffer(content, np.uint8).reshape(found["height"], found["width"], 3)


if __name__ == "__main__":
    pack(Beton(sys.argv[1]), sys.argv[2])
