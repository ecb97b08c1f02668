"""Laws of lists that are read many lines at a time: they say what a reading line by line says."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain import LabelSpec
from packtrain._packer.lists import blocks, reader
from packtrain._packer.lists.blocks import LargeText, blocks_of, distinct, line_hashes, plain_lines
from packtrain._packer.lists.image_list import ImageList
from packtrain._packer.lists.labels import BadLine
from packtrain._packer.lists.lines import LineParser, Separator
from packtrain._packer.lists.reader import read_list
from packtrain.errors import ListError, UsageError

PATHS = [b"a.jpg", b"some/path of images/n01.JPEG", b"x" * 30, b"\xff"]
NUMBERS = [b"0", b"7", b"12345678", b"123456789", b"+1", b"1_0"]
BETWEEN = [b" ", b"  ", b"\t", b",", b";", b'"', b"\r", b"\x0b", b"\0", b"\x1c", b"\n", b"\n", b"\n"]
PIECES = st.sampled_from([*PATHS, *NUMBERS, *BETWEEN])
TEXTS = st.one_of(
    st.lists(PIECES, max_size=60).map(b"".join),
    st.lists(st.tuples(st.sampled_from([b"a b.jpg", b"dir/c.png", b" e"]), st.integers(0, 10**9)), max_size=40).map(
        lambda lines: b"".join(b"%s %d\n" % line for line in lines)
    ),
)
SEPARATORS = st.sampled_from([Separator(), Separator(b","), Separator(b"\t"), Separator(b";", 1)])


def find_lines(text: bytes) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each line that is not blank, one by one."""
    start = 3 if text.startswith(b"\xef\xbb\xbf") else 0
    for number, line in enumerate(text[start:].split(b"\n")):
        if length := len(line.rstrip()):
            yield number, start, start + length
        start += len(line) + 1


