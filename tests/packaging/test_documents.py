"""The documents hold together: links lead somewhere, files they name exist, and each sentence has a line of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest
from helpers.documents import DOCUMENTS, FOLDERS, ROOT, blocks

NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]

# What somebody who follows the document makes.
MADE = re.compile(r"NAME|^benchmarks/out/")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *(```|~~~)")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +")
# A label in bold at the beginning of a line, such as **Choice.**, belongs to the sentence behind it.
LABEL = re.compile(r"^\*\*[^*]+\*\* ")
CLOSING = r"[)\]\"'*_`”’]*"
TWO_SENTENCES = re.compile(rf"(?<!\be\.g)(?<!\bi\.e)[.!?]{CLOSING} +[(\"'*_`“]*(?:[A-Z]|packtrain\b)")
ENDED = re.compile(rf"[.:;!?]{CLOSING}$")


class Line(NamedTuple):
    """A line outside code, by its number from 1."""

    number: int
    text: str


def lines_outside_code(text: str) -> Iterator[Line]:
    """All lines but those of code blocks, fenced or indented."""
    fenced, before = False, ""
    front = text.index("\n---\n") if text.startswith("---\n") else 0  # of a skill
    for number, line in enumerate(text.splitlines(), 1):
        if number <= text.count("\n", 0, front) + 2 and front:
            continue
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced and not (line.startswith("    ") and not before.strip()):
            yield Line(number, line)
            before = line
        if fenced:
            before = ""


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    found: set[str] = set()
    for _, line in lines_outside_code(text):
        if heading := re.match(r"#+ +(.*)", line):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            number = next(n for n in range(len(found) + 1) if (f"{slug}-{n}" if n else slug) not in found)
            found.add(f"{slug}-{number}" if number else slug)
    return found


def broken_links(document: Path, text: str) -> Iterator[str]:
    """Links to files or anchors that are not there, or that lead out of the repository."""
    for number, line in lines_outside_code(text):
        for target in LINK.findall(line):
            path, _, anchor = target.partition("#")
            if ":" in path:
                continue
            file = (document.parent / unquote(path)).resolve() if path else document
            if not file.exists() or not file.is_relative_to(ROOT):
                yield f"line {number}: {target} leads nowhere"
            elif anchor and anchor not in anchors(file.read_text()):
                yield f"line {number}: {target} names no heading"


def strangers(document: Path, text: str) -> Iterator[str]:
    """Files outside the repository, and files in it that do not exist."""
    for match in re.finditer(r"(?<![\w./])(?:\.\./)+[\w.-]*|(?<![\w./])/(?:home|root|work|Users)/[\w./-]*", text):
        if not (document.parent / match[0]).resolve().is_relative_to(ROOT):
            yield f"{match[0]} is not in the repository"
    for span in re.findall(r"`([\w./*-]+)`", text):
        named = "/" in span and span.split("/")[0] in FOLDERS and not MADE.search(span)
        if named and not any(ROOT.glob(span.rstrip("/"))):
            yield f"{span} does not exist"


def prose(text: str) -> Iterator[Line]:
    """Lines of prose without list markers, labels and code spans; others are empty (code, tables, headings, HTML)."""
    for number, line in lines_outside_code(text):
        if "docstrings of `formats/" in line:  # docs/format-containers.md, whose lines have 120 columns
            return
        bare = re.sub(r"<!--.*?-->", "", line).rstrip()
        if re.match(r" *(?:[|#<]|!\[)", bare):
            bare = ""
        bare = LABEL.sub("", ITEM.sub("", bare).lstrip())
        yield Line(number, re.sub(r"`[^`]*`", "`code`", re.sub(r"\]\([^)]*\)", "]", bare)))


def crowded(text: str) -> Iterator[str]:
    """Lines that hold two sentences, and sentences that go on in the next line."""
    items = {number for number, line in lines_outside_code(text) if ITEM.match(line)}
    before = Line(0, "")
    for line in prose(text):
        if TWO_SENTENCES.search(line.text):
            yield f"line {line.number} holds two sentences: {line.text[:60]}"
        adjacent = line.text and before.text and line.number == before.number + 1 and line.number not in items
        if adjacent and not ENDED.search(before.text):
            yield f"line {before.number} goes on in the next one: {before.text[-60:]}"
        before = line


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    assert not list(broken_links(ROOT / name, (ROOT / name).read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_the_files_a_document_names_are_in_the_repository(name: str) -> None:
    assert not list(strangers(ROOT / name, (ROOT / name).read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_each_sentence_has_a_line_of_its_own(name: str) -> None:
    assert not list(crowded((ROOT / name).read_text()))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "docs/format-containers.md"])
def test_code_is_between_fences(name: str) -> None:
    text = (ROOT / name).read_text()
    outside = {number for number, _ in lines_outside_code(text)}
    inside = {
        number for block in blocks(text) for number in range(block.line - 1, block.line + block.text.count("\n") + 1)
    }
    hidden = [number for number in range(1, text.count("\n") + 1) if number not in outside | inside]
    assert not hidden or text.startswith("---\n")


def test_the_pages_that_code_names_exist() -> None:
    sources = (
        path for room in FOLDERS for path in (ROOT / room).rglob("*.[pch]*") if path.suffix in (".py", ".c", ".h")
    )
    named = {name for path in sources for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text())}
    assert len(named) > 5 and not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_read_in_one_sitting(name: str) -> None:
    assert len((ROOT / name).read_text().split()) <= 2500


def test_the_index_of_documents_is_complete() -> None:
    for folder in (ROOT / "docs", ROOT / "docs/decisions", ROOT / "docs/coming-from"):
        linked = set(LINK.findall((folder / "README.md").read_text()))
        assert {path.name for path in folder.glob("*.md")} - linked == {"README.md"}


@pytest.mark.parametrize(
    "name",
    [
        "extras/dali",
        "extras/train_val",
        "growing",
        "packer/export",
        "readers/loader",
        "storage/remote",
        "storage/staging",
    ],
)
def test_the_design_names_each_module(name: str) -> None:
    text = "\n".join(path.read_text() for path in ROOT.glob("docs/design*.md"))
    cells = {module for line in text.splitlines() if line.startswith("| `") for module in line.split("|")[1].split("`")}
    modules = {path.stem for path in (ROOT / name).glob("*.py")}
    assert modules
    assert modules - {"__init__"} <= cells


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("[a](nowhere.md)", broken_links),
        ("[a](README.md#no-such-heading)", broken_links),
        ("[a](../../../etc/passwd)", broken_links),
        ("see ../elsewhere/notes.md", strangers),
        ("in /home/somebody/data", strangers),
        ("`core/no_such_file.py`", strangers),
    ],
)
def test_a_bad_reference_is_noticed(text: str, law: Callable[[Path, str], Iterator[str]]) -> None:
    assert len(list(law(ROOT / "README.md", text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "One sentence. Another one.",
        "- One (in brackets.) And another.",
        "It ends in `code`. Then comes more.",
        "**Label.** One. Two.",
        "A sentence that is\nwrapped.",
        "- An item that is\n  wrapped.",
    ],
)
def test_a_crowded_line_is_noticed(text: str) -> None:
    assert len(list(crowded(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "One sentence.\nAnother one.",
        "- One\n- two\n\n1. three\n2. four",
        "```\nOne. Two\nthree\n```",
        "Code:\n\n    One. Two\n    three",
        "| One. Two. | three |\n| --- | --- |",
        "**Label.** Version 0.1.0 of `a. B`, e.g. This.",
    ],
)
def test_what_is_not_prose_may_hold_anything(text: str) -> None:
    assert not list(crowded(text))
