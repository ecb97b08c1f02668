"""Laws of pages of rows and of searching in them, against Python's `in`."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.support import encoded, packed, picture
from hypothesis import given
from hypothesis import strategies as st

from packtrain._extras.looking import pages as module
from packtrain._extras.looking.pages import Page, Pages
from packtrain._readers.dataset.stored_rows import StoredRows

NAMES = [f"{'abAB'[n % 4]}{'xyé'[n % 3]}{n % 7}.jpg" for n in range(84)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredRows:
    """84 rows of short names that are much alike, and three classes."""
    folder = tmp_path_factory.mktemp("pages")
    for name in set(NAMES):
        (folder / name).write_bytes(encoded(picture(0, 8, 8)))
    lines = [f"{number % 4}/../{name} {number % 3}\n" for number, name in enumerate(NAMES)]
    for part in range(4):
        (folder / str(part)).mkdir()
    (folder / "list.txt").write_text("".join(lines))
    return StoredRows.open(packed(folder / "list.txt", folder / "out", "tar"))


def texts_of(stored: StoredRows) -> list[str]:
    return [stored.locate(row)[0].filename(row) for row in range(len(stored))]


def lower(text: str) -> str:
    """Small letters, of English only."""
    return text.encode().lower().decode()


@given(
    text=st.text("abxy0156./é", min_size=1, max_size=4),
    size=st.integers(1, 90),
    at_once=st.sampled_from([1, 5, 1000]),
    step=st.integers(1, 40),
)
def test_a_search_finds_what_is_there_page_by_page(
    stored: StoredRows, text: str, size: int, at_once: int, step: int
) -> None:
    chosen = None if step == 1 else np.arange(0, len(stored), step)
    pages, place, found = Pages(stored, chosen), 0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS_AT_ONCE", at_once)
        patch.setattr("packtrain._core.index._APART", 4)
        while True:
            page = pages.search(text, place, size, 60)
            assert len(page.rows) <= size
            found += page.rows.tolist()
            if page.next is None:
                break
            assert page.next > place
            place = page.next
    texts = texts_of(stored)
    rows = range(0, len(stored), step)
    assert found == [row for row in rows if lower(text) in lower(texts[row]) or text == str(row % 3)]


def test_a_search_without_time_goes_on_where_it_stopped(stored: StoredRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 10)
    page = Pages(stored).search("no such text", 20, 5, 0)
    assert (page.rows.tolist(), page.next) == ([], 30)


def test_pages_are_rows_in_order(stored: StoredRows) -> None:
    pages = Pages(stored, np.array([3, 5, 8, 13]))
    assert len(pages) == 4
    first, second = pages.page(0, 3), pages.page(3, 3)
    assert (first.rows.tolist(), first.next) == ([3, 5, 8], 3)
    assert (second.rows.tolist(), second.next) == ([13], None)
    assert [pages.place_of(row) for row in (0, 5, 6, 13, 99)] == [0, 1, 2, 3, 4]
    assert Pages(stored).page(200, 5).next is None
    assert isinstance(pages.page(9, 1), Page)
