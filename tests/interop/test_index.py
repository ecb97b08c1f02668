"""The index in other people's hands: numpy and a JSON parser are enough to use a dataset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from helpers.support import packed, shard_bytes, sources


def test_numpy_and_json_find_every_record(images: Path, tmp_path: Path, format_name: str) -> None:
    dataset = packed(images, tmp_path / "out", format_name, shard_size=shard_bytes(images, 5))
    manifest = json.loads((dataset / "manifest.json").read_text("utf-8"))
    index = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in (dataset / "index").glob("*.npy")}
    assert {info["name"]: (info["dtype"], tuple(info["shape"])) for info in manifest["columns"]} == {
        name: (array.dtype.str, array.shape) for name, array in index.items()
    }
    shards = [np.memmap(dataset / shard["name"], np.uint8, mode="r") for shard in manifest["shards"]]
    texts, cuts = index["path_bytes"].tobytes(), index["path_offsets"]
    for row, source in enumerate(sources(images)):
        start = index["offset"][row]
        record = shards[index["shard"][row]][start : start + index["length"][row]]
        assert record.tobytes() == source.data
        assert index["label"][row] == source.label
        assert texts[cuts[row] : cuts[row + 1]].decode() == source.name
