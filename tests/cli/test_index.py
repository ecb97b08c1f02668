"""Laws of `packtrain index`: what it says of the fields that it finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.shards import jpeg, write_shards, write_tar
from helpers.staging.remote import BUCKET, installed
from helpers.support import encoded, packed, picture

from packtrain import drop_rows

from .conftest import Run


def test_maps_of_classes_that_would_be_colours_are_pointed_out(run: Run, tmp_path: Path) -> None:
    mask = encoded(picture(1, 24, 16, "L"), "PNG")
    shard = write_tar(tmp_path / "a.tar", [("a.jpg", jpeg()), ("a.json", b"{}"), ("a.seg.png", mask)])
    outcome = run("index", shard, tmp_path / "out")
    assert "seg: image (.seg.png); if these are maps of classes, index them with --mask seg" in outcome.out
    assert "--mask" not in run("index", shard, tmp_path / "masks", "--mask", "seg").out
    assert "\njson         json\n" in run("info", tmp_path / "out").out


def test_shards_may_lie_in_a_store(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = installed(tmp_path / "store", monkeypatch)
    objects.path(f"{BUCKET}/a").mkdir(parents=True)
    write_tar(objects.path(f"{BUCKET}/a/1.tar"), [("a.txt", b"x")])
    (tmp_path / "list").write_text(f"{BUCKET}/a/{{1,1}}.tar\n")
    outcome = run("index", f"{BUCKET}/a/1.tar", tmp_path / "out", "--workers", "1")
    assert (outcome.code, "1 samples in 1 shard(s)" in outcome.out) == (0, True)
    assert f"{BUCKET}/a (the shards lie there)" in run("info", tmp_path / "out").out
    assert "is there twice" in run("index", f"@{tmp_path}/list", tmp_path / "other").err
    assert run("index", f"@{BUCKET}/list", tmp_path / "other").err == f"error: {BUCKET}/list is not there\n"


def test_a_dataset_is_called_as_it_was_typed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path / "shards", 2)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    for out in ("out", "link/out"):
        assert run("index", "shards", out, "--part", "1/1").out.startswith(f"{out}: 8 samples in 2 shard(s)")
        for _ in range(2):
            assert run("merge", out).out.startswith(f"{out}: ")
        assert run("index", "shards", out).out.startswith(f"{out}: complete: 8 samples")
        assert run("index", "shards", out, "--update", "--json").json["dataset"] == out
    assert (tmp_path / "real/out/manifest.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("s/a.tar out", "s/a.tar is cut off"),
        ("s/{{a,b}}.tar out", "s/b.tar cannot be read"),
        ("s out", "s/a.tar is cut off"),
        ("{tmp_path}/s out", "{tmp_path}/s/a.tar is cut off"),
        ("s/../a out", "s/../a cannot be read"),
        ("@list out", "list cannot be read"),
        ("s/a.tar link", "link is not empty"),
        ("--update link", "link is no indexed dataset"),
        ("--update --base s .", ". is no indexed dataset"),
        ("--unpack . s/a.tar out", "s/a.tar is cut off"),
    ],
)
def test_an_error_calls_a_path_as_it_was_typed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/a.tar").write_bytes(b"x")
    (tmp_path / "link").symlink_to("s")
    monkeypatch.chdir(tmp_path)
    failed = run("index", *words.format(tmp_path=tmp_path).split())
    assert failed.err.startswith(f"error: {message.format(tmp_path=tmp_path)}")


def test_a_path_that_was_not_typed_stays_whole(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar.b").mkdir()
    (tmp_path / "list").write_text("a.tar.b/c.tar\n")
    monkeypatch.chdir(tmp_path)
    assert run("index", "@list", "a.tar").err.startswith(f"error: {tmp_path}/a.tar.b/c.tar cannot be read")


def test_parts_are_indexed_and_merged(run: Run, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", 3)
    out = tmp_path / "out"
    done = run("index", tmp_path / "shards", out, "--part", "1/2", "--workers", "1")
    assert "part 1/2; 1 shard(s) are still to be read; to make the dataset: packtrain merge" in done.out
    status = run("status", out)
    assert "2 of 3 shards" in status.out and "--array=2 with --part auto/3" in status.out
    failed = run("merge", out)
    assert failed.code == 1 and "1 of 3 shards have not been read" in failed.err
    assert run("index", tmp_path / "shards", out, "--part", "2/2", "--workers", "1").code == 0
    merged = run("merge", out)
    assert "12 samples in 3 shard(s)" in merged.out and "3 shard(s) read (3 by earlier runs) in " in merged.out
    assert run("merge", out, "--json").json["complete_before"] is True
    assert "complete: all 3 shards" in run("status", out).out
    (tmp_path / "shards").rename(tmp_path / "moved")
    os.utime(tmp_path / "moved" / "train-000000.tar", ns=(0, 0))
    outcome = run("index", "--update", "--base", tmp_path / "moved", out)
    assert "1 shard(s) read again, as their times had changed: their bytes have not" in outcome.out


def test_shards_of_a_dataset_are_kept_until_nobody_needs_them(
    run: Run, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = packed(images, tmp_path / "out", "tar")
    drop_rows(out, [0])
    told = run("index", out, "derived").out
    assert f"\nversion 2 of {out} has these shards and is kept for it, until `" in told
    drop_rows(out, [0])
    assert f" (needed by {tmp_path / 'derived'})\n" in run("log", out).out
    assert [each["pins"] for each in run("log", out, "--json").json] == [[], [str(tmp_path / "derived")], []]
    refused = run("drop-version", out, 2)
    assert refused.code == 1
    for said in (told, refused.err):
        assert f"`packtrain unpin {out} 2 --by {tmp_path / 'derived'}`" in said
    assert run("unpin", out, 2, "--by", tmp_path / "derived").code == 0
    assert run("pin", out, 1, "--by", "me").out == f"{out}: version 1 is kept for me\n"
    assert run("drop-version", out, 2).code == 0
    assert "needed by me" in run("drop-version", out, 1).err
