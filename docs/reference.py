"""Sphinx's part of the reference: tables of arguments from signatures and docstrings, and commands from their help."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from packtrain._cli.main import group

_SECTION = re.compile(r"^(Args|Attributes):$")
_ITEM = re.compile(r"^ {4}(\*{0,2}\w+): (.*)")
_PAGE = re.compile(r"`{0,2}\bdocs/([\w-]+)\.md\b`{0,2}")
_REQUIRED = "required"


class Argument(NamedTuple):
    """A row of a table, without what it means."""

    type: str
    default: str


def default_of(field: dataclasses.Field[Any]) -> str:
    """The default of a dataclass's field as it is written down."""
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return _REQUIRED if field.default is dataclasses.MISSING else repr(field.default)


def signature_of(thing: Callable[..., Any]) -> dict[str, Argument]:
    """The arguments of a function or class, or the fields of a dataclass, as they are written down."""
    if dataclasses.is_dataclass(thing):
        return {field.name: Argument(str(field.type), default_of(field)) for field in dataclasses.fields(thing)}
    return {
        name: Argument(
            "" if parameter.annotation is parameter.empty else str(parameter.annotation),
            ""
            if parameter.kind is parameter.VAR_KEYWORD
            else _REQUIRED
            if parameter.default is parameter.empty
            else repr(parameter.default),
        )
        for name, parameter in inspect.signature(thing).parameters.items()
        if name != "self"
    }


def table(arguments: dict[str, Argument], meanings: dict[str, str]) -> Iterator[str]:
    """A table in reStructuredText. What is only ever returned has no defaults."""
    given = any(argument.default != _REQUIRED for argument in arguments.values())
    widths, classes = ("24 20 14 42", "arguments given") if given else ("24 24 52", "arguments")
    yield from ("", ".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", f"   :class: {classes}", "")
    for row in [
        ("Name", "Type", "Default", "Meaning"),
        *((f"``{n}``", f"``{a.type}``", f"``{a.default}``", meanings.get(n, "")) for n, a in arguments.items()),
    ]:
        cells = row if given else (*row[:2], row[3])
        yield from (f"   {'  -' if at else '* -'} {cell.replace('````', '')}" for at, cell in enumerate(cells))
    yield ""


def with_examples(lines: Iterable[str]) -> Iterator[str]:
    """Marks indented blocks behind a paragraph as code."""
    paragraph, before = True, "."
    for line in lines:
        if line.startswith("    ") and not before and paragraph:
            yield from (".. code-block:: python", "")
        yield line
        paragraph, before = not line.startswith(" ") if line else paragraph, line


def with_tables(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Puts a table in the place of a docstring's ``Args``, and of the ``Attributes`` of a dataclass."""
    lines[:] = list(with_examples(_PAGE.sub(r":doc:`/docs/\1`", line) for line in lines))
    start = next((at for at, line in enumerate(lines) if _SECTION.match(line)), None)
    if start is None or (lines[start] == "Attributes:" and not dataclasses.is_dataclass(thing)):
        return
    end = next((at for at in range(start + 1, len(lines)) if lines[at] and not lines[at].startswith(" ")), len(lines))
    meanings: dict[str, str] = {}
    for line in lines[start + 1 : end]:
        if match := _ITEM.match(line):
            last = match[1].lstrip("*")
            meanings[last] = match[2]
        elif line.strip():
            meanings[last] += f" {line.strip()}"
    arguments = signature_of(thing)
    if "options" in meanings.keys() - arguments.keys():  # stands for those of the base class
        arguments = {name: each for name, each in arguments.items() if name in meanings} | {"options": Argument("", "")}
    if unlike := arguments.keys() ^ meanings.keys():
        logging.getLogger(__name__).warning("%s: signature and docstring differ in %s", name, ", ".join(sorted(unlike)))
    lines[start:end] = table(arguments, meanings)


class Help(SphinxDirective):
    """The help of a command, as it prints it."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Makes a block of it."""
        context = click.Context(group, info_name="packtrain", max_content_width=88, terminal_width=88)
        command: click.Command = group
        for name in self.arguments[0].split()[1:]:
            assert isinstance(command, click.Group)
            found = command.get_command(context, name)
            assert found is not None, f"there is no command {self.arguments[0]}"
            command = found
            context = click.Context(command, parent=context, info_name=name, max_content_width=88, terminal_width=88)
        text = command.get_help(context)
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Is called by Sphinx."""
    app.add_directive("help", Help)
    app.connect("autodoc-process-docstring", with_tables, priority=400)  # before napoleon sees it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
