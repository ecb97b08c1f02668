"""Laws of the page: complete, well-formed, without scripts, and strangers' words are words."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.support import encoded, packed, picture

from packtrain import dataset_report
from packtrain._extras.report.page import chart_stats, page_of
from packtrain.errors import UsageError

EVIL = "<img src=x onerror=alert(1)>&\"'\u202e.jpg"
VOID = {"meta", "rect", "line", "img", "br"}


class Reader(HTMLParser):
    """Checks that what is opened is closed, and keeps names and texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.sources: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.sources += [str(value) for name, value in attrs if name == "src"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names that would be markup in every place where a page has names: paths, classes, reasons."""
    folder = tmp_path_factory.mktemp("page") / "<b>set"
    folder.mkdir()
    data = encoded(picture(0, 200, 150))
    for name in (EVIL, f"again {EVIL}"):
        (folder / name).write_bytes(data)
    (folder / f"tiny {EVIL}").write_bytes(encoded(picture(1, 20, 200)))
    (folder / f"bad {EVIL}").write_bytes(b"<script>alert(1)</script>")
    (folder / "classes.txt").write_text("<script>alert(1)</script>\nb\n")
    names = (EVIL, f"again {EVIL}", f"tiny {EVIL}", f"bad {EVIL}")
    (folder / "train.txt").write_text("".join(f"{name} 0\n" for name in names))
    return packed(folder / "train.txt", folder / "out", "tar", classes=folder / "classes.txt", max_rejects="1")


def test_the_words_of_strangers_are_no_markup(dataset: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    found = {"wait_share": 0.5, "busy_share": 1, "stage_seconds": {"<script>": 1.5}, "samples_per_second": 7}
    stats.write_text(json.dumps(found))
    page = page_of(dataset_report(dataset), [chart_stats(stats)])
    reader = Reader(page)
    assert not reader.tags & {"script", "link", "iframe", "form", "object"}
    assert not [name for name in reader.attributes if name.startswith("on") or name == "href"]
    assert reader.sources and all(source.startswith("data:image/jpeg;base64,/9j/") for source in reader.sources)
    assert "<img src=x onerror=alert(1)>&\"'\\u202e.jpg" in reader.text
    assert "<script>alert(1)" in reader.text
    assert "http:" not in page and "https:" not in page
    assert "default-src 'none'" in page


def test_each_finding_is_on_the_page(dataset: Path) -> None:
    text = Reader(page_of(dataset_report(dataset))).text
    for expected in ("Labels", "Sizes", "Colours", "Refused lines", "Exact copies", "Tiny", "20 x 200 pixels"):
        assert expected in text


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"wait_share": "all"}', '{"wait_share": NaN}', "[" * 100_000])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"other.json is not .*loader\.stats"):
        chart_stats(file)
    with pytest.raises(UsageError, match=r"none.json.*No such file"):
        chart_stats(tmp_path / "none.json")
