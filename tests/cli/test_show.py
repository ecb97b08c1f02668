"""Laws of `packtrain show`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.support import packed, require_module
from PIL import Image

from packtrain._cli import show_cmd
from packtrain._extras.looking.looker import Looker, LookOptions
from packtrain._extras.looking.sheet import sheet

from .conftest import Run


@pytest.fixture
def dataset(images: Path, tmp_path: Path) -> Path:
    return packed(images, tmp_path / "set", "tar")


def drawn(dataset: Path, rows: list[int], side: int) -> Image.Image:
    looker = Looker(dataset, LookOptions())
    return sheet([(row, looker.stored(row, side)) for row in rows], side)


def same(path: Path, image: Image.Image) -> bool:
    return bool((np.asarray(Image.open(path)) == np.asarray(image)).all())


def test_the_sheet_has_evenly_spaced_rows_or_those_that_are_named(run: Run, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    done = run("show", dataset, "--out", out, "-n", 4, "--side", 40)
    assert (done.code, done.out, done.err) == (0, f"{out}: 4 of 12 rows\n", "")
    assert same(out, drawn(dataset, [0, 3, 6, 9], 40))
    assert run("show", dataset, "--out", out, "--rows", "7,2-4,2", "--side", 40).code == 0
    assert same(out, drawn(dataset, [7, 2, 3, 4, 2], 40))


def test_a_transform_shows_other_pixels_in_each_epoch(run: Run, dataset: Path, tmp_path: Path) -> None:
    made = []
    for words in ("", "--transform rrc24", "--transform rrc24 --epoch 1", "--transform rrc24 --seed 1"):
        assert run("show", dataset, "--out", tmp_path / "sheet.png", *words.split()).code == 0
        made.append((tmp_path / "sheet.png").read_bytes())
    assert len(set(made)) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "this is no terminal: write the sheet to a file, --out sheet.png"),
        ("--out sheet.gif", "--out sheet.gif: expected a file name that ends in .png or .jpg"),
        ("--out {out} --rows 3-12", "--rows: there is no row 12: the last one is 11"),
        ("--out {out} --rows 0-99999999999999", "--rows: 100,000,000,000,000 rows, but at most 4,096 can be shown"),
        ("--out {out} --rows 5-3", "--rows='5-3': expected numbers of rows and ranges, as in 5,10-20"),
        ("--out {out} --rows x", "--rows='x': expected numbers of rows and ranges, as in 5,10-20"),
        ("--out {out} --boxes b", "--boxes='b': there is no field 'b'; the dataset has image"),
        ("--out {out} --transform rrc0", "--transform='rrc0': expected rrc224"),
    ],
)
def test_what_was_typed_wrong_is_said(run: Run, dataset: Path, tmp_path: Path, words: str, said: str) -> None:
    places = {"out": tmp_path / "sheet.png", "set": dataset}
    done = run("show", dataset, *words.format(**places).split())
    assert done.code == 2
    assert said.format(**places) in done.err
    assert not (tmp_path / "sheet.png").exists()


def test_a_terminal_that_shows_images_gets_them(
    run: Run, dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("TMUX", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    monkeypatch.setattr(show_cmd, "_terminal_width", lambda: 500)
    monkeypatch.setenv("TERM", "xterm-kitty")
    done = run("show", dataset, "-n", 3)
    assert done.code == 0
    assert done.out.startswith("\x1b_Ga=T,f=100,m=")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("KITTY_WINDOW_ID", raising=False)
    done = run("show", dataset, "-n", 3)
    assert (done.code, done.out) == (2, "")
    assert "this terminal is not known to show images: write the sheet to a file, --out sheet.png" in done.err


def test_a_filter_chooses_the_rows_and_they_keep_their_numbers(run: Run, dataset: Path, tmp_path: Path) -> None:
    require_module("polars")
    out = tmp_path / "sheet.png"
    done = run("show", dataset, "--out", out, "--where", "label = 1", "--side", 40)
    assert (done.code, done.out) == (0, f"{out}: 4 of 12 rows\n")
    assert same(out, drawn(dataset, [1, 4, 7, 10], 40))
    done = run("show", dataset, "--out", out, "--where", "label = 9")
    assert (done.code, "--where 'label = 9' takes none of the 12 rows" in done.err) == (2, True)
    done = run("show", dataset, "--out", out, "--where", "labl = 1")
    assert (done.code, "labl" in done.err) == (2, True)
