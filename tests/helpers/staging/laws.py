"""Datasets for the tests of staging, and laws that a root must obey at any time.

Nothing here uses the code under test, apart from its names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from crc32c import crc32c
from helpers.support import encoded, packed, picture, shard_bytes, tree
from helpers.waiting import wait_until

from packtrain._core.manifest import FieldInfo, FileInfo, Manifest, ShardInfo
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import image_field

RECORDS = 16
SHARDS = 4


# Code for a separate process.
STAGE = """
from pathlib import Path
from packtrain._storage.staging.options import StageOptions
from packtrain._storage.staging.stager import stage

stage(args["dataset"], StageOptions(to=Path(args["place"]), **args["options"]))
"""


def packed_pictures(out: Path, seed: int) -> Path:
    """Packs a few pictures that are unique to `seed` into `SHARDS` tar files; returns their folder."""
    images = out.with_name(f"{out.name}-images")
    images.mkdir(parents=True)
    for number in range(RECORDS):
        (images / f"{number}.jpg").write_bytes(encoded(picture(1000 * seed + number, 256, 192)))
    listing = images / "train.txt"
    listing.write_text("".join(f"{number}.jpg {number % 3}\n" for number in range(RECORDS)))
    return packed(listing, out, "tar", shard_size=shard_bytes(listing, RECORDS // SHARDS) + 1)


def root_of(place: Path) -> Path:
    """The folder that holds this user's staged copies."""
    return place / f"packtrain-{os.geteuid()}"


def digests(folder: Path) -> dict[str, str]:
    """The same as `child.content` returns for a folder."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in tree(folder).items()}


def assert_same(entry: Path, source: Path) -> None:
    """An entry has exactly the content of its source, and its files are read-only."""
    found = tree(entry)
    assert found.pop("staged.json")
    assert found == tree(source)
    assert {
        file.stat().st_mode & 0o222 for file in entry.rglob("*") if file.is_file() and file.name != "staged.json"
    } == {0}


def assert_tidy(place: Path, *entries: Path) -> None:
    """The root holds only these entries, and empty lock files."""
    root = root_of(place)
    assert {path.name for path in root.iterdir()} == {".locks", ".tmp", ".trash", *(path.name for path in entries)}
    assert list((root / ".tmp").iterdir()) == list((root / ".trash").iterdir()) == []
    assert {path.stat().st_size for path in (root / ".locks").iterdir()} <= {0}


def taken(place: Path) -> int:
    """Bytes that everything in the root takes on its file system at one moment.

    The ledger is locked meanwhile, so nothing vanishes or moves. Otherwise the sum might include both an entry that is
    evicted during the walk and the one that takes its place.
    """
    root = root_of(place)
    with (root / ".locks" / "ledger").open("rb") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_SH)
        return sum(blocks(Path(folder, name)) for folder, _, names in os.walk(root) for name in names)


def blocks(path: Path) -> int:
    """Bytes that a file takes; 0 if it has just been renamed."""
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def until_pieces_are_noted(place: Path) -> None:
    """Waits until the journal of a copy of a `big_dataset` names pieces of shards."""
    journals = ".tmp/*/journal"
    wait_until(lambda: any("tar" in path.read_text() for path in root_of(place).glob(journals)), "pieces are noted")


def big_dataset(out: Path, sizes: Sequence[int]) -> Path:
    """A dataset whose shards are random bytes of the given sizes. It can be staged but not read."""
    random = np.random.default_rng(sizes)
    out.mkdir(parents=True)
    infos = []
    for number, bytes in enumerate(sizes):
        data = random.bytes(bytes)
        (out / f"big-{number:06d}.tar").write_bytes(data)
        infos.append(ShardInfo(f"big-{number:06d}.tar", bytes, crc32c(data), 0))
    (out / "plan.json").write_bytes(b"{}\n")
    (out / "rejects.jsonl").touch()
    manifest = Manifest(
        name="big",
        format="tar",
        fields=(FieldInfo.of(image_field(StoreOptions("verbatim"))),),
        labels=LabelSpec(),
        classes=None,
        records=0,
        lines=0,
        rejects=0,
        duplicates=0,
        plan_sha256=hashlib.sha256(b"{}\n").hexdigest(),
        written_by="a test",
        rejects_file=FileInfo("rejects.jsonl", 0, 0),
        columns=(),
        shards=tuple(infos),
    )
    (out / "manifest.json").write_bytes(manifest.dump())
    return out
