"""Laws of `packtrain export`: what it prints can be typed."""

from __future__ import annotations

import shlex
from pathlib import Path

from helpers.support import image_set, packed

from .conftest import Run


def test_the_last_line_can_be_typed(run: Run, tmp_path: Path) -> None:
    packed(image_set(tmp_path / "images", 5), tmp_path / "set", "tar")
    done = run("export", tmp_path / "set", tmp_path / "o u t", "--to", "folder", "--rows", "4,0-2")
    assert done.code == 0
    first, last = done.out.splitlines()
    assert first.startswith(f"{tmp_path}/o u t: 4 rows in 1 part(s): ")
    words = shlex.split(last.removeprefix("to read them: "))
    words[words.index("OUT")] = str(tmp_path / "again")
    again = run(*words[1:], "--json")
    assert again.json["records"] == 4
    complete = run("export", tmp_path / "set", tmp_path / "o u t", "--to", "folder", "--rows", "4,0-2")
    assert complete.out.splitlines() == [f"{tmp_path}/o u t: 4 rows in 1 part(s): already complete", last]


def test_json_and_wrong_usage(run: Run, tmp_path: Path) -> None:
    packed(image_set(tmp_path / "images", 5), tmp_path / "set", "tar")
    words = ("export", tmp_path / "set", tmp_path / "out")
    assert "--to" in run(*words).err
    done = run(*words, "--to", "parquet", "--rows", "5")
    assert (done.code, done.out) == (2, "")
    assert "--rows 5: rows 5 to 5 of a dataset of 5 rows" in done.err
    done = run(*words, "--to", "folder", "--rows", "1", "--where", "row = 1")
    assert (done.code, "--where and --rows cannot be combined" in done.err) == (2, True)
    done = run("export", tmp_path / "set", "s3://bucket/out", "--to", "parquet")
    assert (done.code, "s3://bucket/out is an address" in done.err) == (2, True)
    done = run(*words, "--to", "webdataset", "--json")
    assert (done.json["rows"], done.json["to"], done.json["complete_before"]) == (5, "webdataset", False)
    done = run(*words, "--to", "parquet")
    assert (done.code, "holds an export to webdataset, and not to parquet" in done.err) == (1, True)
    assert run("export", tmp_path / "nowhere", tmp_path / "new", "--to", "folder").code == 1
