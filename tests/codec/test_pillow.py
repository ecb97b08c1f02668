"""What is said where neither Pillow nor pillow-simd is installed, or both are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.packing_and_training import train
from helpers.support import encoded, picture, tree, with_modules

from packtrain import PackOptions, open_dataset, pack
from packtrain._codec import native
from packtrain._codec.coefficients import MAGIC
from packtrain._codec.pillow import pillow_conflict
from packtrain._core.installing import extra_command
from packtrain._core.options import StoreOptions
from packtrain._packer.images import store_image
from packtrain._packer.sources import Refused

# libjpeg decodes both, and Pillow refuses them: one for what it reads itself, one for what follows the pixels.
SHORT_SEGMENT = b"\xff\xd8\xff\xe0\0\x07JFIF\0" + encoded(picture(1))[2:]
UNKNOWN_MARKER = encoded(picture(1))[:-2] + b"\xff\xb7\xff\xd9"


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
    assert done.stderr.startswith("error: ") and "neither Pillow nor pillow-simd can be imported" in done.stderr
    assert f"`{extra_command('pillow')}`" in done.stderr
    assert f'`CC="cc -mavx2" {extra_command("simd")}`' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(native.extension is None, reason="without the C extension, Pillow decodes")
@pytest.mark.parametrize(
    "store", ["crop-ready", *(pytest.param(name, marks=pytest.mark.complete) for name in ("coefficients", "verbatim"))]
)
def test_without_either_jpegs_are_packed_verified_and_trained_on_as_with_one(
    tmp_path: Path, images: Path, without_pillow: Path, store: str
) -> None:
    command_line = (
        sys.executable,
        "-m",
        "helpers.packing_and_training",
        images,
        tmp_path / "without",
        store,
        tmp_path / "it.npz",
    )
    subprocess.run(command_line, env=with_modules(without_pillow), cwd=Path(__file__).parents[1], check=True)
    expected, found = train(images, tmp_path / "with", store), np.load(tmp_path / "it.npz")
    assert tree(tmp_path / "with") == tree(tmp_path / "without")
    assert set(found) == set(expected)
    for name, made in found.items():
        # The images are tensors there. pillow-simd, if it is installed, rounds resized pixels in another way.
        made = made if made.ndim == 4 else made.transpose(1, 2, 0)
        assert np.abs(made.astype(int) - expected[name]).max() <= (1 if name == "resized" else 0), name


@pytest.mark.skipif(native.extension is None, reason="without the C extension, Pillow decodes")
def test_without_either_a_jpeg_with_bytes_behind_its_end_is_packed(tmp_path: Path, without_pillow: Path) -> None:
    (tmp_path / "camera.jpg").write_bytes(encoded(picture(1)) + b"a trailer")
    (tmp_path / "list.txt").write_text("camera.jpg 0\n")
    done = run_with(without_pillow, "pack", tmp_path / "list.txt", tmp_path / "out")
    assert (done.returncode, done.stderr.count("error")) == (0, 0)
    assert open_dataset(tmp_path / "out")[0][0].size == picture(1).size


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"RIFF\x0c\0\0\0WEBPVP8 " + bytes(20), "a file that is no JPEG (it begins with b'RIFF"),
        (encoded(picture(1).convert("CMYK")), "a JPEG that packtrain alone does not decode for certain"),
        (encoded(picture(1))[:-200], "a JPEG that packtrain alone does not decode for certain"),
        (SHORT_SEGMENT, "a JPEG that packtrain alone does not decode for certain"),
        (UNKNOWN_MARKER, "a JPEG that packtrain alone does not decode for certain"),
        (b"<html>", "a file that is no JPEG (it begins with b'<html>')"),
    ],
    ids=["webp", "cmyk", "truncated", "short segment", "unknown marker", "html"],
)
def test_without_either_packing_stops_at_what_only_pillow_can_judge(
    tmp_path: Path, without_pillow: Path, content: bytes, said: str
) -> None:
    """It is not refused: the dataset does not depend on what is installed."""
    (tmp_path / "it.jpg").write_bytes(content)
    (tmp_path / "list.txt").write_text("it.jpg 0\n")
    done = run_with(without_pillow, "pack", tmp_path / "list.txt", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}/it.jpg (line 0): neither Pillow nor pillow-simd can be imported")
    assert said in done.stderr and f"`{extra_command('pillow')}`" in done.stderr


@pytest.mark.parametrize("content", [SHORT_SEGMENT, UNKNOWN_MARKER], ids=["short segment", "unknown marker"])
def test_with_it_packing_refuses_what_only_pillow_could_judge(content: bytes) -> None:
    with pytest.raises(Refused):
        store_image(content, StoreOptions())


@pytest.mark.skipif(native.extension is None, reason="without the C extension, nothing reads coefficient records")
def test_without_either_a_damaged_coefficient_record_is_damaged(without_pillow: Path) -> None:
    code = f"from packtrain._codec.decoders import decoder; decoder().decode({MAGIC + bytes(64)!r}, 'RGB')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=with_modules(without_pillow)
    )
    assert done.stderr.splitlines()[-1] == "ValueError: the coefficient record is damaged"


@pytest.mark.skipif(native.extension is None, reason="without the C extension, there is no decoder at all")
def test_without_either_its_decoder_is_missing(without_pillow: Path) -> None:
    code = "from packtrain._codec.decoders import decoder; print(decoder().name); decoder('pillow')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=with_modules(without_pillow)
    )
    assert done.stdout == "extension\n"
    assert "MissingDependency: neither Pillow nor pillow-simd can be imported" in done.stderr


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
