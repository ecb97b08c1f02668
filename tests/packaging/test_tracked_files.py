"""The repository holds source, and few small files of other kinds."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
LARGEST = 512_000
PICTURES = {".png"}
DATA = PurePosixPath("tests/golden")
"""Datasets of earlier versions."""


@pytest.fixture(scope="module")
def tracked() -> list[PurePosixPath]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone of the repository")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    # A file may be removed, and not yet committed.
    return [PurePosixPath(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_is_large(tracked: list[PurePosixPath]) -> None:
    assert not [f"{path}: {size:,} bytes" for path in tracked if (size := (ROOT / path).stat().st_size) > LARGEST]


def test_no_file_is_binary_but_pictures_and_golden_datasets(tracked: list[PurePosixPath]) -> None:
    others = [path for path in tracked if path.suffix not in PICTURES and not path.is_relative_to(DATA)]
    # As git has it.
    assert not [str(path) for path in others if b"\0" in (ROOT / path).read_bytes()[:8000]]
