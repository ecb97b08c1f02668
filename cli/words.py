"""Arguments of commands that take more or fewer of them, depending on their options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import click

Word = TypeVar("Word", bound=str | Path)


def named(words: Sequence[Word], *names: str) -> Sequence[Word]:
    """The arguments, of which there must be as many as names."""
    if len(words) != len(names) or not all(words):
        raise click.UsageError(f"expected {' '.join(names)}, found {shlex.join(map(str, words)) or 'nothing'}")
    return words
