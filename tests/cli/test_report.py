"""Laws of `packtrain report`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.support import image_set, packed

from packtrain import Loader, append, dataset_report, drop_rows, open_dataset, split
from packtrain.transforms import CenterCrop

from .conftest import Run, on_terminal


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return packed(image_set(folder / "images"), folder / "out", "tar")


def test_it_writes_a_page_and_says_what_was_found(run: Run, dataset: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    outcome = run("report", dataset, "--out", page, "--workers", 1)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[0] == f"{dataset}: 12 images"
    assert outcome.out.splitlines()[-1] == f"page: {page}"
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_the_json_is_the_librarys(run: Run, dataset: Path) -> None:
    found, report = run("report", dataset, "--json", "--workers", 1).json, dataset_report(dataset)
    assert found["long_sides"]["counts"] == list(report.long_sides.counts if report.long_sides else ())
    assert found.keys() == {*report.__dataclass_fields__}


def test_a_changed_dataset_that_was_split_says_what_is_on_its_sides(run: Run, tmp_path: Path) -> None:
    out = packed(image_set(tmp_path / "first", 6), tmp_path / "out", "tar")
    # The same files under other names: each pair that is cut is a leak.
    (tmp_path / "first").rename(tmp_path / "second")
    listing = tmp_path / "second" / "train.txt"
    for image in sorted(listing.parent.glob("*.jpg")):
        image.rename(image.with_name(f"copy of {image.name}"))
    listing.write_text("".join(f"copy of {line}\n" for line in listing.read_text().splitlines()))
    append(out, listing)
    drop_rows(out, [0])
    split(out, val="50%")
    val = {open_dataset(out, split="val").filename(row) for row in range(len(open_dataset(out, split="val")))}
    cut = sum((f"image {n}.jpg" in val) != (f"copy of image {n}.jpg" in val) for n in range(1, 6))
    assert cut
    page = tmp_path / "report.html"
    lines = run("report", out, "--out", page, "--workers", 1).out.splitlines()
    assert lines[:3] == [
        f"{out}: 11 images",
        f"  train {11 - len(val)}, val {len(val)}",
        f"  {cut} groups on several sides",
    ]
    assert all(text in page.read_text() for text in (">Sides</h2>", ">On several sides</h2>", f"{out}: val<"))
    found = run("info", out, "--json").json["sides"]
    assert {name: side["rows"] for name, side in found.items()} == {"train": 11 - len(val), "val": len(val)}
    assert f"\nsplit        train {11 - len(val)}, val {len(val)}\n" in run("info", out).out
    append(out, image_set(tmp_path / "third", 1))
    assert f"val {len(val)}; 1 on no side: run `packtrain split` again\n" in run("info", out).out


def test_the_figures_of_a_loader_are_charted(run: Run, dataset: Path, tmp_path: Path) -> None:
    with Loader(open_dataset(dataset, CenterCrop(20)), 4, num_workers=0) as loader:
        list(loader)
    stats, page = tmp_path / "stats.json", tmp_path / "report.html"
    stats.write_text(json.dumps(loader.stats.present.to_dict()))
    assert run("report", dataset, "--out", page, "--stats", stats, "--workers", 1).code == 0
    assert "waiting for batches" in page.read_text()


@pytest.mark.complete
def test_progress_is_a_bar_on_a_terminal(dataset: Path, tmp_path: Path) -> None:
    _, shown = on_terminal("report", dataset, "--out", tmp_path / "report.html", "--workers", 1)
    assert b"12.0/12.0" in shown and b"comparing view 12 of 12" in shown
