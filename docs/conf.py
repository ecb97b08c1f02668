"""Settings for Sphinx, which makes the site out of Markdown files that stay readable where they lie."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path, PurePosixPath

from sphinx.application import Sphinx

project = "packtrain"
author = "the authors of packtrain"
project_copyright = author
sys.path.insert(0, str(Path(__file__).parent))
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference"]
autodoc_typehints = "none"  # the tables have them
autodoc_member_order = "bysource"
default_role = "code"
maximum_signature_line_length = 80
napoleon_use_ivar = True
napoleon_use_rtype = False
# The whole repository, so that links to examples and to code lead where they do on a forge.
include_patterns = ["*.md", "docs/**.md", "examples/**.md", "benchmarks/*.md", "tests/README.md"]
exclude_patterns = [".*", "build", "dist", "links"]
root_doc = "docs/README"
myst_heading_anchors = 4
html_theme = "furo"
html_title = "packtrain"
html_favicon = "images/favicon.svg"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_extra_path = ["index.html"]

HEADING = re.compile(r"^## +(.+)$", re.MULTILINE)
# The link that a row of a table, or an item of a list, begins with.
ENTRY = re.compile(r"^(?:\|| *[-*]) +\[([^\]]*)\]\(([^):#]+\.md)\)", re.MULTILINE)
ROW = re.compile(r"^\| \[([^\]]*)\]\(([^)]+\.md)\) \| (.*) \|$")


def navigation(text: str) -> str:
    """The tables of contents that Sphinx wants of an index: each section's links, under its heading."""
    head, *parts = HEADING.split(text)
    sections = [("", head), *zip(parts[::2], parts[1::2], strict=True)]
    trees = []
    for caption, section in sections:
        if pages := ENTRY.findall(section):
            # An index of its own has names for its pages, one of a folder is content with their titles.
            entries = [f"{name} <{page}>" if caption else page for name, page in pages]
            option = f":caption: {caption}\n" if caption else ""
            trees.append("\n".join(["```{toctree}", ":hidden:", f"{option}", *entries, "```\n"]))
    return "\n".join(trees)


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Lets the indexes on a forge, which are the README of each folder, be those of the site."""
    if PurePosixPath(page).name == "README":
        source[0] += "\n" + navigation(source[0])


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """Writes the index for language models: the rows of docs/README.md, with the sources of pages that have them."""
    if error is not None:
        return
    lines = ["# packtrain", "", "> Packs an image training set once, and feeds a PyTorch training loop from it.", ""]
    for line in (app.srcdir / "docs/README.md").read_text().splitlines():
        if line.startswith("## "):
            lines += ["", line, ""]
        elif row := ROW.match(line):
            page = posixpath.normpath(f"docs/{row[2]}")
            made = "```{" in (app.srcdir / page).read_text()
            lines.append(f"- [{row[1]}]({page[:-3] + '.html' if made else f'_sources/{page}.txt'}): {row[3]}")
    (app.outdir / "llms.txt").write_text("\n".join(lines) + "\n")


def setup(app: Sphinx) -> None:
    """Is called by Sphinx."""
    app.connect("build-finished", write_llms)
    app.connect("source-read", add_navigation)
