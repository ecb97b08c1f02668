"""Laws of how a dataset shows itself in a notebook."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from helpers.support import encoded, image_set, packed, picture
from PIL import Image

from packtrain import PackOptions, concat, open_dataset, pack
from packtrain._packer.options import Columns, FieldColumn
from packtrain._readers.dataset import thumbnails

PAYLOAD = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Tags(HTMLParser):
    """The tags of a page, each with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_it_shows_a_few_rows_and_is_small(tmp_path: Path) -> None:
    dataset = open_dataset(packed(image_set(tmp_path / "files", 24), tmp_path / "out", "tar"))
    page = dataset._repr_html_()
    assert len(page) < 300_000
    assert html.escape(repr(dataset)) in page
    assert re.findall(r"<figcaption>([\d,]+) ", page) == ["0", "3", "6", "9", "12", "15", "18", "21"]
    sources = [attributes["src"] or "" for tag, attributes in Tags(page).found if tag == "img"]
    for row, source in zip(range(0, 24, 3), sources, strict=True):
        assert source.startswith("data:image/jpeg;base64,")
        shown = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))
        expected = dataset.image(row).convert("RGB").resize(shown.size)
        assert abs(np.asarray(shown, np.int64) - np.asarray(expected, np.int64)).mean() < 12


def test_subsets_and_concatenations_show_their_own_rows(images: Path, tmp_path: Path) -> None:
    dataset = open_dataset(packed(images, tmp_path / "out", "tar"))
    several = concat([dataset.subset([5]), dataset.subset([7])])
    first, second = (dataset.subset([row])._repr_html_() for row in (5, 7))
    page = several._repr_html_()
    for part in (first, second):
        assert re.findall(r'src="([^"]*)"', part)[0] in page


def test_texts_of_strangers_are_no_markup(tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(encoded(picture(0)))
    (tmp_path / "list.jsonl").write_text(json.dumps({"path": "0.jpg", "label": PAYLOAD, "text": PAYLOAD}))
    columns = Columns("path", "label", (FieldColumn("text", "text", "text", by_path=False),))
    pack(tmp_path / "list.jsonl", tmp_path / PAYLOAD.replace("/", ""), PackOptions(columns=columns))
    page = open_dataset(tmp_path / PAYLOAD.replace("/", ""))._repr_html_()
    assert [tag for tag, _ in Tags(page).found] == ["div", "code", "div", "figure", "img", "figcaption", "br"]
    assert page.count(html.escape(PAYLOAD)[:40]) == 2


def test_it_is_never_an_error(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(packed(images, tmp_path / "out", "tar"))
    assert "<figure" not in dataset.subset([])._repr_html_()
    for shard in (tmp_path / "out").glob("*.tar"):
        shard.write_bytes(b"")
    assert "damaged: " in dataset._repr_html_()

    def fail(*_: object) -> None:
        raise RuntimeError("<b>no</b>")

    monkeypatch.setattr(thumbnails, "stored_picture", fail)
    assert dataset._repr_html_() == f"<code>{html.escape(f'{dataset!r}: <b>no</b>')}</code>"
