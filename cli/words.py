"""Words of the command line: names of commands and options, and arguments whose number depends on options."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import click

from packtrain._core.overriding import override
from packtrain._core.suggestions import did_you_mean

Word = TypeVar("Word", bound=str | Path)
_SHOWN: Final = 5
_OTHERWISE: Final = {"--decode": "decode_images", "--workers": "num_workers"}
"""Options that the library calls otherwise."""


def named(words: Sequence[Word], *names: str) -> Sequence[Word]:
    """The arguments, of which there must be as many as names."""
    if len(words) != len(names) or not all(words):
        found = shlex.join(map(str, words[:_SHOWN])) or "nothing"
        more = f" and {len(words) - _SHOWN:,} more" if len(words) > _SHOWN else ""
        # A shell has made many words of one, perhaps: `packtrain pack images/*.jpg out`.
        images = ". To pack images without a list, give the folder that they are in" if more and "LIST" in names else ""
        raise click.UsageError(f"expected {' '.join(names)}, found {found}{more}{images}")
    return words


class Group(click.Group):
    """A command that has commands, and suggests one for a word that is none."""

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], known)}")
        return super().resolve_command(ctx, args)


def command_of(command: click.Command, words: Sequence[str]) -> click.Command:
    """The command that these words of the command line are for: `command`, or one inside that group."""
    for word in words:
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word) or command
    return command


def as_typed(message: str, command: click.Command, words: Sequence[str] = ()) -> str:
    """Calls options and paths in a message of the library as people type them, and have typed them in `words`.

    The library calls its arguments ``NAME=VALUE`` where a message begins, and NAME in backticks.
    """
    for option in command.params:
        if isinstance(option, click.Option):
            typed = max(option.opts, key=len)
            names = f"(?:{option.name}|{_OTHERWISE.get(typed, option.name)}|{typed.lstrip('-').replace('-', '_')})"
            message = re.sub(rf"\A{names}(?==)|(?<=`){names}(?=`)", typed, message)
    # The working folder may have been removed.
    with suppress(FileNotFoundError):
        # The longest first: `.` would be found in all others.
        for word in sorted(words, key=len, reverse=True):
            message = _with_path(message, word.removeprefix("@"))
    return message


def _with_path(message: str, word: str) -> str:
    """Write a path, or what a pattern stands for, as in `word`, where the message has it from the root."""
    typed, brace, _ = word.partition("{")
    typed = typed.rstrip("/")
    if not typed or os.path.isabs(typed):
        return message
    end = "" if brace else r"(?![\w-]|\.\w)"
    for path in (os.path.abspath(typed), os.path.realpath(typed)):
        # Words may be many thousand shards.
        if path in message:
            message = re.sub(rf"(?<![^\s'\"`(@]){re.escape(path)}{end}", lambda _: typed, message)
    return message
