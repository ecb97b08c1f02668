"""Packing into an object store, and out of one: the same bytes as on a disk, whatever goes wrong on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.objects.datasets import behind, objects_of
from helpers.objects.faults import SLOW_DOWN, Chances, Corrupt, Reset, Rule, Status, Truncate
from helpers.objects.fixtures import WRITABLE
from helpers.objects.servers import Server
from helpers.support import encoded, tree
from PIL import Image

from packtrain import PackOptions, pack
from packtrain._core.options import FORMATS
from packtrain._storage.remote.urls import Url
from packtrain.errors import ListError, OutputConflict, RemoteError, UsageError

IMAGES = 36
OPTIONS = PackOptions(shard_size=20_000)
REJECTS = "10%"


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of small images, one of which is missing."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number in range(IMAGES):
        pixels = random.integers(0, 256, (20, 24, 3)).astype(np.uint8)
        (folder / f"image {number}.png").write_bytes(encoded(Image.fromarray(pixels), "PNG"))
    lines = "".join(f"image {number}.png {number % 7}\n" for number in range(IMAGES))
    (folder / "train.txt").write_text(f"{lines}missing.png 3\n")
    return folder / "train.txt"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_a_store_gets_the_bytes_that_a_folder_gets(store: Server, listing: Path, tmp_path: Path, format: str) -> None:
    url, options = store.fresh(), PackOptions(format, shard_size=20_000)
    there = pack(listing, url, options, max_rejects=REJECTS)
    here = pack(listing, tmp_path / "here", options, max_rejects=REJECTS)
    assert str(there.dataset) == url
    assert there.packed == here.packed > 2
    assert there.rejects == 1
    assert objects_of(store, url) == tree(tmp_path / "here")
    assert not list((tmp_path / "spools").iterdir())


@pytest.mark.complete
def test_lists_and_images_may_lie_in_a_store(store: Server, listing: Path, tmp_path: Path) -> None:
    source = store.fresh()
    for path in listing.parent.iterdir():
        store.put(f"{store.key(source)}/{path.name}", path.read_bytes())
    pack(f"{source}/train.txt", tmp_path / "there", OPTIONS, max_rejects=REJECTS)
    pack(listing, tmp_path / "root", PackOptions(shard_size=20_000, root=Path(source)), max_rejects=REJECTS)
    pack(listing, tmp_path / "here", OPTIONS, max_rejects=REJECTS)
    here = tree(tmp_path / "here")
    rejected = json.loads(here.pop("rejects.jsonl"))
    for name in ("there", "root"):
        found = tree(tmp_path / name)
        assert json.loads(found.pop("rejects.jsonl")) == {**rejected, "reason": "no such object"}
        assert found.keys() == here.keys()
        # The manifest holds the checksum of the rejects.
        assert {file for file in here if found[file] != here[file]} == {"manifest.json"}


def test_addresses_on_the_lines_of_a_list(store: Server, listing: Path, tmp_path: Path) -> None:
    source = store.fresh()
    store.put(f"{store.key(source)}/a.png", (listing.parent / "image 0.png").read_bytes())
    mixed = listing.with_name("mixed.txt")
    mixed.write_text(f"image 1.png 1\n{source}/a.png 0\n{source}/../a.png 2\n{source}/b.png 2\n")
    pack(mixed, tmp_path / "out", max_rejects=2)
    reasons = [json.loads(line)["reason"] for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert "`..`" in reasons[0]
    assert reasons[1] == "no such object"


@pytest.mark.complete
def test_a_shard_that_vanished_is_packed_again(store: Server, listing: Path, tmp_path: Path) -> None:
    url = store.fresh()
    shards = pack(listing, url, OPTIONS, max_rejects=REJECTS).packed
    whole = objects_of(store, url)
    assert pack(listing, url, OPTIONS, max_rejects=REJECTS).complete_before
    from packtrain._storage.remote.bucket import Bucket

    Bucket().remove(Url.parse(f"{url}/train-000001.tar"))
    again = pack(listing, url, OPTIONS, max_rejects=REJECTS)
    assert (again.packed, again.resumed) == (1, shards - 1)
    assert objects_of(store, url) == whole


@pytest.mark.complete
def test_what_lies_there_is_left_alone(store: Server, listing: Path) -> None:
    url = store.fresh()
    store.put(f"{store.key(url)}/holiday.jpg", b"mine")
    with pytest.raises(OutputConflict, match=r"is not empty \(holiday\.jpg\)"):
        pack(listing, url, OPTIONS, max_rejects=REJECTS)
    assert objects_of(store, url) == {"holiday.jpg": b"mine"}
    other = store.fresh()
    pack(listing, other, OPTIONS, max_rejects=REJECTS)
    before = objects_of(store, other)
    with pytest.raises(OutputConflict):
        pack(listing, other, PackOptions(shard_size=20_000, seed=1), max_rejects=REJECTS)
    assert objects_of(store, other) == before


@pytest.mark.complete
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_what_cannot_be_is_said_at_once(store: Server, listing: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"https://host/out cannot be written to"):
        pack(listing, "https://host/out", OPTIONS)
    with pytest.raises(ListError, match=rf"there is no list {store.url}/none\.txt"):
        pack(f"{store.url}/none.txt", tmp_path / "out")
    folder = store.fresh()
    store.put(f"{store.key(folder)}/train.txt", b"0 a.jpg\n1 b.jpg\n")
    with pytest.raises(ListError, match=rf"^{folder}/train\.txt: none of .* > {folder}/train\.new\.txt && ") as caught:
        pack(f"{folder}/train.txt", tmp_path / "out")
    assert "packtrain-list-" not in str(caught.value)
    with pytest.raises(UsageError, match="nothing is on its way"):
        pack(listing, tmp_path / "out", spool=tmp_path)
    other = f"{store.url.partition(':')[0]}://no-such-bucket"
    with pytest.raises(RemoteError, match=other):
        pack(listing, f"{other}/out", OPTIONS, max_rejects=REJECTS)


FAULTS = (
    (Status(500), 0.05),
    (SLOW_DOWN, 0.05),
    (Reset(after=0), 0.05),
    (Reset(after=0.5), 0.05),
    (Truncate(), 0.05),
)


@pytest.mark.complete
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(1, 12))])
def test_faults_on_the_way_change_nothing(store: Server, listing: Path, tmp_path: Path, seed: int) -> None:
    pack(listing, tmp_path / "here", OPTIONS, max_rejects=REJECTS)
    url = store.fresh()
    with behind(store, chances=Chances(seed, FAULTS, method="", most=2)) as between:
        pack(listing, url, OPTIONS, max_rejects=REJECTS)
        assert between.traffic().faults
    assert objects_of(store, url) == tree(tmp_path / "here")


@pytest.mark.complete
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_what_lies_there_is_compared_with_what_was_sent(store: Server, listing: Path, tmp_path: Path) -> None:
    url = store.fresh()
    with behind(store, Rule(Corrupt(), holds="train-000001.tar", times=1)):
        # The shard is packed once more.
        pack(listing, url, OPTIONS, max_rejects=REJECTS)
    with behind(store, Rule(Corrupt(), holds="train-000001.tar", times=None)) as between:
        other = store.fresh()
        with pytest.raises(Exception, match=r"train-000001\.tar does not hold what was uploaded"):
            pack(listing, other, OPTIONS, max_rejects=REJECTS)
        assert not between.traffic().of("manifest.json", "PUT").requests
    assert "train-000001.tar" not in objects_of(store, other)
    pack(listing, other, OPTIONS, max_rejects=REJECTS)
    assert objects_of(store, other) == objects_of(store, url)


def packer(listing: Path, url: str, folder: Path) -> subprocess.Popen[bytes]:
    """A packer in a process of its own, which leads a group."""
    command = [sys.executable, "-m", "packtrain", "pack", str(listing), url]
    command += ["--shard-size", "20000", "--max-rejects", REJECTS, "--workers", "2", "--spool", str(folder)]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.complete
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(1, 60))])
def test_a_packer_that_is_killed_leaves_no_half_dataset(
    store: Server, listing: Path, tmp_path: Path, seed: int
) -> None:
    pack(listing, tmp_path / "here", OPTIONS, max_rejects=REJECTS)
    whole = tree(tmp_path / "here")
    url, spools, random = store.fresh(), tmp_path / "own", np.random.default_rng(seed)
    for _ in range(4 if seed else 1):
        process = packer(listing, url, spools)
        time.sleep(random.uniform(0.5, 4))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        there = objects_of(store, url)
        if "manifest.json" in there:
            assert {name: data for name, data in there.items() if not name.startswith("parts/")} == whole
    process = packer(listing, url, spools)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert objects_of(store, url) == whole
    assert not list(spools.iterdir())


@pytest.mark.complete
def test_two_packers_at_once_make_one_dataset(store: Server, listing: Path, tmp_path: Path) -> None:
    pack(listing, tmp_path / "here", OPTIONS, max_rejects=REJECTS)
    url, failures = store.fresh(), []

    def run() -> None:
        try:
            pack(listing, url, OPTIONS, max_rejects=REJECTS)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert objects_of(store, url) == tree(tmp_path / "here")
