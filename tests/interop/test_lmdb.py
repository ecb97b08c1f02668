"""LMDB shards in other people's hands: plain py-lmdb and the tools of OpenLDAP."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.support import Source, output_of, packed, sources, tool


@pytest.fixture(scope="module")
def lines(images: Path) -> list[Source]:
    return sources(images)


@pytest.fixture(scope="module")
def shard(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = packed(images, tmp_path_factory.mktemp("lmdb") / "out", "lmdb")
    (path,) = out.glob("*.mdb")
    return path


def test_mdb_stat_counts_every_line_twice(shard: Path, lines: list[Source]) -> None:
    output = output_of(tool("mdb_stat", "lmdb-utils"), "-n", "-a", "-f", shard)
    sections = [section.split() for section in output.split("Status of ")[1:]]
    entries = {section[0]: section[section.index("Entries:") + 1] for section in sections if "Entries:" in section}
    assert entries == {"Main": "2", "images": str(len(lines)), "labels": str(len(lines))}


def test_mdb_dump_gives_every_byte(shard: Path, lines: list[Source]) -> None:
    output = output_of(tool("mdb_dump", "lmdb-utils"), "-n", "-s", "images", shard)
    body = output.partition("HEADER=END\n")[2].partition("DATA=END")[0].split()
    assert [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in zip(body[::2], body[1::2], strict=True)] == [
        (line.to_bytes(8, "big"), source.data) for line, source in enumerate(lines)
    ]
