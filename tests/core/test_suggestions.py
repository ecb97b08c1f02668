"""Laws of the "did you mean" of messages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from packtrain._core.suggestions import did_you_mean

ROOT = Path(__file__).parents[2]
ROOMS = ("core", "codec", "formats", "storage", "readers", "packer", "growing", "extras", "cli")
ENDS = ("did_you_mean", "similar_file")
"""What ends in a question mark."""


def test_one_of_the_known_names_is_meant_if_it_is_similar() -> None:
    assert did_you_mean("tra", ["tar", "hdf5"]) == "; did you mean 'tar'?"
    assert did_you_mean("zip", ["tar", "hdf5"]) == ""
    assert did_you_mean("folder", ["decoder"]) == did_you_mean("normalize", ["world_size"]) == ""


def misplaced(tree: ast.AST) -> Iterator[int]:
    """The lines where something follows a suggestion in the same text."""
    for text in ast.walk(tree):
        if isinstance(text, ast.JoinedStr):
            for part in text.values[:-1]:
                call = part.value if isinstance(part, ast.FormattedValue) else None
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ENDS:
                    yield text.lineno


def test_a_suggestion_ends_its_message() -> None:
    """After its question mark, a full stop would be a second mark."""
    assert list(misplaced(ast.parse("f'{name}{did_you_mean(name, known)}. More'"))) == [1]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for line in misplaced(ast.parse(path.read_text()))
    ]
    assert found == []
