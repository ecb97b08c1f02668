"""The Slurm scripts for packing, run as they are in a real cluster of one node: `pytest -m slurm`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.slurm import Cluster, cluster
from helpers.support import encoded, picture, tree

from packtrain import PackOptions, pack, pack_status
from packtrain._core.manifest import holds

pytestmark = pytest.mark.slurm

SCRIPTS = Path(__file__).parents[2] / "examples/packing"
COUNT = 48


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster() as it:
        yield it


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    """Images that take a while to be packed."""
    for number in range(COUNT):
        (tmp_path / f"{number}.jpg").write_bytes(encoded(picture(number, 1600, 1200)))
    listing = tmp_path / "train.txt"
    listing.write_text("".join(f"{number}.jpg {number % 3}\n" for number in range(COUNT)))
    return listing


def submit(it: Cluster, folder: Path, script: str, *options: str, **variables: str) -> str:
    """Submits one of the scripts for the list in `folder`."""
    variables |= {"LIST": str(folder / "train.txt"), "OUT": str(folder / "out")}
    return it.submit(SCRIPTS / script, "--cpus-per-task=1", *options, cwd=folder, **variables)


def test_a_task_is_killed_and_what_is_missing_is_packed_by_an_array_of_these_shards(
    slurm: Cluster, listing: Path
) -> None:
    folder, out = listing.parent, listing.parent / "out"
    # The plan decides on the size of shards; this run packs part of the first one.
    shard_bytes = 2 * (folder / "0.jpg").stat().st_size
    pack(listing, out, PackOptions(shard_size=shard_bytes), part="1/1000")

    job = submit(slurm, folder, "pack.sbatch", "--array=0-4:2")
    slurm.until(lambda: any(one.run == "part 2/3" for one in pack_status(out).under_way), "part 2/3 at work")
    status = pack_status(out)
    assert {one.job for one in status.under_way} <= {f"{job}_{task}" for task in (0, 2, 4)}
    slurm.run("scancel", f"{job}_2")
    ended = {"COMPLETED", "CANCELLED"}
    slurm.until(lambda: slurm.states(job) <= ended, f"the end of job {job}")
    assert slurm.states(job) == ended
    logs = "".join(path.read_text() for path in folder.glob("pack-*.log"))
    assert "part 2/3, task 2 of a Slurm array of 3 task(s) from 0 to 4 by 2" in logs

    merging = submit(slurm, folder, "merge.sbatch")
    slurm.until(lambda: slurm.states(merging) == {"FAILED"}, "a merge that is refused")
    assert "shards are missing from" in next(folder.glob("merge-*.log")).read_text()
    assert not holds(out, "manifest.json")

    shown = subprocess.run(
        ["packtrain", "status", out], env=slurm.environment, capture_output=True, text=True, check=True
    ).stdout
    (array,) = re.findall(r"--array=(\S+) with --part (\S+)$", shown, re.MULTILINE)
    tasks, part = array
    before = pack_status(out)
    assert before.missing and part == f"auto/{before.shards}"
    again = submit(slurm, folder, "pack.sbatch", f"--array={tasks}", PART=part)
    slurm.finish(again)
    slurm.finish(submit(slurm, folder, "merge.sbatch"))

    pack(listing, folder / "local", PackOptions(shard_size=shard_bytes), num_workers=1)
    assert tree(out) == tree(folder / "local")
    assert os.listdir(out / "index")
