"""Compares the packages of pyproject.toml with the folders: a wheel misses what is not listed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("core", "codec", "formats", "storage", "readers", "packer", "growing", "extras", "cli", "testing")
HOME = {"api": "packtrain", **{room: f"packtrain._{room}" for room in ROOMS}}
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_folder_of_modules_is_a_listed_package_and_the_other_way_round() -> None:
    folders = {
        ".".join((name, *path.parent.relative_to(ROOT / folder).parts))
        for folder, name in HOME.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert set(SETUPTOOLS["packages"]) == folders
    assert len(SETUPTOOLS["packages"]) == len(folders)


def test_each_folder_is_mapped_to_its_import_name() -> None:
    assert SETUPTOOLS["package-dir"] == {name: folder for folder, name in HOME.items()}


@pytest.mark.parametrize("package", SETUPTOOLS["packages"])
def test_every_package_has_an_init_file(package: str) -> None:
    _, *rest = package.split(".")
    folder = ROOT.joinpath(*rest) if not rest else ROOT.joinpath(rest[0].removeprefix("_"), *rest[1:])
    assert ((folder if rest else ROOT / "api") / "__init__.py").is_file()


def test_type_hints_are_shipped() -> None:
    """At the top, where PEP 561 looks for it; it holds for all packages below."""
    assert (ROOT / "api" / "py.typed").is_file()


def test_no_folder_is_called_packtrain() -> None:
    """It would hide the installed package from whatever runs in the root of the repository."""
    assert not (ROOT / "packtrain").exists()
    assert not (ROOT / "packtrain.py").exists()


@pytest.mark.parametrize("room", ["storage", "readers", "packer", "growing"])
def test_the_design_pages_say_what_each_module_is_for(room: str) -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("design*.md"))
    named = {name.rpartition("/")[2].removesuffix(".py") for name in re.findall(r"`([\w/.]+)`", pages)}
    assert not {path.stem for path in (ROOT / room).rglob("*.py")} - named - {"__init__"}
