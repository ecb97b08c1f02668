"""Messages where neither Pillow nor pillow-simd is installed, or both are."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.packing_and_training import train
from helpers.support import encoded, picture, tree, with_modules

from packtrain import PackOptions, open_dataset, pack
from packtrain._codec import native
from packtrain._codec.pillow import pillow_conflict
from packtrain._codec.record_forms import FORMS
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


@pytest.mark.complete
@pytest.mark.skipif(native.extension is None, reason="without the C extension, Pillow decodes")
@pytest.mark.parametrize("store", ["crop-ready", "verbatim"])
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


JUDGED = {
    b"RIFF\x0c\0\0\0WEBPVP8 " + bytes(20): "a file that is no JPEG (it begins with b'RIFF",
    encoded(picture(1).convert("CMYK")): "a JPEG that packtrain alone does not decode for certain",
    encoded(picture(1))[:-200]: "a JPEG that packtrain alone does not decode for certain",
    SHORT_SEGMENT: "a JPEG that packtrain alone does not decode for certain",
    UNKNOWN_MARKER: "a JPEG that packtrain alone does not decode for certain",
    b"<html>": "a file that is no JPEG (it begins with b'<html>')",
}
"""Files that only Pillow can judge, and what is said of them."""
CHILD = """
import pickle, sys
from packtrain._codec.decoders import decoder
from packtrain._core.options import StoreOptions
from packtrain._packer.images import store_image

def said(call, *arguments):
    try:
        return call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

sound, damaged, judged = pickle.load(sys.stdin.buffer)
assert decoder().name == "extension" and store_image(sound, StoreOptions()).payload
found = [said(decoder, "pillow"), said(decoder().decode, damaged, "RGB")]
found += [said(store_image, content, StoreOptions()) for content in judged]
sys.stdout.buffer.write(pickle.dumps(found))
"""


@pytest.mark.skipif(native.extension is None, reason="without the C extension, there is no decoder at all")
def test_without_either_what_only_pillow_can_judge_is_neither_taken_nor_refused(without_pillow: Path) -> None:
    """The dataset does not depend on what is installed, so packing stops."""
    given = encoded(picture(1)) + b"a trailer", FORMS["coefficients"].magic + bytes(64), list(JUDGED)
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, input=pickle.dumps(given), capture_output=True, env=with_modules(without_pillow))
    decoder, damaged, *judged = pickle.loads(done.stdout)
    assert damaged == "ValueError: the coefficient record is damaged"
    for found in (decoder, *judged):
        assert found.startswith("MissingDependency: neither Pillow nor pillow-simd can be imported")
    for found, expected in zip(judged, JUDGED.values(), strict=True):
        assert expected in found and f"`{extra_command('pillow')}`" in found
    for content in (SHORT_SEGMENT, UNKNOWN_MARKER):
        with pytest.raises(Refused):
            store_image(content, StoreOptions())


def test_without_either_packing_says_at_which_file_it_stops(tmp_path: Path, without_pillow: Path) -> None:
    (tmp_path / "it.jpg").write_bytes(b"<html>")
    (tmp_path / "list.txt").write_text("it.jpg 0\n")
    done = run_with(without_pillow, "pack", tmp_path / "list.txt", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}/it.jpg (line 0): neither Pillow nor pillow-simd can be imported")


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
