"""Laws of `packtrain status`: it tells what it finds, whatever that is. Parts are in test_pack."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from helpers import fillers
from helpers.fillers import wait_until_unfilled

from packtrain import GrowingCache, index_shards, pack
from packtrain._core.generations import STATUS

from .conftest import Run

SIZES = ("--budget", "4MiB", "--shard-size", "128KiB")


class TestOfADataset:
    def test_so_is_one_that_is_indexed(self, run: Run, images: Path, tmp_path: Path) -> None:
        pack(images, tmp_path / "out")
        index_shards([tmp_path / "out"], tmp_path / "index")
        found = run("status", tmp_path / "index", "--json").json
        assert (found["complete"], found["shards"], found["missing"], found["array"]) == (True, 1, [], "")

    def test_a_folder_of_something_else_has_none(self, run: Run, tmp_path: Path) -> None:
        done = run("status", tmp_path, "--json")
        assert (done.code, done.json["error"]) == (1, "OutputConflict")


class TestOfACache:
    def test_it_is_shown_as_a_table(self, run: Run, root: Path) -> None:
        run("fill", "helpers.fillers:few", root, *SIZES)
        done = run("status", root)
        assert (done.code, done.err) == (0, "")
        assert "filler    ended: its source has ended" in done.out
        assert "60 in generation" in done.out

    def test_it_is_shown_as_json(self, run: Run, root: Path) -> None:
        run("fill", "helpers.fillers:few", root, *SIZES)
        found = run("status", root, "--json").json
        assert (found["root"], found["state"], found["figures"]["samples"]) == (str(root), "ended", 60)

    def test_a_filler_that_was_killed_is_a_failure(self, run: Run, root: Path) -> None:
        with GrowingCache(root, "4MiB", shard_size="128KiB") as cache:
            cache.fill(fillers.steady)
            os.kill(cache.status().process, signal.SIGKILL)
            wait_until_unfilled(root)
            done = run("status", root)
        assert done.code == 1
        assert "killed" in done.out

    def test_a_cache_whose_status_is_damaged_is_still_a_cache(self, run: Run, root: Path) -> None:
        assert run("fill", "helpers.fillers:few", root, *SIZES).code == 0
        (root / STATUS).write_bytes(b"{")
        done = run("status", root)
        assert done.code == 1 and "its status is missing or damaged" in done.err
