"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
dry_run_option = click.option("--dry-run", is_flag=True, help="Write nothing, and say what would be written.")
labels_option = click.option(
    "--labels",
    type=click.Choice(["class", "int"]),
    help="The label on each line is the name of a class, or its number.  [default: int]",
)
max_rejects_option = click.option(
    "--max-rejects",
    default="0.1%",
    metavar="N|P%",
    help="How many lines may be refused; a percentage allows at least one.",
)


def where_option(what: str) -> Callable[[F], F]:
    """Adds `--where` to a command, whose function takes it as `where`.

    Args:
        what: What happens to the rows of the dataset that it chooses, such as "Pack only the rows".
    """
    return click.option(
        "--where", metavar="EXPR", help=f"{what} of a dataset that EXPR chooses, such as 'width >= 256 and label = 3'."
    )


def adding(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    """Adds several options to a command."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


look_options = adding(
    [
        where_option("Show only the rows"),
        click.option(
            "--transform",
            default="none",
            metavar="NAME",
            help="Show what the network sees: rrc224, center224, crop224, any other size, or module:attribute.",
        ),
        click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the transform's random numbers."),
        click.option(
            "--boxes", metavar="FIELD[:FORM]", help="Draw boxes: xyxy (default), xywh or cxcywh; with n: 0 to 1."
        ),
        click.option("--masks/--no-masks", default=True, help="Draw masks over their images; 0 stays clear."),
    ]
)
"""Options of commands that show rows: `where`, and those of `LookOptions`."""
