"""The version is that of the tag, and of the source distribution made of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of setup.py alone, with one commit."""
    folder = tmp_path / "clone"
    folder.mkdir()
    shutil.copy(ROOT / "setup.py", folder)
    git(folder, "init")
    git(folder, "add", "setup.py")
    git(folder, "commit", "--message", "first")
    return folder


def git(folder: Path, *arguments: str) -> None:
    subprocess.run([*GIT, *arguments], cwd=folder, check=True, capture_output=True)


def version(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1]


def test_a_tagged_commit_has_the_version_of_its_tag(clone: Path) -> None:
    git(clone, "tag", "v1.2.3")
    assert version(clone) == "1.2.3"


def test_a_commit_behind_a_tag_comes_before_the_next_version(clone: Path) -> None:
    git(clone, "tag", "v1.2.9")
    for _ in range(2):
        git(clone, "commit", "--allow-empty", "--message", "more")
    assert re.fullmatch(r"1\.2\.10\.dev2\+g[0-9a-f]{7,}", version(clone))


def test_a_clone_without_tags_comes_before_the_first_version(clone: Path) -> None:
    git(clone, "tag", "something-else")
    assert version(clone) == "0.1.0.dev0"


def test_files_in_another_repository_do_not_take_its_tags(clone: Path) -> None:
    git(clone, "tag", "v9.9.9")
    (clone / "vendored").mkdir()
    shutil.copy(ROOT / "setup.py", clone / "vendored")
    assert version(clone / "vendored") == "0.1.0.dev0"


def test_a_source_distribution_keeps_its_version(clone: Path) -> None:
    git(clone, "tag", "v1.2.3")
    (clone / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: packtrain\nVersion: 4.5.6\n\nVersion: of the text\n")
    assert version(clone) == "4.5.6"


def test_nothing_else_holds_a_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project and project["dynamic"] == ["version"]
