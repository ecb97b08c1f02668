"""Environments of the loaders that packtrain is compared with: no single one can hold all of them.

    python -m benchmarks.environments [NAME ...]

makes them in .venv-peers/, each from requirements/NAME.txt, and says what is missing for each that cannot be made.
Needs only Python.
"""

from __future__ import annotations

import argparse
import ctypes.util
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
ENVIRONMENTS: Final = ROOT / ".venv-peers"
REQUIREMENTS: Final = ROOT / "benchmarks" / "requirements"
CONSTRAINTS: Final = ROOT / "constraints.txt"
LINKS: Final = ROOT / "links"
WHEELS: Final = ENVIRONMENTS / "wheels"

_PILLOWS: Final = ("pillow", "pillow-simd")
_LAST_LINES: Final = 15
"""Number of last lines of a failed command's output that are shown."""
_CHECK: Final = """
import importlib, sys
from importlib.metadata import distributions
wanted, *modules = sys.argv[1:]
found = [d.name.lower() for d in distributions() if d.name.lower() in ("pillow", "pillow-simd")]
if wanted and found != [wanted]:
    sys.exit(f"it should have {wanted} alone, but has {found}")
for module in modules:
    importlib.import_module(module)
"""


class Unavailable(Exception):
    """An environment cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class Environment:
    """The environment of one or more contestants.

    Attributes:
        variable: Environment variable that names another interpreter to use instead.
        imports: Modules that must be importable once it is made.
        torch: True if it gets torch and torchvision.
        pillow: The Pillow it gets, ``pillow`` or ``pillow-simd``; None for that of packtrain's environment.
        lacks: Returns what the system lacks and the command that installs it, or an empty string.
        built: True if a package is compiled against the packages that are installed before it.
        packtrain: True if packtrain is to be importable, from this working tree, with the packages that its loader
            needs in the list.
    """

    variable: str
    imports: tuple[str, ...]
    torch: bool = True
    pillow: str | None = None
    lacks: Callable[[], str] = str
    built: bool = False
    packtrain: bool = False


def _ffcv_lacks() -> str:
    for command, package in (("pkg-config", "pkg-config"), ("c++", "g++")):
        if shutil.which(command) is None:
            return f"{command} is missing: apt-get install {package} libopencv-dev libturbojpeg0-dev"
    for library, package in (("opencv4", "libopencv-dev"), ("libturbojpeg", "libturbojpeg0-dev")):
        if subprocess.run(["pkg-config", "--exists", library]).returncode:
            return f"{library} is missing: apt-get install {package}"
    return ""


def _spdl_lacks() -> str:
    found = ctypes.util.find_library("avdevice")
    return "" if found else "FFmpeg's libraries are missing: apt-get install libavdevice59"


def _accimage_lacks() -> str:
    return (
        "it is neither on PyPI nor in Debian, and is compiled against Intel's IPP: `conda install -c conda-forge "
        "accimage` next to packtrain, and name that interpreter in PACKTRAIN_ACCIMAGE_PYTHON"
    )


def _slipstream_lacks() -> str:
    return (
        "it is not on PyPI: install a checkout as benchmarks/peers.md says, and name that interpreter in "
        "PACKTRAIN_SLIPSTREAM_PYTHON"
    )


def _dali_lacks() -> str:
    return "" if platform.machine() == "x86_64" else f"there is no wheel of it for {platform.machine()}"


PEERS: Final = {
    "pillow": Environment("PACKTRAIN_PILLOW_PYTHON", ("torchvision",), pillow="pillow"),
    "webdataset": Environment("PACKTRAIN_PEERS_PYTHON", ("webdataset",)),
    "streaming": Environment("PACKTRAIN_PEERS_PYTHON", ("torchvision", "streaming")),
    "litdata": Environment("PACKTRAIN_LITDATA_PYTHON", ("litdata",)),
    "dali": Environment("PACKTRAIN_DALI_PYTHON", ("nvidia.dali", "packtrain.dali"), lacks=_dali_lacks, packtrain=True),
    "ffcv": Environment("PACKTRAIN_FFCV_PYTHON", ("ffcv",), lacks=_ffcv_lacks, built=True),
    "spdl": Environment("PACKTRAIN_SPDL_PYTHON", ("spdl.io",), lacks=_spdl_lacks),
    "slipstream": Environment("PACKTRAIN_SLIPSTREAM_PYTHON", ("slipstream",), lacks=_slipstream_lacks),
    "turboloader": Environment("PACKTRAIN_TURBOLOADER_PYTHON", ("turboloader",)),
    "accimage": Environment("PACKTRAIN_ACCIMAGE_PYTHON", ("accimage", "packtrain"), lacks=_accimage_lacks),
    "chart": Environment("PACKTRAIN_CHART_PYTHON", ("matplotlib",), torch=False, pillow="pillow"),
}


def interpreter(name: str | None) -> str:
    """The Python interpreter of an environment.

    Args:
        name: Name of the environment; None for packtrain's own.

    Returns:
        The interpreter that the environment's variable names; else that of the environment, if it has been made; else
        this one.
    """
    if name is None:
        return sys.executable
    if python := os.environ.get(PEERS[name].variable):
        return python
    return str(_python(name)) if _stamp(name).exists() else sys.executable


def why_missing(name: str | None) -> str:
    """The reason why `make` could not make an environment."""
    path = ENVIRONMENTS / f"{name}.reason"
    return path.read_text().strip() if path.exists() else "not installed; `make bench-peers` installs it"


def make(name: str) -> None:
    """Makes an environment, unless it exists already.

    Raises:
        Unavailable: It cannot be made.
    """
    wanted = _digest(name)
    if _stamp(name).exists() and _stamp(name).read_text() == wanted:
        return
    peer, reason = PEERS[name], ENVIRONMENTS / f"{name}.reason"
    ENVIRONMENTS.mkdir(exist_ok=True)
    reason.unlink(missing_ok=True)
    try:
        if lacks := peer.lacks():
            raise Unavailable(lacks)
        print(f"{name}: making {_stamp(name).parent.relative_to(ROOT)}", flush=True)
        _install(name, peer)
    except Unavailable as error:
        reason.write_text(f"{error}\n")
        raise
    _stamp(name).write_text(wanted)


def _install(name: str, peer: Environment) -> None:
    venv.create(ENVIRONMENTS / name, clear=True, with_pip=True)
    pillow = peer.pillow or own_pillow()
    if peer.torch:
        # As in the Makefile: first torch from its own index, then its dependencies from the usual one.
        index = os.environ.get("TORCH_INDEX")
        _pip(name, "--constraint", CONSTRAINTS, *(("--extra-index-url", index) if index else ()), "--no-deps", "torch")
        _pip(name, "--constraint", CONSTRAINTS, "torch", "setuptools", "wheel")
        _pip(name, "--constraint", CONSTRAINTS, "--no-deps", "torchvision")
    # The lists are complete, so that nothing that depends on Pillow can bring it over pillow-simd.
    built = ("--no-build-isolation",) if peer.built else ()
    _pip(name, "--no-deps", *built, "--requirement", REQUIREMENTS / f"{name}.txt")
    if pillow == "pillow-simd":
        _pip(name, "--no-index", "--find-links", _pillow_simd(name), "pillow-simd")
    else:
        _pip(name, "--constraint", CONSTRAINTS, "pillow")
    if peer.packtrain:
        packages = _run(_python(name), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        (Path(packages) / "packtrain.pth").write_text(f"{LINKS}\n")
    _run(_python(name), "-c", _CHECK, pillow, *_importable(peer))


def _importable(peer: Environment) -> tuple[str, ...]:
    # torchvision may have been compiled for another build of torch, and can then be imported only by way of
    # torchvision_import.
    return tuple(module for module in peer.imports if module not in ("torchvision", "streaming"))


def own_pillow() -> str:
    """The Pillow of this interpreter, ``pillow`` or ``pillow-simd``; without one, ``pillow``."""
    found = [dist.name.lower() for dist in distributions() if dist.name.lower() in _PILLOWS]
    return "pillow-simd" if "pillow-simd" in found else "pillow"


def _pillow_simd(name: str) -> Path:
    """The folder of pillow-simd's wheel, which is compiled once for all environments."""
    if not list(WHEELS.glob("*.whl")):
        # Without pip's cache, which may hold one from elsewhere, built without AVX2.
        command = (_python(name), "-m", "pip", "wheel", "--quiet", "--no-cache-dir", "--no-binary", "pillow-simd")
        where = ("--no-deps", "--constraint", CONSTRAINTS, "--wheel-dir", WHEELS)
        _run(*command, *where, "pillow-simd", CC="cc -mavx2")
    return WHEELS


def _pip(name: str, *arguments: object) -> None:
    _run(_python(name), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)], env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-_LAST_LINES:]
        raise Unavailable("\n".join([f"{' '.join(map(str, command[1:4]))} ... failed:", *last]))
    return done.stdout


def _digest(name: str) -> str:
    """A digest of everything that decides what is installed."""
    text = (REQUIREMENTS / f"{name}.txt").read_text() + CONSTRAINTS.read_text() + own_pillow() + sys.version
    return hashlib.sha256(text.encode()).hexdigest()


def _python(name: str) -> Path:
    return ENVIRONMENTS / name / "bin" / "python"


def _stamp(name: str) -> Path:
    return ENVIRONMENTS / name / ".installed"


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the environments of the peers in .venv-peers/.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(PEERS)}; all without one")
    names = parser.parse_args().names or list(PEERS)
    for name in names:
        if name not in PEERS:
            parser.error(f"no environment {name!r}: expected any of {', '.join(PEERS)}")
    for name in names:
        try:
            make(name)
        except Unavailable as error:
            print(f"{name}: SKIPPED, {error}", flush=True)
        else:
            print(f"{name}: ready", flush=True)


if __name__ == "__main__":
    main()
