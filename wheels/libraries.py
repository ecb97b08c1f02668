"""Makes the folder that PACKTRAIN_LIBJPEG names: libjpeg-turbo as an archive to link, and SIMDe's headers.

``python wheels/libraries.py FOLDER [ARGUMENT OF CMAKE ...]`` needs cmake, make, a C compiler, and for x86-64 nasm.
The sources are downloaded, or lie in the folder that PACKTRAIN_SOURCES names; their checksums decide.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

POOL: Final = "https://deb.debian.org/debian/pool/main"


@dataclass(frozen=True)
class Source:
    """A file in Debian's pool, which keeps the newest versions; snapshot.debian.org keeps all of them."""

    path: str
    sha256: str

    def read(self) -> bytes:
        """Return its bytes, which have the checksum."""
        name, folder = self.path.rsplit("/", 1)[1], os.environ.get("PACKTRAIN_SOURCES")
        advice = f"Get {name} from snapshot.debian.org, and name its folder: PACKTRAIN_SOURCES=..."
        place = f"{POOL}/{self.path}" if folder is None else str(Path(folder, name))
        try:
            if folder is None:
                with urllib.request.urlopen(place, timeout=60) as answer:
                    data: bytes = answer.read()
            else:
                data = Path(place).read_bytes()
        except OSError as error:
            sys.exit(f"{place}: {error}. {advice}")
        if hashlib.sha256(data).hexdigest() != self.sha256:
            sys.exit(f"{place}: its SHA-256 is not {self.sha256}. {advice}")
        return data


LIBJPEG: Final = Source(
    "libj/libjpeg-turbo/libjpeg-turbo_3.1.3.orig.tar.gz",
    "3a13a5ba767dc8264bc40b185e41368a80d5d5f945944d1dbaa4b2fb0099f4e5",
)
SIMDE: Final = Source(
    "s/simde/libsimde-dev_0.8.2-3_all.deb",
    "277dcde3fb84223b7026174042646e236da42adce2fcb77031807ede8166a51e",
)
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


def unpack(archive: bytes, folder: Path) -> None:
    """Unpacks a compressed tar archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        file.extractall(folder, filter="data")


def unpack_deb(package: bytes, folder: Path) -> None:
    """Unpacks the data of a Debian package, an `ar` archive whose third member they are."""
    place = len("!<arch>\n")
    for _ in range(3):
        size = int(package[place + 48 : place + 58])
        data, place = package[place + 60 : place + 60 + size], place + 60 + size + size % 2
    unpack(data, folder)


def make(folder: Path, arguments: Sequence[str] = ()) -> None:
    """Builds libjpeg-turbo with further arguments of cmake, and puts everything into `folder`."""
    with TemporaryDirectory(prefix="packtrain-libraries-") as name:
        work = Path(name)
        unpack(LIBJPEG.read(), work / "source")
        (source,) = (work / "source").iterdir()
        build = work / "build"
        subprocess.run(
            ["cmake", "-S", source, "-B", build, *OPTIONS, f"-DCMAKE_INSTALL_PREFIX={folder.resolve()}", *arguments],
            check=True,
        )
        subprocess.run(["cmake", "--build", build, "--parallel", "2", "--target", "install"], check=True)
        unpack_deb(SIMDE.read(), work / "simde")
        (work / "simde/usr/include/simde").rename(folder / "include/simde")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    make(Path(sys.argv[1]), sys.argv[2:])
