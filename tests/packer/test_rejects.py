"""Laws of refused lines: how many are allowed, what is kept of them, how a run continues after they are fixed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.packing import TWO_A_SHARD
from helpers.support import encoded, image_set, packed, picture, sources, tree

from packtrain import Columns, PackOptions, open_dataset, pack
from packtrain._core.options import StoreOptions
from packtrain.errors import ListError, PackError, TooManyRejects


def list_with_bad_lines(folder: Path, good: int, bad: int) -> Path:
    """A list of `good` images and then `bad` lines whose files are missing."""
    listing = image_set(folder, good)
    with listing.open("a") as file:
        file.writelines(f"missing {number}.jpg 0\n" for number in range(bad))
    return listing


def rejects(dataset: Path) -> list[dict[str, Any]]:
    """rejects.jsonl as any JSON parser has it."""
    return [json.loads(line) for line in (dataset / "rejects.jsonl").read_bytes().split(b"\n")[:-1]]


@pytest.mark.parametrize(
    ("bad", "limit", "fits"),
    [(0, "0", True), (1, "0", False), (1, "0.1%", True), (2, "1", False), (2, "16%", False), (2, "17%", True)],
)
def test_the_limit_is_a_count_or_a_share_of_all_lines_of_at_least_one(
    tmp_path: Path, bad: int, limit: str, fits: bool
) -> None:
    listing = list_with_bad_lines(tmp_path / "images", 12 - bad, bad)
    if fits:
        report = pack(listing, tmp_path / "out", max_rejects=limit)
        assert (report.records, report.rejects, len(rejects(tmp_path / "out"))) == (12 - bad, bad, bad)
    else:
        with pytest.raises(TooManyRejects, match=re.escape(f"{bad} of 12 lines refused")):
            pack(listing, tmp_path / "out", max_rejects=limit)
        assert not (tmp_path / "out" / "manifest.json").exists()


def test_lines_that_cannot_be_parsed_count_before_anything_is_written(tmp_path: Path) -> None:
    listing = image_set(tmp_path / "images", 3)
    listing.write_text(listing.read_text() + "image 0.jpg cat\nimage 1.jpg\n")
    with pytest.raises(TooManyRejects, match=r"2 of 5 lines refused, 1 allowed"):
        pack(listing, tmp_path / "out", max_rejects="1")
    assert not (tmp_path / "out").exists()
    assert pack(listing, tmp_path / "out", max_rejects="2").records == 3


def test_every_reject_is_kept_with_its_line_its_path_and_the_reason(tmp_path: Path, format_name: str) -> None:
    folder = tmp_path / "images"
    image_set(folder, 1)
    (folder / "empty").write_bytes(b"")
    lines = [
        b"no label",
        b"image 0.jpg 1",
        b"",
        b"caf\xe9 \xe2\x80\xa8\x7f.jpg 1",
        b"empty 2",
        b"a\tb 3",
        b"image 0.jpg x",
    ]
    (folder / "train.txt").write_bytes(b"\n".join(lines))
    out = packed(folder / "train.txt", tmp_path / "out", format_name, max_rejects="5")
    assert rejects(out) == [
        {"line": 0, "path": "no label", "reason": "label 'label' is not an integer"},
        {"line": 3, "path": "caf\udce9 \u2028\x7f.jpg", "reason": "No such file or directory"},
        {"line": 4, "path": "empty", "reason": "empty file"},
        {"line": 5, "path": "a\tb", "reason": "No such file or directory"},
        {"line": 6, "path": "image 0.jpg x", "reason": "label 'x' is not an integer"},
    ]
    assert open_dataset(out).store.index["line"].tolist() == [1]
    assert pack(
        folder / "train.txt", out, PackOptions(format_name, StoreOptions("verbatim")), max_rejects="5"
    ).complete_before


@pytest.mark.parametrize("name", ["train.txt", "train.csv"])
def test_credentials_in_a_list_are_neither_kept_nor_told(tmp_path: Path, name: str) -> None:
    """Also where the address is of no kind that packtrain reads, and where the line has no label."""
    image_set(tmp_path, 1)
    good = "image 0.jpg"
    lines = ["https://me:secret@host/a.jpg", "https://host/a.jpg?sig=secret", "s3://key:secret@bucket/a.jpg"]
    lines += ["ftp://me:secret@host/a.jpg"]
    listing, options = tmp_path / name, PackOptions()
    if name == "train.txt":
        rows = [f"{path} 0" for path in (good, *lines)]
        rows += [f"{lines[0]} one", lines[1]]
    else:
        rows = ["image,label", *(f"{path},0" for path in (good, *lines)), f"{lines[0]},one", f"{lines[1]},0,0"]
        options = PackOptions(columns=Columns(image="image", label="label"))
    for chosen, limit in ((rows, "0"), (rows, "99"), ([*rows[:-7], *rows[-6:]], "99")):
        listing.write_text("".join(f"{row}\n" for row in chosen))
        out = tmp_path / f"{limit} {len(chosen)}"
        failure = ""
        try:
            pack(listing, out, options, max_rejects=limit)
        except PackError as error:
            failure = str(error)
        assert "secret" not in failure
        files = [path.read_bytes() for path in out.rglob("*") if path.is_file()] if out.exists() else []
        assert not [data for data in files if b"secret" in data]
    assert [reject["path"] for reject in rejects(tmp_path / f"99 {len(rows)}")][:4] == [
        "https://host/a.jpg",
        "https://host/a.jpg",
        "s3://bucket/a.jpg",
        "ftp://host/a.jpg",
    ]


def test_the_error_sums_up_and_gives_examples(tmp_path: Path) -> None:
    listing = list_with_bad_lines(tmp_path / "images", 1, 7)
    for name in ("missing 3.jpg", "missing 5.jpg"):
        (tmp_path / "images" / name).write_bytes(b"")
    with pytest.raises(TooManyRejects) as caught:
        pack(listing, tmp_path / "out", max_rejects="50%")
    assert str(caught.value).splitlines() == [
        "7 of 8 lines refused, 4 allowed (5 x No such file or directory, 2 x empty file).",
        "  line 1: 'missing 0.jpg': No such file or directory",
        "  line 2: 'missing 1.jpg': No such file or directory",
        "  line 3: 'missing 2.jpg': No such file or directory",
        "  line 4: 'missing 3.jpg': empty file",
        "  line 5: 'missing 4.jpg': No such file or directory",
        f"Relative paths start from {tmp_path}/images: if the files lie elsewhere, name another folder (`root`).",
        "Finished shards are kept. Mend the files and pack again with --retry-rejects, or allow more with "
        "--max-rejects. If the list changes, pack into another folder",
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_met_too_many_goes_on_under_a_higher_limit(tmp_path: Path, format_name: str, workers: int) -> None:
    listing = list_with_bad_lines(tmp_path / "images", 9, 3)
    options = replace(TWO_A_SHARD, format=format_name, seed=None)
    out = tmp_path / "out"
    with pytest.raises(TooManyRejects, match="3 of 12 lines refused, 2 allowed"):
        pack(listing, out, options, max_rejects="2", num_workers=workers)
    # A worker that was stopped may have left a shard whose note was still to come: that one is packed again.
    noted = {note.name.partition(".")[0] for note in (out / "parts").glob("*.npz")}
    finished = {path: path.stat().st_mtime_ns for path in out.glob("train-*") if path.stem in noted}
    assert finished
    assert not (out / "manifest.json").exists()
    report = pack(listing, out, options, max_rejects="3", num_workers=workers)
    assert report.resumed >= len(finished) / 2, "tar has two files for a shard"
    assert (report.packed + report.resumed, report.records, report.rejects) == (6, 9, 3)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished, "a finished shard was packed again"
    pack(listing, tmp_path / "undisturbed", options, max_rejects="3")
    assert tree(out) == tree(tmp_path / "undisturbed")


def test_mended_files_are_packed_on_request_and_only_their_shards(tmp_path: Path, format_name: str) -> None:
    listing = list_with_bad_lines(tmp_path / "images", 5, 1)
    options = replace(TWO_A_SHARD, format=format_name, seed=None)
    out = tmp_path / "out"
    pack(listing, out, options)
    untouched = {path: path.stat().st_mtime_ns for path in out.glob("train-*") if "000002" not in path.name}
    (tmp_path / "images" / "missing 0.jpg").write_bytes(encoded(picture(77)))

    report = pack(listing, out, options)
    assert (report.complete_before, report.rejects) == (True, 1)
    report = pack(listing, out, options, retry_rejects=True)
    assert (report.complete_before, report.packed, report.resumed, report.rejects) == (False, 1, 2, 0)
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched
    report = pack(listing, out, options, retry_rejects=True)
    assert (report.complete_before, report.packed) == (True, 0)

    pack(listing, tmp_path / "fresh", options)
    assert tree(out) == tree(tmp_path / "fresh")


def test_a_list_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    listing = list_with_bad_lines(tmp_path / "images", 0, 2)
    with pytest.raises(ListError, match=r"none of 2 sampled files can be read\. First: .*missing"):
        pack(listing, tmp_path / "out", max_rejects="100%")
    for number in range(2):
        (tmp_path / "images" / f"missing {number}.jpg").write_bytes(b"<html>")
    with pytest.raises(PackError, match="no line of 2 could be packed; the first: line 0: not an image"):
        pack(listing, tmp_path / "out", max_rejects="100%")


def test_repeated_lines_are_packed_each_and_counted(tmp_path: Path, format_name: str) -> None:
    listing = image_set(tmp_path / "images", 3)
    listing.write_text(listing.read_text() * 2 + "image 0.jpg 7\n")
    report = pack(listing, tmp_path / "out", PackOptions(format_name, StoreOptions("verbatim")))
    assert (report.records, report.duplicates) == (7, 3)
    opened = open_dataset(tmp_path / "out")
    assert [opened.record(row) for row in range(7)] == [source.data for source in sources(listing)]
    assert opened.store.manifest.duplicates == 3


def test_a_finished_dataset_survives_a_retry_that_mends_nothing_under_a_lower_limit(
    tmp_path: Path, format_name: str
) -> None:
    listing = list_with_bad_lines(tmp_path / "images", 4, 2)
    out = packed(listing, tmp_path / "out", format_name, max_rejects="2")
    before = tree(out)
    report = pack(listing, out, PackOptions(format_name, StoreOptions("verbatim")), max_rejects="0", retry_rejects=True)
    assert (report.records, report.rejects) == (4, 2)
    assert tree(out) == before
