"""The extension built with AddressSanitizer and UndefinedBehaviorSanitizer: any access out of bounds ends the process.

libjpeg itself is not instrumented, but the memory that the extension hands to it is. Python allocates with malloc in
these tests, so that the ends of bytes objects are watched too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from helpers.support import output_of, tool

pytestmark = pytest.mark.stress

ROOT = Path(__file__).parents[2]
# What setup.py builds the extension from.
SOURCES = tuple(sorted((ROOT / "codec" / "native").glob("*.c")))
LIBRARIES = ("-ljpeg", "-ldl", "-lm")
SANITISE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
PEEK = """
#include <Python.h>
int peek(PyObject *bytes, int at) { return PyBytes_AS_STRING(bytes)[at + 1]; }
"""
LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("packtrain._codec.native._extension", sys.argv[1])
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
from packtrain._codec.native import extension
assert extension.__file__ == sys.argv[1]
"""
OVERFLOW = LOAD + "import ctypes; ctypes.CDLL(sys.argv[1]).peek(ctypes.py_object(bytes(100)), 100)"
CAMPAIGN = LOAD + "from fuzz import campaign; print(*campaign.run(int(sys.argv[2]), 20, step=3, pixels=False))"
TESTS = LOAD + "import pytest; sys.exit(pytest.main(sys.argv[2:]))"


# Clang takes crc32 for an instruction of its own if it is told that the processor may lack it, as zig cc does.
COMPILERS = (("gcc",), ("clang",), ("clang", "-mno-crc32"), ("clang-19",), ("clang-19", "-mno-crc32"))


def compilers(choices: tuple[tuple[str, ...], ...]) -> list[tuple[str, ...]]:
    """Those that are installed."""
    return [choice for choice in choices if shutil.which(choice[0])]


@pytest.mark.complete
@pytest.mark.parametrize("compiler", compilers(COMPILERS), ids=" ".join)
def test_no_compiler_warns(compiler: tuple[str, ...], tmp_path: Path) -> None:
    """Optimising as setuptools does, since much of what a compiler warns of it finds only then."""
    include = f"-I{sysconfig.get_path('include')}"
    options = ("-shared", "-fPIC", "-O3", "-fwrapv", "-Wall", "-Wextra", "-Werror", include)
    output_of(*compiler, *options, *SOURCES, "-o", tmp_path / "extension.so", *LIBRARIES)


@pytest.mark.parametrize("clang", ["none", *(name for (name,) in compilers((("clang",), ("clang-19",))))])
def test_the_fuzzer_runs(clang: str) -> None:
    """Without clang it is our own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "fuzz.matrix", "--no-tests", "--seconds", "2", "--clang", clang]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("driver.c with gcc" if clang == "none" else "libFuzzer of ") in done.stdout


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The instrumented extension, with a function `peek(bytes, offset)` that can read out of bounds."""
    return built(tmp_path_factory.mktemp("sanitised"))


def built(folder: Path, *options: str) -> Path:
    compiler = tool("gcc", "gcc")
    out, peek = folder / f"_extension{sysconfig.get_config_var('EXT_SUFFIX')}", folder / "peek.c"
    peek.write_text(PEEK)
    include = f"-I{sysconfig.get_path('include')}"
    output_of(compiler, *SANITISE, *options, "-shared", "-fPIC", include, "-o", out, *SOURCES, peek, *LIBRARIES)
    return out


def sanitised(extension: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with the instrumented extension."""
    # libstdc++ too: AddressSanitizer looks for its throw only once, and the interpreter brings it in later, with torch.
    runtime = " ".join(output_of("gcc", f"-print-file-name={name}").strip() for name in ("libasan.so", "libstdc++.so"))
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        # The interpreter itself frees much only when the process ends; test_fuzz.py looks for leaks.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        # This process may have found packtrain, or another Pillow, through the same variable.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-c", program, str(extension), *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=3000)


def test_it_runs_with_the_modules_of_this_process(extension: Path) -> None:
    from packtrain._codec import native

    done = sanitised(extension, LOAD + "from packtrain._codec import native; print(native.__file__)")
    assert done.stdout.strip() == native.__file__, done.stderr


def test_it_would_be_noticed(extension: Path) -> None:
    done = sanitised(extension, OVERFLOW)
    assert done.returncode and "heap-buffer-overflow" in done.stderr


@pytest.mark.parametrize("seed", range(2))
def test_damaged_input(extension: Path, seed: int) -> None:
    done = sanitised(extension, CAMPAIGN, str(100 + seed))
    assert (done.returncode, done.stderr) == (0, "")
    number, images = map(int, done.stdout.split())
    assert number > 15_000 and images > 1000


def test_all_other_tests(extension: Path) -> None:
    """All but those that measure or exhaust memory."""
    paths = [str(ROOT / "tests" / "codec" / name) for name in ("effects", "native", "test_cut.py")]
    options = ["-q", "--capture=sys", "-p", "no:cacheprovider", "-k", "not memory and not longest"]
    done = sanitised(extension, TESTS, *options, *paths)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("options", [(), ("-DPACKTRAIN_WITHOUT_SIMD",)], ids=["simd", "scalar"])
def test_effects(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Also without the instructions that only some processors have, which gives the same pixels."""
    choice = ["-q", "--capture=sys", "-p", "no:cacheprovider", str(ROOT / "tests" / "codec" / "effects")]
    done = sanitised(built(tmp_path, *options), TESTS, *choice)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
