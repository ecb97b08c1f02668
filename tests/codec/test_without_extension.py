"""Laws of an installation without the C extension: everything is read as with it, by another decoder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fusing import digests, pack_sources, sources

from packtrain._codec import native
from packtrain._core.options import StoreOptions

EXTENSION, SIMPLEJPEG = "packtrain._codec.native._extension", "simplejpeg"
TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(native.extension is None, reason="packtrain was built without its C extension")


def python(code: str, *arguments: object, without: tuple[str, ...] = (EXTENSION,)) -> subprocess.CompletedProcess[str]:
    """Runs code in a process in which some modules cannot be imported."""
    blocked = f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nsys.modules.update(dict.fromkeys({without!r}))\n"
    command = [sys.executable, "-P", "-W", "error", "-c", blocked + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def packtrain(*arguments: object, without: tuple[str, ...] = (EXTENSION,)) -> subprocess.CompletedProcess[str]:
    """Runs the command line."""
    return python("from packtrain._cli.main import main\nmain()", *arguments, without=without)


DIGESTS = """
import json
from packtrain._codec.native import extension
from packtrain._codec.decoders import decoder
from helpers.fusing import digests
print(json.dumps({"extension": str(extension), "decoder": decoder().name, "digests": digests(*sys.argv[1:])}))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Datasets that were made with the extension."""
    files, folder = dict(sources()), tmp_path_factory.mktemp("made elsewhere")
    stores = [StoreOptions(), StoreOptions(mode="L"), StoreOptions("raw"), StoreOptions("jpeg")]
    return [pack_sources(folder / str(number), store, files) for number, store in enumerate(stores)]


@pytest.mark.parametrize(
    ("without", "name"),
    [
        pytest.param((EXTENSION,), "simplejpeg", id="one", marks=pytest.mark.complete),
        pytest.param((EXTENSION, SIMPLEJPEG), "pillow", id="both"),
    ],
)
def test_every_pixel_is_the_same(folders: list[Path], without: tuple[str, ...], name: str) -> None:
    if name == SIMPLEJPEG:
        pytest.importorskip(SIMPLEJPEG)
    done = python(DIGESTS, *folders, without=without)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["extension"], found["decoder"]) == ("None", name)
    assert found["digests"] == digests(*folders)


def test_doctor_says_so() -> None:
    done = packtrain("doctor", without=(EXTENSION, SIMPLEJPEG))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n  extension    not installed\n" in done.stdout and "\n* pillow " in done.stdout
    assert "\nbetter: the C extension is missing" in done.stdout


def test_the_default_store_mode_names_two_ways_out(images: Path, tmp_path: Path) -> None:
    done = packtrain("pack", images, tmp_path / "out", "--format=tar")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "error: Store mode crop-ready (--store verbatim does not: it keeps files as they are)"
    )
    assert native.BUILD_COMMAND in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("store", ["verbatim", "raw", "jpeg"])
def test_the_others_work(images: Path, tmp_path: Path, store: str) -> None:
    done = packtrain("pack", images, tmp_path / "out", "--format=tar", f"--store={store}", "--workers=1")
    assert done.returncode == 0, done.stderr
    done = packtrain("verify", "--decode", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
