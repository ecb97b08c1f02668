"""Laws of an installation without the C extension: everything is read as with it, by another decoder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fusing import digests, pack_sources, sources
from helpers.support import output_of, tool

from packtrain._codec import native
from packtrain._core.installing import build_command
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


@pytest.mark.complete
@pytest.mark.parametrize(
    ("without", "name"),
    [
        pytest.param((EXTENSION,), "simplejpeg", id="one"),
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


def test_the_default_store_mode_names_two_ways_out(images: Path, tmp_path: Path) -> None:
    done = packtrain("pack", images, tmp_path / "out", "--format=tar")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: Store mode crop-ready needs packtrain's C extension, but it could not be built when packtrain was "
        f"installed. Run `{build_command()}`; or use --store verbatim, which keeps files as they are\n"
    )
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.complete
@pytest.mark.parametrize(
    "store", ["jpeg", *(pytest.param(store, marks=pytest.mark.stress) for store in ("verbatim", "raw"))]
)
def test_the_others_work(images: Path, tmp_path: Path, store: str) -> None:
    done = packtrain("pack", images, tmp_path / "out", "--format=tar", f"--store={store}", "--workers=1")
    assert done.returncode == 0, done.stderr
    done = packtrain("verify", "--decode", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr


UNFIT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <jpeglib.h>
#include <jerror.h>
static void *real(const char *name) { return dlsym(dlopen(LIBJPEG, RTLD_LAZY), name); }
static int is_extension(void *caller) {
    Dl_info found;
    return dladdr(caller, &found) && strstr(found.dli_fname, "_extension");
}
void jpeg_CreateDecompress(j_decompress_ptr info, int version, size_t size) {
    void (*create)(j_decompress_ptr, int, size_t) = real("jpeg_CreateDecompress");
    if (OTHER_VERSION && is_extension(__builtin_return_address(0))) ERREXIT2(info, JERR_BAD_LIB_VERSION, 98, version);
    create(info, version, size);
}
JDIMENSION jpeg_read_scanlines(j_decompress_ptr info, JSAMPARRAY rows, JDIMENSION most) {
    JDIMENSION (*read)(j_decompress_ptr, JSAMPARRAY, JDIMENSION) = real("jpeg_read_scanlines");
    JDIMENSION row = info->output_scanline, count = read(info, rows, most);
    rows[0][0] ^= is_extension(__builtin_return_address(0)) && row == 8 && !info->progressive_mode;
    return count;
}
"""
WHY = """
from packtrain._codec import native
from packtrain._codec.decoders import decoder
print(native.extension, native.absence, decoder().name, sep="|")
"""


@pytest.mark.complete
@pytest.mark.parametrize(
    ("other_version", "reason"),
    [
        (1, r"it was built, but cannot be loaded: it was compiled for version \d+ of libjpeg, and /.* is version 98$"),
        (0, r"it was built with libjpeg-turbo .*, and fails its own test with libjpeg \d+ .*: .* has other pixels$"),
    ],
    ids=["another version", "other pixels"],
)
def test_a_libjpeg_that_does_not_fit(tmp_path: Path, images: Path, other_version: int, reason: str) -> None:
    """The extension is then absent, and everything that asks for it says why."""
    source, library = tmp_path / "fitting.c", tmp_path / "fitting.so"
    source.write_text(UNFIT)
    assert native.extension is not None
    real = native.extension.LOADED.rsplit(", ", 1)[1]
    flags = ["-shared", "-fPIC", f"-DOTHER_VERSION={other_version}", f'-DLIBJPEG="{real}"']
    output_of(tool("cc", "gcc"), *flags, "-o", library, source, "-ldl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        done = python(WHY, without=())
        assert (done.returncode, done.stderr) == (0, "")
        extension, why, name = done.stdout.strip().split("|")
        assert extension == "None" and re.match(reason, why) and name == "simplejpeg"
        packing = packtrain("pack", images, tmp_path / "out", "--format=tar", without=())
        assert packing.returncode == 1 and why in packing.stderr and len(packing.stderr.splitlines()) == 1
        assert why in packtrain("doctor", without=()).stdout
