"""Facts that decide how fast this machine reads images: packages, decoders, cores and /dev/shm."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from packtrain._codec import native, resizing
from packtrain._codec.decoders import DECODERS, candidates, decoder
from packtrain._codec.pillow import pillow_conflict, pillow_version
from packtrain._core.cores import available_cores
from packtrain._core.errors import MissingDependency
from packtrain._core.installing import missing_packages

from .decoder_speed import DecoderSpeed, measure_decoder
from .foreign_decoders import ForeignDecoder, find_dali, find_gpu

_PACKAGES: Final = ("packtrain", "numpy", "torch")


@dataclass(frozen=True)
class DecoderFacts:
    """A decoder on this machine.

    Attributes:
        name: Name of the decoder, as `open_dataset` takes it.
        version: Library that decodes, with its version; None if the decoder is not installed.
        auto: True if ``decoder="auto"`` takes this decoder.
        problem: Reason for which ``"auto"`` does not take this decoder; None if it could.
        speed: Speed on this machine; None if the decoder is not installed.
    """

    name: str
    version: str | None
    auto: bool
    problem: str | None
    speed: DecoderSpeed | None


@dataclass(frozen=True)
class MachineFacts:
    """Facts that decide how fast this machine reads images.

    Attributes:
        versions: Versions of Python, packtrain, numpy and torch; None for a package that is not installed. With the C
            extension, also the libjpeg that it uses.
        pillow: Pillow or pillow-simd, with its version and libjpeg; None if neither can be imported.
        pillow_problem: Trouble with Pillow: none can be imported, or both are installed. None if all is well.
        avx2: True if the processor has AVX2, for which pillow-simd should be compiled.
        to_install: Debian packages that are missing for compiling an extension.
        cores: Cores that this process may use.
        machine_cores: Cores of the machine.
        shm_bytes: Size of /dev/shm in bytes; None if there is none.
        shm_free: Free bytes in /dev/shm; None if there is none.
        decoders: All decoders that packtrain knows, in its order; empty without Pillow, which all of them need.
        resizes: True if packtrain resizes with its extension, and not with Pillow.
        gpu: Decoder on the GPU; None if there is no GPU, or no Pillow to compare with.
        dali: NVIDIA DALI on the CPU; None if it is not installed, or there is no Pillow to compare with.
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
    resizes: bool = False
    gpu: ForeignDecoder | None = None
    dali: ForeignDecoder | None = None


def find_facts(seconds: float) -> MachineFacts:
    """Inspect this machine and measure its decoders, spending `seconds` on each of three figures per decoder."""
    pillow, pillow_problem = None, pillow_conflict()
    try:
        pillow = pillow_version()
    except MissingDependency as error:
        pillow_problem = pillow_problem or str(error)
    shm_bytes, shm_free = _shm(Path("/dev/shm"))
    return MachineFacts(
        versions={"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}, **_libjpeg()},
        pillow=pillow,
        pillow_problem=pillow_problem,
        avx2=_has_avx2(Path("/proc/cpuinfo")),
        to_install=tuple(missing_packages()),
        cores=available_cores(),
        machine_cores=os.cpu_count() or 1,
        shm_bytes=shm_bytes,
        shm_free=shm_free,
        decoders=tuple(_decoders(seconds)) if pillow else (),
        resizes=pillow is not None and resizing.style() is not None,
        gpu=find_gpu() if pillow else None,
        dali=find_dali() if pillow else None,
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
            why = native.absence if name == "extension" else str(error)
            yield DecoderFacts(name, None, False, why, None)
        else:
            speed = measure_decoder(found, seconds)
            yield DecoderFacts(name, found.version, name == auto, problems.get(name), speed)


def _libjpeg() -> dict[str, str | None]:
    return {} if native.extension is None else {"libjpeg": native.extension.LOADED}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _shm(path: Path) -> tuple[int, int] | tuple[None, None]:
    """Return total and free bytes."""
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
