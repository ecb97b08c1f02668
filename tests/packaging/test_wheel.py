"""The wheel as a user gets it: built from a clean copy, installed into an environment without the editable install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[2]
# Wheels take ten seconds to build.
pytestmark = pytest.mark.complete

SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES = SETUPTOOLS["packages"]
FOLDERS = SETUPTOOLS["package-dir"]
UNTAGGED = "0.1.0.dev0"
Shared: TypeAlias = Callable[[str, Callable[[Path], None]], Path]
NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "links", "*.egg-info", "__pycache__", "*.so")


def run(command: Sequence[str | Path], cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(folder: Path) -> None:
    """Builds a wheel in dist, from a copy of the working tree."""
    # An old build/ would put modules that were deleted since into the wheel.
    copy, out = folder / "tree", folder / "dist"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    out.mkdir()
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy], cwd=out)


def install(wheel: Path, home: Path) -> None:
    """Makes an environment that has the wheel."""
    venv.create(home, symlinks=True)
    interpreter = home / "bin/python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", interpreter, "--disable-pip-version-check"]
    run([*pip, "install", "--no-index", "--no-deps", wheel], cwd=home)
    # The dependencies are borrowed. A folder added by a .pth file has its own .pth files left alone,
    # and the editable install is one of those.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    site.joinpath("borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")


@pytest.fixture(scope="session")
def wheel(shared: Shared) -> Path:
    (built,) = shared("wheel", build).glob("dist/*.whl")
    return built


@pytest.fixture(scope="session")
def python(wheel: Path, shared: Shared) -> Path:
    """The interpreter of a new environment that has the wheel."""
    return shared("venv", lambda home: install(wheel, home)) / "bin/python"


def test_ships_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    version = wheel.name.split("-")[1]
    assert {name.split("/")[0] for name in names} == {"packtrain", f"packtrain-{version}.dist-info"}
    modules = {name for name in names if name.endswith(".py")}
    in_tree = {
        f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert modules == in_tree
    assert [name for name in names if name.endswith("py.typed")] == ["packtrain/py.typed"]
    assert f"packtrain-{version}.dist-info/licenses/LICENSE" in names


def test_every_package_imports_first_from_the_wheel(python: Path) -> None:
    """Each in a process that has imported no other of packtrain; they share torch."""
    code = f"""if True:
        import os, sys, importlib, importlib.metadata, torch
        for package in {PACKAGES}:
            if child := os.fork():
                if os.waitpid(child, 0)[1]:
                    sys.exit(f"{{package}} cannot be imported")
                continue
            print(package, importlib.import_module(package).__file__, importlib.metadata.version("packtrain"))
            sys.stdout.flush()
            os._exit(0)
    """
    lines = [line.split() for line in run([python, "-c", code], cwd=python.parent).splitlines()]
    assert [package for package, _, _ in lines] == PACKAGES
    assert [where for _, where, _ in lines if not Path(where).is_relative_to(python.parents[1])] == []
    assert {version for _, _, version in lines} == {UNTAGGED}, "a copy without git's folder and tags"


@pytest.mark.parametrize("command", ["packtrain", "pack"])
def test_the_commands_start(python: Path, command: str) -> None:
    assert "Usage:" in run([python.parent / command, "--help"], cwd=python.parent)


def test_python_dash_m_starts(python: Path) -> None:
    assert "Usage: python -m packtrain " in run([python, "-m", "packtrain", "--help"], cwd=python.parent)


def test_the_installation_wins_over_a_clone_beside_the_script(python: Path, tmp_path: Path) -> None:
    """As after ``git clone`` and ``pip install ./packtrain``: the clone has no extension."""
    shutil.copytree(ROOT, tmp_path / "packtrain", ignore=NOT_COPIED)
    names = ", ".join(f"{package} as m{number}" for number, package in enumerate(PACKAGES))
    files = ", ".join(f"m{number}.__file__" for number in range(len(PACKAGES)))
    lines = ("from packtrain import Loader, open_dataset", f"import {names}", f"print({files}, sep='\\n')")
    (tmp_path / "train.py").write_text("\n".join(lines))
    places = run([python, "train.py"], cwd=tmp_path).splitlines()
    assert len(places) == len(PACKAGES)
    assert [place for place in places if not Path(place).is_relative_to(python.parents[1])] == []


def extensions(wheel: Path) -> list[str]:
    """The compiled modules in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if name.endswith(".so")]


def compiles(header: str) -> bool:
    """True if there is a C compiler that finds a header."""
    command = ["cc", "-E", "-include", "stdio.h", "-include", header, "-x", "c", os.devnull]
    return shutil.which("cc") is not None and subprocess.run(command, capture_output=True).returncode == 0


def test_it_holds_the_extension_where_that_can_be_compiled(wheel: Path, python: Path) -> None:
    if not compiles("jpeglib.h"):
        pytest.skip("there is no C compiler, or libjpeg-turbo's headers are missing")
    assert extensions(wheel) == [f"packtrain/_codec/native/_extension{sysconfig.get_config_var('EXT_SUFFIX')}"]
    assert not wheel.name.endswith("-any.whl"), "for this Python and platform alone"
    code = "from packtrain._codec.native import _extension; print(_extension.__file__, _extension.LIBJPEG)"
    where, *libjpeg = run([python, "-c", code], cwd=python.parent).split()
    assert Path(where).is_relative_to(python.parents[1]) and libjpeg


def test_without_a_compiler_it_is_built_without_the_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    before = {path: path.stat().st_mtime_ns for path in (ROOT / "codec/native").glob("*.so")}
    build(tmp_path)
    (wheel,) = tmp_path.glob("dist/*.whl")
    assert extensions(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "packtrain/_codec/native/__init__.py" in names
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "codec/native").glob("*.so")} == before
