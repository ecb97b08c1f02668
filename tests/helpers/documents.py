"""Runs the code blocks of a Markdown file as its reader would, from the first to the last.

Blocks of ``python`` share one namespace, blocks of ``sh`` go to bash. A block of Python that begins with a comment such
as ``# train.py`` is saved under that name for blocks behind it. A comment ``<!-- not run: REASON -->`` before a block
says why it is not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = (
    "api",
    "benchmarks",
    "cli",
    "codec",
    "core",
    "docs",
    "examples",
    "extras",
    "formats",
    "growing",
    "packer",
    "readers",
    "storage",
    "testing",
    "tests",
)
DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])

_BLOCK: Final = re.compile(r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_REASON: Final = re.compile(r"<!-- not run: ((?:(?!-->).)+?) -->\n\n?\Z", re.DOTALL)
_NAMED: Final = re.compile(r"# ([a-z_]+\.py)\n")
# A small machine stands for the reader's: folders of his are folders of the test, GPUs are CPUs, and less is enough.
_PLACE: Final = re.compile(r"(?<![\w.:/}])/(?=(?:archive|data|dev/shm|local|nvme|scratch|shared)\b)")
_SMALLER: Final = (
    (re.compile(r'"cuda"'), '"cpu"'),
    (re.compile(r"\brange\(\d{2,}\)"), "range(2)"),
    (re.compile(r"\b\d+(?:GiB|GB)\b"), "8MiB"),
    (re.compile(r"\{000000\.\.000146\}"), "{000000..000001}"),
)
# What brings software to the reader's machine is not needed on this one.
_PRELUDE: Final = "set -eo pipefail; pip() { :; }; apt-get() { :; }\n"


class Outcome(NamedTuple):
    """Names that the Python of a document defined, and what each block of ``sh`` printed."""

    names: dict[str, Any]
    printed: list[str]


class Block(NamedTuple):
    """A code block: its first line, what its fence says, and why it is not run, if it is not."""

    line: int
    language: str
    text: str
    reason: str | None

    @property
    def runs(self) -> bool:
        """True if it is run."""
        return self.language in ("python", "sh") and self.reason is None


def blocks(text: str) -> Iterator[Block]:
    """The code blocks of a document."""
    for match in _BLOCK.finditer(text):
        reason = _REASON.search(text, 0, match.start())
        code = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        yield Block(text.count("\n", 0, match.start()) + 2, match["language"], code, reason and reason[1])


def run(document: Path, folder: Path, bucket: str = "s3://bucket") -> Outcome:
    """Runs the blocks of a document in the current folder, with `bucket` in place of the reader's."""
    outcome = Outcome({"__name__": "__main__"}, [])
    for block in blocks(document.read_text()):
        if not block.runs:
            continue
        code = _PLACE.sub(f"{folder}/", block.text).replace("s3://bucket", bucket)
        for pattern, smaller in _SMALLER:
            code = pattern.sub(smaller, code)
        where = f"{document.relative_to(ROOT)}, line {block.line}"
        if block.language == "sh":
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                ["bash", "-c", _PRELUDE + code],
                cwd=folder,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                timeout=200,
            )
            assert done.returncode == 0, f"{where}:\n{code}\n{done.stdout}\n{done.stderr}"
            outcome.printed.append(done.stdout)
        elif named := _NAMED.match(code):
            (folder / named[1]).write_text(code)
        else:
            exec(compile("\n" * (block.line - 1) + code, str(document), "exec"), outcome.names)
    return outcome
