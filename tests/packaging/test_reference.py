"""The reference has a place for every public name and every command; what stands there, Sphinx makes of the code."""

from __future__ import annotations

import importlib
import inspect
import re

import click
from helpers.documents import ROOT

from packtrain._cli.main import COMMANDS, group

MODULES = ("packtrain", *(f"packtrain.{path.stem}" for path in (ROOT / "api").glob("[a-z]*.py")))


def test_every_public_name_has_its_place() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("api*.md"))
    placed = re.findall(r"^\.\. auto(?:class|function|exception):: (\S+)$", pages, re.MULTILINE)
    public = {
        f"{module}.{name}": getattr(importlib.import_module(module), name)
        for module in MODULES
        for name in importlib.import_module(module).__all__
    }
    first = {
        id(thing): name
        for name, thing in reversed(public.items())
        if inspect.isroutine(thing) or inspect.isclass(thing)
    }
    assert sorted(placed) == sorted(first.values())


def test_every_command_has_its_place() -> None:
    placed = re.findall(r"^```{help} packtrain ?(.*)$", (ROOT / "docs/commands.md").read_text(), re.MULTILINE)
    wanted = [""]
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        wanted += [name, *(f"{name} {part}" for part in getattr(command, "commands", ()))]
    assert sorted(placed) == sorted(wanted)


def test_the_skill_says_when_an_agent_needs_it() -> None:
    path = ROOT / "docs/skills/packtrain/SKILL.md"
    front = path.read_text().split("---\n")[1]
    fields = dict(line.split(": ", 1) for line in front.splitlines())
    assert fields.keys() == {"name", "description"}
    assert fields["name"] == path.parent.name and len(fields["description"]) <= 1024
