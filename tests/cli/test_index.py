"""Laws of `packtrain index`: what it says of the fields that it finds."""

from __future__ import annotations

import os
from pathlib import Path

from helpers.shards import jpeg, write_tar
from helpers.support import encoded, picture

from .conftest import Run


def test_maps_of_classes_that_would_be_colours_are_pointed_out(run: Run, tmp_path: Path) -> None:
    mask = encoded(picture(1, 24, 16, "L"), "PNG")
    shard = write_tar(tmp_path / "a.tar", [("a.jpg", jpeg()), ("a.json", b"{}"), ("a.seg.png", mask)])
    outcome = run("index", shard, tmp_path / "out")
    assert "seg: image (.seg.png); if these are maps of classes, index them with --mask seg" in outcome.out
    assert "--mask" not in run("index", shard, tmp_path / "masks", "--mask", "seg").out
    assert "\njson         json\n" in run("info", tmp_path / "out").out


def test_times_and_places_are_brought_up_to_date_without_naming_shards(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    shard = write_tar(tmp_path / "a" / "a.tar", [("a.txt", b"x")])
    run("index", shard, tmp_path / "out")
    (tmp_path / "a").rename(tmp_path / "b")
    os.utime(tmp_path / "b" / "a.tar", ns=(0, 0))
    outcome = run("index", "--update", "--base", tmp_path / "b", tmp_path / "out")
    assert "1 shard(s) read again, as their times had changed: their bytes have not" in outcome.out
    assert run("verify", tmp_path / "out").code == 0
