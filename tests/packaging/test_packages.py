"""What pyproject.toml says about the packages against what lies in the folders: a wheel misses what is not listed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("core", "readers", "packer", "cli")
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_folder_of_modules_is_a_listed_package_and_the_other_way_round() -> None:
    folders = {
        ".".join(("packtrain", *path.parent.relative_to(ROOT).parts))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert set(SETUPTOOLS["packages"]) == folders
    assert len(SETUPTOOLS["packages"]) == len(folders)


def test_each_folder_is_mapped_to_its_import_name() -> None:
    assert SETUPTOOLS["package-dir"] == {f"packtrain.{folder}": folder for folder in FOLDERS}


@pytest.mark.parametrize("package", SETUPTOOLS["packages"])
def test_every_package_has_an_init_file(package: str) -> None:
    folder = ROOT.joinpath(*package.split(".")[1:])
    assert (folder / "__init__.py").is_file()


@pytest.mark.parametrize("folder", FOLDERS)
def test_type_hints_are_shipped(folder: str) -> None:
    assert (ROOT / folder / "py.typed").is_file()


def test_the_namespace_stays_implicit() -> None:
    """A packtrain/__init__.py or a module beside the four folders would hide them from an editable install."""
    assert not (ROOT / "packtrain").exists()
    assert not (ROOT / "packtrain.py").exists()
