"""What makes reading fast or slow on this machine: what is installed, how fast it is, and what would make it faster."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from packtrain._codec.decoders import DECODERS, candidates, decoder
from packtrain._codec.pillow import pillow_conflict, pillow_version
from packtrain._core.cores import available_cores
from packtrain._core.errors import MissingDependency

from .speed import Speed, measure

# Eight workers with two batches each of 256 images, 224 x 224 and uint8, are 0.6 GiB.
_SMALL_SHM: Final = 1 << 30
_PACKAGES: Final = ("packtrain", "numpy", "torch")
# What compiling needs, by Debian package.
_COMPILER: Final = "gcc"
_HEADERS: Final = {"libjpeg-dev": "jpeglib.h", "zlib1g-dev": "zlib.h", "python3-dev": "Python.h"}


@dataclass(frozen=True)
class DecoderFacts:
    """A decoder as it is found here.

    Attributes:
        name: Its name in `packtrain._codec.decoders.DECODERS`.
        version: What decodes; None if it is not installed.
        auto: Whether ``decoder="auto"`` takes it.
        problem: Why ``"auto"`` would not.
        speed: None if it is not installed.
    """

    name: str
    version: str | None
    auto: bool
    problem: str | None
    speed: Speed | None


@dataclass(frozen=True)
class Facts:
    """What reading depends on here.

    Attributes:
        versions: Of Python, packtrain and what it is built on; None for what is not installed.
        pillow: Which of Pillow and pillow-simd it is, with its libjpeg; None if neither can be imported.
        pillow_problem: Why neither can be imported, or that both are installed.
        avx2: Whether the processor has AVX2, which pillow-simd is to be compiled for.
        to_install: Debian packages that compiling an extension lacks.
        cores: Cores that this process may use.
        machine_cores: Cores of the machine.
        shm_bytes: Size of /dev/shm; None if there is none.
        shm_free: Bytes free in it.
        decoders: In the order of `DECODERS`; none without Pillow, which makes the images of them all.
    """

    versions: dict[str, str | None]
    pillow: str | None
    pillow_problem: str | None
    avx2: bool
    to_install: tuple[str, ...]
    cores: int
    machine_cores: int
    shm_bytes: int | None
    shm_free: int | None
    decoders: tuple[DecoderFacts, ...]


@dataclass(frozen=True)
class Advice:
    """Something that can be made better.

    Attributes:
        text: What is the matter and what it costs.
        command: What mends it, to be pasted into a shell; None where that is beyond a command.
        broken: Whether images cannot be read reliably as things are.
    """

    text: str
    command: str | None
    broken: bool = False


@dataclass(frozen=True)
class Examination:
    """What `examine` finds."""

    facts: Facts
    advice: tuple[Advice, ...]

    @property
    def broken(self) -> bool:
        """Whether images cannot be read reliably as things are."""
        return any(advice.broken for advice in self.advice)


def examine(seconds: float = 0.2) -> Examination:
    """Looks at this machine and measures the decoders, for `seconds` on each of three figures."""
    facts = find_facts(seconds)
    return Examination(facts, tuple(advise(facts)))


def find_facts(seconds: float) -> Facts:
    """What reading depends on here; see `examine`."""
    pillow, pillow_problem = None, pillow_conflict()
    try:
        pillow = pillow_version()
    except MissingDependency as error:
        pillow_problem = pillow_problem or str(error)
    shm_bytes, shm_free = _shm(Path("/dev/shm"))
    return Facts(
        versions={"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        pillow=pillow,
        pillow_problem=pillow_problem,
        avx2=_has_avx2(Path("/proc/cpuinfo")),
        to_install=tuple(_to_install()),
        cores=available_cores(),
        machine_cores=os.cpu_count() or 1,
        shm_bytes=shm_bytes,
        shm_free=shm_free,
        decoders=tuple(_decoders(seconds)) if pillow else (),
    )


def advise(facts: Facts) -> Iterator[Advice]:
    """What would mend or speed up reading where these are the facts, the gravest first."""
    if facts.pillow_problem:
        yield Advice(facts.pillow_problem, _swap(facts), broken=True)
    elif facts.avx2 and facts.pillow is not None and not facts.pillow.startswith("pillow-simd"):
        yield Advice(
            "pillow-simd resizes three to five times as fast as Pillow on this processor, which counts for transforms "
            "that are not packtrain's, and without the C extension. It decodes to the same pixels; resized (bilinear) "
            "photographs differ from Pillow's in a twentieth of their values, by 1 of 255",
            _swap(facts),
        )
    yield from _about_decoders(facts)
    if facts.shm_bytes is None or facts.shm_bytes < _SMALL_SHM:
        size = "missing" if facts.shm_bytes is None else f"{facts.shm_bytes >> 20} MiB large"
        yield Advice(
            f"/dev/shm is {size}: torch's DataLoader workers hand batches over through it and end with a bus error "
            "when it is full. Docker's default is 64 MiB: start the container with --shm-size=8g; without Docker:",
            "mount -o remount,size=8g /dev/shm" if facts.shm_bytes else None,
        )
    if facts.cores == 1:
        yield Advice(
            f"this process may use 1 of {facts.machine_cores} core(s), and decoding is what takes the time: "
            "ask the scheduler or the container for more (--cpus-per-task, --cpus)",
            None,
        )


def _about_decoders(facts: Facts) -> Iterator[Advice]:
    found = {each.name: each for each in facts.decoders}
    extension, simplejpeg = found.get("extension"), found.get("simplejpeg")
    if extension is None or extension.auto:
        return
    if extension.version is None:
        yield Advice(
            "the C extension is missing: it decodes fastest, and without it nothing can be packed crop-ready",
            _after(facts, ("libjpeg-dev", "python3-dev"), f"{_pip()} install {_own_source()}"),
        )
    else:
        yield Advice(
            f"the C extension {extension.problem}, so it is not used: perhaps it was not built with libjpeg-turbo. To "
            "build it anew:",
            _after(facts, ("libjpeg-dev", "python3-dev"), f"{_pip()} install {_own_source()}"),
        )
    if simplejpeg is not None and simplejpeg.version is None:
        yield Advice(
            "where that cannot be compiled, simplejpeg, a wheel, still decodes crops faster than Pillow",
            f"{_pip()} install --no-deps simplejpeg",
        )


def _decoders(seconds: float) -> Iterator[DecoderFacts]:
    problems = {name: problem for name, _, problem in candidates()}
    auto = decoder("auto").name
    for name in DECODERS:
        if name == "auto":
            continue
        try:
            found = decoder(name)
        except MissingDependency as error:
            yield DecoderFacts(name, None, False, str(error), None)
        else:
            yield DecoderFacts(name, found.version, name == auto, problems.get(name), measure(found, seconds))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _shm(path: Path) -> tuple[int, int] | tuple[None, None]:
    try:
        state = os.statvfs(path)
    except OSError:
        return None, None
    return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize


def _has_avx2(cpuinfo: Path) -> bool:
    try:
        return platform.machine() == "x86_64" and "avx2" in cpuinfo.read_text().split()
    except OSError:
        return False


def _to_install() -> Iterator[str]:
    if shutil.which("cc") is None:
        yield _COMPILER
    folders = [Path("/usr/include"), Path("/usr/local/include"), Path(sysconfig.get_path("include"))]
    if "CONDA_PREFIX" in os.environ:
        folders.append(Path(os.environ["CONDA_PREFIX"], "include"))
    for package, header in _HEADERS.items():
        if not any((folder / header).exists() for folder in folders):
            yield package


def _pip() -> str:
    """pip of this very interpreter: the one on the path may belong to another."""
    return f"{shlex.quote(sys.executable)} -m pip"


def _swap(facts: Facts) -> str:
    """Puts the faster one of Pillow and pillow-simd that this processor can run in place of whatever is there."""
    remove = f"{_pip()} uninstall -y pillow pillow-simd"
    if not facts.avx2:
        return f"{remove} && {_pip()} install pillow"
    # Not from pip's cache, which may hold a build without AVX2.
    build = f'CC="cc -mavx2" {_pip()} install --no-cache-dir --no-binary pillow-simd pillow-simd'
    return _after(facts, tuple(_HEADERS), f"{remove} && {build}")


def _after(facts: Facts, headers: tuple[str, ...], command: str) -> str:
    missing = [package for package in facts.to_install if package in (_COMPILER, *headers)]
    return f"apt-get install -y {' '.join(missing)} && {command}" if missing else command


def _own_source() -> str:
    """What pip is to build packtrain from: where this one came from."""
    try:
        origin = json.loads(metadata.distribution("packtrain").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        origin = {}
    url = origin.get("url", "")
    if origin.get("dir_info", {}).get("editable"):
        return f"--no-deps --editable {shlex.quote(unquote(url.removeprefix('file://')))}"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    if url and not url.endswith(".whl"):
        return f"--force-reinstall --no-deps {shlex.quote(url)}"
    return "--force-reinstall --no-deps --no-binary packtrain packtrain"
