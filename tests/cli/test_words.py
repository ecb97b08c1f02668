"""Laws of the words on the command line: a mistyped one gets a suggestion, and an error calls options as people do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from helpers.support import encoded, picture

from packtrain import PackOptions, StoreOptions, pack
from packtrain._cli.main import group
from packtrain._cli.words import as_typed, command_of

from .conftest import Run


def commands(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with the words that lead to it."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inside = command.get_command(context, name)
        assert inside is not None
        yield from commands(inside, *words, name)


ALL = dict(commands(group))
OPTIONS = [
    (words, option)
    for words, command in ALL.items()
    for option in command.params
    if isinstance(option, click.Option) and not option.is_flag
]
FREE = [
    (words, option.opts[0])
    for words, option in OPTIONS
    if type(option.type) in (click.types.StringParamType, click.types.FloatParamType)
]

BEFORE: dict[tuple[str, ...], str] = {
    ("pack",): "{list} {out}",
    ("index",): "{tars} {out}",
    ("export",): "{set} {out} --to folder",
    ("merge",): "{set}",
    ("stage",): "{set} --to {out}",
    ("fill",): "helpers.fillers:few {out} --budget 4MiB",
    ("tune",): "{set}",
    ("append",): "{set} {list}",
    ("drop-rows",): "{set}",
    ("compact",): "{set}",
    ("purge",): "{set}",
    ("split",): "{set} --val 50%",
    ("add-field",): "{set} {list}",
    ("relabel",): "{set}",
    ("show",): "{set} --out {out}.png",
    ("view",): "{set} --no-browser",
    ("info",): "{set}",
    ("report",): "{set} --out {out}/report.html",
    ("unpin",): "{set} 1",
}
WRONG = {
    "--labels": "--labels words",
    "--mask-classes": "--mask seg --mask-classes seg",
    "--dtype": "--array a --dtype a",
    "--mask": "--mask =seg",
    "--max-rejects": "--max-rejects some",
    "--rename": "--rename cat",
    "--rows": "--rows some",
    "--headroom": "--headroom 7",
    "--samples-per-insert": "--samples-per-insert=-1",
    "--slices": "--slices {list}",
    "--address": "--address auto",
    "--image-field": "--image-field =a",
    "--text": "--text =a",
    "--json-field": "--json-field =a",
    "--array": "--array =a",
    "--bytes": "--bytes =a",
}
OTHERS = {
    ("index", "--mask"): "--mask seg",
    ("index", "--label"): "--label :",
    ("export", "--budget"): "--stage {out} --budget ?",
}
COLUMNS = ("--image", "--label", "--key")
"""Only the list says whether there is such a column. `pin` takes any name."""


@pytest.mark.parametrize(
    ("words", "meant"),
    [("packk a b", "pack"), ("verfy a", "verify"), ("staged evit", "evict"), ("inof", "info"), ("frobnicate", None)],
)
def test_a_mistyped_command_gets_a_suggestion(run: Run, words: str, meant: str | None) -> None:
    done = run(*words.split())
    assert (done.code, done.out) == (2, "")
    wrong = words.split()[1 if words.startswith("staged") else 0]
    suggestion = f"; did you mean {meant!r}?" if meant else ""
    assert done.err.endswith(f"Error: there is no command {wrong!r}{suggestion}\n")


@pytest.mark.parametrize("words", list(ALL), ids=" ".join)
def test_a_mistyped_option_gets_a_suggestion(run: Run, words: tuple[str, ...]) -> None:
    others: dict[tuple[str, ...], tuple[str, str]] = {
        ("fill",): ("--budgt", "--budget"),
        ("show",): ("--sid", "--side"),
        ("view",): ("--prt", "--port"),
    }
    wrong, meant = others.get(words, ("--jsn", "--json"))
    done = run(*words, wrong)
    assert done.code == 2
    assert f"'{meant}'" in done.err.partition("ean")[2]


@pytest.mark.parametrize(("words", "option"), OPTIONS, ids=lambda value: getattr(value, "name", None))
def test_an_argument_of_the_library_is_called_as_it_is_typed(words: tuple[str, ...], option: click.Option) -> None:
    typed = option.opts[0]
    for name in (option.name, typed.lstrip("-").replace("-", "_")):
        said = f"{name}='x': expected y, not {name}; change it (`{name}`), or what {name}=y names"
        shown = f"{typed}='x': expected y, not {name}; change it (`{typed}`), or what {name}=y names"
        command = command_of(group, [*words, "a", "b"])
        assert command.name == words[-1]
        assert as_typed(said, command) == shown
        assert as_typed(shown, command) == shown


@pytest.mark.parametrize(("words", "option"), FREE, ids=" ".join)
def test_an_error_about_an_option_names_it(
    run: Run, images: Path, tmp_path: Path, words: tuple[str, ...], option: str
) -> None:
    """For every option whose values click does not check."""
    if option in COLUMNS or words == ("pin",):
        return
    places = {"list": images, "out": tmp_path / "out", "set": tmp_path / "set", "tars": tmp_path / "set"}
    (tmp_path / "out").mkdir()
    (tmp_path / "set").mkdir()
    if words not in (("pack",), ("fill",)):
        (tmp_path / "0.jpg").write_bytes(encoded(picture(1)))
        (tmp_path / "list.txt").write_text("0.jpg 0\n")
        pack(tmp_path / "list.txt", tmp_path / "set", PackOptions(store=StoreOptions("verbatim")))
    wrong = OTHERS.get((words[0], option)) or WRONG.get(option, f"{option} ?")
    done = run(*words, *(word.format(**places) for word in f"{BEFORE[words]} {wrong}".split()))
    assert done.code == 2
    assert option in done.err.partition("rror: ")[2]


def test_a_warning_calls_options_as_they_are_typed(run: Run, images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "set", PackOptions(store=StoreOptions("verbatim")))
    done = run("stage", tmp_path / "set", "--to", tmp_path)
    assert "warning: " in done.err
    assert "(`--to`)" in done.err
    assert done.code == 0