@pytest.fixture(autouse=True, params=[7, 64, 4 << 20])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law holds wherever blocks end."""
    monkeypatch.setattr(blocks, "_BYTES", request.param)


@given(TEXTS)
def test_blocks_hold_the_lines_that_are_not_blank(text: bytes) -> None:
    found = []
    for block in blocks_of(text):
        for index in range(len(block.numbers)):
            start, end = block.base + block.starts[index], block.base + block.ends[index]
            assert block.line(index) == text[start:end]
            found.append((block.numbers[index], start, end))
    assert found == list(find_lines(text))


@given(TEXTS)
def test_equal_lines_have_equal_numbers_and_others_do_not(text: bytes) -> None:
    lines = [block.line(index) for block in blocks_of(text) for index in range(len(block.numbers))]
    hashes = array("Q", [number for block in blocks_of(text) for number in line_hashes(block).tolist()])
    every = hashes.tolist()
    assert len({*zip(lines, every, strict=True)}) == len(set(lines)) == len(set(every))
    assert distinct(hashes) == len(set(lines))


def test_lines_that_differ_anywhere_have_other_numbers() -> None:
    for length in [*range(1, 40), 4095, 4096, 4097, 5000]:
        line = b"x" * length
        changed = {line[:place] + b"y" + line[place + 1 :] for place in range(0, length, max(1, length // 40))}
        some = [line, line + b"x", *changed]
        hashes = np.concatenate([line_hashes(block) for block in blocks_of(b"\n".join(some))])
        assert len(set(hashes.tolist())) == len(some) == len(set(some))


@given(TEXTS, SEPARATORS, st.sampled_from([None, 8]))
def test_what_counts_as_plain_is_sound(text: bytes, separator: Separator, classes: int | None) -> None:
    names = None if classes is None else [str(number) for number in range(classes)]
    parser = LineParser(LabelSpec(), names, source=Path("list"))
    parser.separator = separator
    for block in blocks_of(text):
        for index in np.flatnonzero(plain_lines(block, separator, LabelSpec(), classes)).tolist():
            # It raises nothing.
            assert parser.parse(block.line(index))[0]


def test_usual_lines_are_plain() -> None:
    text = b"".join(b"n%04d/image of %d.JPEG %d\n" % (number, number, number % 1000) for number in range(100))
    for separator in (Separator(), Separator(b","), Separator(b"\t")):
        lines = b"\n".join((separator.byte or b" ").join(line.rsplit(b" ", 1)) for line in text.splitlines())
        for data in (lines, lines.replace(b"\n", b"\r\n")):
            found = [plain_lines(block, separator, LabelSpec(), 1000) for block in blocks_of(data)]
            assert np.concatenate(found).all()
            few = [plain_lines(block, separator, LabelSpec(), 50) for block in blocks_of(data)]
            assert np.concatenate(few).sum() == 50


@given(TEXTS, st.sampled_from(["int", "float", "none", "int*2"]), st.booleans())
def test_a_list_is_what_reading_line_by_line_gives(text: bytes, labels: str, by_name: bool) -> None:
    spec = LabelSpec.parse(labels)
    by_name = by_name and labels == "int"
    parser = LineParser(spec, by_name=by_name, source=Path("list"))
    try:
        has_header = parser.adapt(text[start:end] for _, start, end in find_lines(text))
    except ListError:
        return
    expected, refused, lines = [], [], list(find_lines(text))[int(has_header) :]
    for number, start, end in lines:
        try:
            expected.append((number, *parser.parse(text[start:end])))
        except BadLine as error:
            refused.append((number, os.fsdecode(text[start:end]), str(error)))
    if not expected:
        with pytest.raises(ListError):
            ImageList(text, spec, name="list", root=Path("/"), by_name=by_name)
        return
    images = ImageList(text, spec, name="list", root=Path("/"), by_name=by_name)
    assert [(reject.line, reject.path, reject.reason) for reject in images.rejects] == refused
    assert (len(images), images.lines) == (len(expected), len(lines))
    assert images.duplicates == len(lines) - len({text[start:end] for _, start, end in lines})
    ordinals = np.arange(len(images))[::-1]
    entries = images.entries(ordinals)[::-1]
    assert [(entry.line, entry.path) for entry in entries] == [(line, os.fsdecode(path)) for line, path, _ in expected]
    numbers = images.line_numbers(ordinals)[::-1]
    assert numbers.tolist() == [line for line, _, _ in expected]
    for entry, (_, _, values) in zip(entries, expected, strict=True):
        if by_name:
            assert images.classes is not None and isinstance(entry.label, int)
            names = {number: os.fsdecode(name) for name, number in parser.label_parser.found.items()}
            assert images.classes[entry.label] == names[int(values[0])]
        else:
            assert entry.label == (None if not values else values if spec.count is not None else values[0])


LISTS: list[Any] = [b"a.jpg 1\nb.jpg x\n\nc d.jpg 3\na.jpg 1\n", b'path,label\na.jpg,1\n"b,c.jpg",2\n']


@pytest.mark.parametrize("text", LISTS)
def test_a_large_list_is_read_where_it_is_needed(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(text)
    small = read_list(path, LabelSpec())
    monkeypatch.setattr(reader, "LARGE", 1)
    large = read_list(path, LabelSpec())
    assert isinstance(large, ImageList) and isinstance(large._text, LargeText)
    every = np.arange(len(small))
    assert large.entries(every) == small.entries(every)
    for name in ("sha256", "rejects", "duplicates", "lines", "name", "classes", "advice"):
        assert getattr(large, name) == getattr(small, name)


def test_a_large_list_that_changes_is_refused_and_one_of_json_lines_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"a.jpg 1\nb.jpg 2\n")
    monkeypatch.setattr(reader, "LARGE", 1)
    images = read_list(path, LabelSpec())
    path.write_bytes(b'{"image": "a.jpg"}\n')
    with pytest.raises(ListError, match=r"list.txt was changed while it was being packed: run the same once more"):
        images.entries(np.array([1]))
    with pytest.raises(UsageError, match="say which columns"):
        read_list(path, LabelSpec())
