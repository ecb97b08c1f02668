"""Makes the folder that PACKTRAIN_LIBJPEG names: libjpeg-turbo as an archive to link, and SIMDe's headers.

``python wheels/libraries.py FOLDER [ARGUMENT OF CMAKE ...]`` needs cmake, make, pip, a C compiler, and for x86-64 nasm.
libjpeg-turbo's source is downloaded, or is the file that PACKTRAIN_SOURCE names; pip gets SIMDe. Checksums decide.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

LIBJPEG: Final = (
    "https://github.com/libjpeg-turbo/libjpeg-turbo/archive/refs/tags/3.1.3.tar.gz",
    "https://deb.debian.org/debian/pool/main/libj/libjpeg-turbo/libjpeg-turbo_3.1.3.orig.tar.gz",
)
"""The same file twice: Debian keeps it as long as it has this version."""
LIBJPEG_SHA256: Final = "3a13a5ba767dc8264bc40b185e41368a80d5d5f945944d1dbaa4b2fb0099f4e5"
SIMDE: Final = "cmeel-simde==0.8.2"
SIMDE_SHA256: Final = "e44917e0dbcd62cb841a9232a06087e74583c5e8366831ea9390400fcc8f50bb"
# Hidden, so that another libjpeg in the process neither sees these functions nor is called in their place.
OPTIONS: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_C_VISIBILITY_PRESET=hidden",
    "-DCMAKE_INSTALL_LIBDIR=lib",
    "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
    "-DENABLE_SHARED=0",
    "-DREQUIRE_SIMD=1",
    "-DWITH_TESTS=0",
    "-DWITH_TOOLS=0",
    "-DWITH_TURBOJPEG=0",
)


def checked(data: bytes, sha256: str, place: str) -> io.BytesIO:
    """Returns a file's bytes for reading; ends the program if they have another checksum."""
    if hashlib.sha256(data).hexdigest() != sha256:
        sys.exit(f"{place}: its SHA-256 is not {sha256}")
    return io.BytesIO(data)


def unpack_libjpeg(folder: Path) -> None:
    """Unpacks the source of libjpeg-turbo."""
    given = os.environ.get("PACKTRAIN_SOURCE")
    places = LIBJPEG if given is None else [Path(given).absolute().as_uri()]
    problems = []
    for place in places:
        try:
            with urllib.request.urlopen(place, timeout=60) as answer:
                data = checked(answer.read(), LIBJPEG_SHA256, place)
        except OSError as error:
            problems.append(f"{place}: {error}")
            continue
        with tarfile.open(fileobj=data) as archive:
            archive.extractall(folder, filter="data")
        return
    sys.exit("\n".join([*problems, "Get the file in another way, and name it: PACKTRAIN_SOURCE=FILE"]))


def unpack_simde(folder: Path) -> None:
    """Unpacks a wheel that is nothing but SIMDe's headers."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), SIMDE]
    subprocess.run(pip, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(checked(wheel.read_bytes(), SIMDE_SHA256, wheel.name)) as archive:
        archive.extractall(folder)


def make(folder: Path, arguments: Sequence[str] = ()) -> None:
    """Builds libjpeg-turbo with further arguments of cmake, and puts everything into `folder`."""
    with TemporaryDirectory(prefix="packtrain-libraries-") as name:
        work = Path(name)
        unpack_libjpeg(work / "source")
        (source,) = (work / "source").iterdir()
        build = work / "build"
        subprocess.run(
            ["cmake", "-S", source, "-B", build, *OPTIONS, f"-DCMAKE_INSTALL_PREFIX={folder.resolve()}", *arguments],
            check=True,
        )
        subprocess.run(["cmake", "--build", build, "--parallel", "2", "--target", "install"], check=True)
        unpack_simde(work / "simde")
        (work / "simde/cmeel.prefix/include/simde").rename(folder / "include/simde")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    make(Path(sys.argv[1]), sys.argv[2:])
