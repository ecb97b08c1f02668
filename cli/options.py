"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def where_option(what: str) -> Callable[[F], F]:
    """Adds `--where` to a command, whose function takes it as `where`.

    Args:
        what: What happens to the rows of the dataset that it chooses, such as "Pack only the rows".
    """
    return click.option(
        "--where", metavar="EXPR", help=f"{what} of a dataset that EXPR chooses, such as 'width >= 256 and label = 3'."
    )


def dry_run_option(command: F) -> F:
    """Adds `--dry-run` to a command that changes a dataset."""
    return click.option("--dry-run", is_flag=True, help="Write nothing, and say what would be written.")(command)
