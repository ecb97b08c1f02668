"""The group of all commands. The module of a command is imported when it is needed; its libraries, when it runs."""

from __future__ import annotations

import importlib
from typing import Final

import click

from .output import run
from .words import Group

COMMANDS: Final = {
    "pack": "Turn an image list, or another dataset, into tar, HDF5 or LMDB shards.",
    "merge": "Make a dataset of the parts of `pack --part`, or of several datasets.",
    "status": "Show the progress of packing, of indexing, or of a growing cache.",
    "index": "Make a dataset of WebDataset tar shards, which stay where they are.",
    "append": "Append samples to a dataset, as a new version.",
    "add-field": "Add fields to the samples of a dataset, as a new version.",
    "relabel": "Give rows of a dataset other labels, in a new version.",
    "drop-rows": "Leave rows of a dataset out, in a new version.",
    "compact": "Join small segments of a dataset, in a new version.",
    "purge": "Remove rows of a dataset, with their bytes and every version that has them.",
    "split": "Split a dataset into train, val and test, or into folds, in a new version.",
    "drop-version": "Remove versions of a dataset, and what no other version needs.",
    "pin": "Keep a version of a dataset for somebody who needs it.",
    "unpin": "Take back what `pin` did.",
    "log": "Show the versions of a dataset.",
    "export": "Write a dataset to image folders, WebDataset tars or Parquet files.",
    "verify": "Check everything in a dataset.",
    "info": "Show what is in a dataset.",
    "show": "Show rows of a dataset as pictures, in a file or in the terminal.",
    "report": "Write a page on what is in a dataset: sizes, colours, duplicates, images that look wrong.",
    "view": "Show a dataset in a browser.",
    "stage": "Copy a dataset to fast storage of this machine, once for all its readers.",
    "staged": "Manage staged copies: list, evict, pin, unpin, repair.",
    "fill": "Fill a growing cache from a slow source, while training reads it.",
    "doctor": "Show what would make reading faster on this machine.",
    "tune": "Find the fastest loader setting for a dataset on this machine.",
}


class _Commands(Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"packtrain._cli.{name.replace('-', '_')}_cmd").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="packtrain", message="%(package)s %(version)s")
def group() -> None:
    """Pack an image training set once, read it memory-mapped, feed the training loop fast."""


def main() -> None:
    """Entry point of the command `packtrain`."""
    run(group)
