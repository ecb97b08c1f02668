"""Common parts of the laws of all formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from helpers.support import packed, shard_bytes

from .oracles import Found, Oracle

PER_SHARD = 5


class Laws:
    """Base of the suite's classes; a subclass names its `oracle`."""

    oracle: ClassVar[Oracle]

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The session's images, packed verbatim into several shards; not to be changed."""
        out = tmp_path_factory.mktemp("contract") / "set"
        return cls.pack(images, out, shard_size=shard_bytes(images, PER_SHARD))

    @classmethod
    def pack(cls, listing: Path, out: Path, **options: Any) -> Path:
        """Packs a list in this class's format; see `support.packed`."""
        return packed(listing, out, cls.oracle.format, **options)

    def shards(self, dataset: Path) -> list[list[Found]]:
        """Samples that the oracle finds in each shard that the manifest names."""
        return [list(self.oracle.records(dataset / shard["name"])) for shard in manifest(dataset)["shards"]]

    def found(self, dataset: Path) -> dict[int, Found]:
        """Samples that the oracle finds in all shards, by line."""
        everything = [record for shard in self.shards(dataset) for record in shard]
        by_line = {record.line: record for record in everything}
        assert len(by_line) == len(everything), "a line is stored twice"
        return by_line


def manifest(dataset: Path) -> dict[str, Any]:
    """manifest.json as any JSON parser has it."""
    body: dict[str, Any] = json.loads((dataset / "manifest.json").read_bytes())
    return body


def column(dataset: Path, name: str) -> npt.NDArray[Any]:
    """A column of the index as numpy has it."""
    array: npt.NDArray[Any] = np.load(dataset / "index" / f"{name}.npy")
    return array


def placed_lines(dataset: Path) -> list[int]:
    """The lines of all records in physical order, by the index."""
    lines: list[int] = column(dataset, "line")[column(dataset, "by_place")].tolist()
    return lines
