"""`make wheels`: the wheels of Linux, for x86-64 and aarch64, on either of them and without a container.

The compiler is zig's clang, which brings the symbols of every version of glibc.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import check
import libraries

ROOT: Final = Path(__file__).parents[1]
ARCHITECTURES: Final = ("x86_64", "aarch64")
GLIBC: Final = "2.17"
# Those that Python's own build has; zig's compiler would add a sanitizer of its own.
FLAGS: Final = "-O3 -DNDEBUG -fwrapv -fno-sanitize=all"


def tool(path: Path, command: str) -> Path:
    """Writes a program that is a command of zig; cmake and setuptools take no command of several words."""
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {command} "$@"\n')
    path.chmod(0o755)
    return path


def build(architecture: str, out: Path, work: Path) -> Path:
    """Builds the wheel for an architecture and returns where it lies."""
    compiler = tool(work / "cc", f"cc -target {architecture}-linux-gnu.{GLIBC}")
    libraries.make(
        work / "libraries",
        [
            "-DCMAKE_SYSTEM_NAME=Linux",
            f"-DCMAKE_SYSTEM_PROCESSOR={architecture}",
            f"-DCMAKE_C_COMPILER={compiler}",
            f"-DCMAKE_AR={tool(work / 'ar', 'ar')}",
            f"-DCMAKE_RANLIB={tool(work / 'ranlib', 'ranlib')}",
        ],
    )
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PACKTRAIN_LIBJPEG": str(work / "libraries"),
        "CC": str(compiler),
        "LDSHARED": f"{compiler} -shared -s -O3",
        "CFLAGS": FLAGS,
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",  # what a Python of that architecture would say
    }
    # An old build/ would put modules that were deleted since, or objects of the other architecture, into the wheel.
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    command: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", work, ROOT]
    subprocess.run(command, env=environment, check=True)
    shutil.rmtree(ROOT / "build")
    (wheel,) = work.glob("*.whl")
    subprocess.run(["auditwheel", "repair", "--wheel-dir", work / "repaired", wheel], env=environment, check=True)
    (repaired,) = (work / "repaired").glob("*.whl")
    return repaired.replace(out / repaired.name)


def main() -> None:
    """Builds and checks them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheels go (default: dist)")
    parser.add_argument("architectures", nargs="*", default=ARCHITECTURES, help="default: x86_64 aarch64")
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True)
    for architecture in given.architectures:
        with TemporaryDirectory(prefix="packtrain-wheel-") as work:
            check.check(build(architecture, given.out, Path(work)))


if __name__ == "__main__":
    main()
