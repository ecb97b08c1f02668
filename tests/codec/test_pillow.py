"""What is said where neither Pillow nor pillow-simd is installed, or both are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.support import with_modules

from packtrain import PackOptions, open_dataset, pack
from packtrain._codec.pillow import pillow_conflict
from packtrain._core.installing import extra_command


def run_with(path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs ``packtrain ARGUMENTS`` in a process that finds modules in `path` first."""
    command = [sys.executable, "-m", "packtrain", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=with_modules(path))


@pytest.fixture
def without_pillow(tmp_path: Path) -> Path:
    stub = tmp_path / "modules" / "PIL"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("raise ImportError(\"No module named 'PIL'\")\n")
    return stub.parent


@pytest.mark.complete
@pytest.mark.parametrize("store", ["--store=raw", "--store=jpeg", "--check"])
def test_without_either_the_error_names_both_commands(
    images: Path, tmp_path: Path, without_pillow: Path, store: str
) -> None:
    done = run_with(without_pillow, "pack", images, tmp_path / "out", "--format", "tar", store, "--workers", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: neither Pillow nor pillow-simd can be imported")
    assert f"`{extra_command('pillow')}`" in done.stderr
    assert f'`CC="cc -mavx2" {extra_command("simd")}`' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def with_both(tmp_path: Path) -> Path:
    for name in ("pillow", "pillow_simd"):
        folder = tmp_path / "modules" / f"{name}-99.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 99.0\n")
    return tmp_path / "modules"


def test_with_both_a_warning_says_how_to_keep_one(images: Path, tmp_path: Path, with_both: Path) -> None:
    done = run_with(with_both, "pack", images, tmp_path / "out", "--format", "tar", "--workers", "1")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: Pillow and pillow-simd are both installed")
    assert "pip uninstall -y pillow pillow-simd" in done.stderr


def test_with_both_opening_a_dataset_warns_in_the_line_that_opens_it(
    request: pytest.FixtureRequest, images: Path, tmp_path: Path, with_both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(images, tmp_path / "out", PackOptions(format="tar"))
    monkeypatch.syspath_prepend(with_both)
    pillow_conflict.cache_clear()
    request.addfinalizer(pillow_conflict.cache_clear)
    with pytest.warns(RuntimeWarning, match="both installed .*pip uninstall -y pillow pillow-simd") as warned:
        open_dataset(tmp_path / "out")
    assert [Path(warning.filename) for warning in warned] == [Path(__file__)]


def test_with_one_nothing_is_said(images: Path, tmp_path: Path) -> None:
    done = run_with(tmp_path, "pack", images, tmp_path / "out", "--format", "tar", "--workers", "1")
    assert (done.returncode, done.stderr) == (0, "")
