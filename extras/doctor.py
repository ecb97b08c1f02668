"""Facts that decide how fast this machine reads images, and advice: commands that would make it read faster."""

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
from packtrain._core.installing import (
    EXTENSION_NEEDS,
    after_installing,
    build_command,
    extra_command,
    missing_packages,
    pip,
)

from .decoder_speed import DecoderSpeed, measure_decoder
from .foreign_decoders import ForeignDecoder, find_dali, find_gpu

_PACKAGES: Final = ("packtrain", "numpy", "torch")
# Eight workers with two batches each of 256 images, 224 x 224 and uint8, take 0.6 GiB.
_SMALL_SHM: Final = 1 << 30


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
        pillow_problem: Trouble with Pillow: both are installed, or neither, and no extension. None if all is well.
        avx2: True if the processor has AVX2, for which pillow-simd should be compiled.
        to_install: Debian packages that are missing for compiling an extension.
        cores: Cores that this process may use.
        machine_cores: Cores of the machine.
        shm_bytes: Size of /dev/shm in bytes; None if there is none.
        shm_free: Free bytes in /dev/shm; None if there is none.
        decoders: All decoders that packtrain knows, in its order; empty without Pillow, which they are compared with.
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


@dataclass(frozen=True)
class Advice:
    """Advice on one thing that can be improved.

    Attributes:
        text: The trouble and its cost.
        command: Shell command that ends the trouble; None if no command can.
        broken: True if images cannot be read reliably until the trouble is ended.
        optional: True if packtrain itself would read no faster; the text says who would.
    """

    text: str
    command: str | None
    broken: bool = False
    optional: bool = False


@dataclass(frozen=True)
class DoctorReport:
    """Facts about the machine, and advice, the most serious first."""

    facts: MachineFacts
    advice: tuple[Advice, ...]

    @property
    def broken(self) -> bool:
        """True if images cannot be read reliably until something is fixed."""
        return any(advice.broken for advice in self.advice)

    @property
    def well(self) -> bool:
        """True if nothing would make packtrain's own reading more reliable or faster."""
        return all(advice.optional for advice in self.advice)


def examine() -> DoctorReport:
    """Inspect this machine, measure its decoders, and advise."""
    facts = find_facts()
    return DoctorReport(facts, tuple(advise(facts)))


def find_facts() -> MachineFacts:
    """Inspect this machine and measure its decoders."""
    pillow, pillow_problem = None, pillow_conflict()
    try:
        pillow = pillow_version()
    except MissingDependency as error:
        if native.extension is None:
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
        decoders=tuple(_decoders()) if pillow else (),
        resizes=resizing.style() is not None,
        gpu=find_gpu() if pillow else None,
        dali=find_dali() if pillow else None,
    )


def _decoders() -> Iterator[DecoderFacts]:
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
            speed = measure_decoder(found)
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


def advise(facts: MachineFacts) -> list[Advice]:
    """Advise on a machine with these facts, the most serious first."""
    return sorted(_advice(facts), key=lambda advice: (not advice.broken, advice.optional))


def _advice(facts: MachineFacts) -> Iterator[Advice]:
    if facts.pillow_problem:
        yield Advice(facts.pillow_problem, _replace_pillow(facts), broken=True)
    elif facts.pillow is None:
        yield Advice(
            "there is no Pillow: packtrain packs and reads JPEGs without it, but no other formats, no masks, no grey "
            "images (mode L) and no transforms that are not packtrain's, and it neither resizes nor checks (`pack "
            "--resize`, `--check`)",
            extra_command("pillow"),
            optional=True,
        )
    elif facts.avx2 and not facts.pillow.startswith("pillow-simd"):
        users = (
            "packtrain's own transforms resize without Pillow here and gain nothing; `pack --resize`, and transforms "
            "that are not packtrain's, do"
            if facts.resizes
            else "without the C extension, that is how images are resized here"
        )
        yield Advice(
            f"pillow-simd resizes three to five times as fast as Pillow on this processor: {users}. It decodes to the "
            "same pixels; when it resizes a photograph (bilinear), one value in twenty differs from Pillow's, by 1 of "
            "255",
            _replace_pillow(facts),
            optional=facts.resizes,
        )
    yield from _advise_on_decoders(facts)
    if facts.shm_bytes is None or facts.shm_bytes < _SMALL_SHM:
        state = "missing" if facts.shm_bytes is None else f"only {facts.shm_bytes >> 20} MiB large"
        yield Advice(
            f"/dev/shm is {state}: packtrain's Loader does without it, but the workers of torch's DataLoader pass "
            "batches through it and die with a bus error when it is full, and `packtrain stage` copies to it unless "
            "told otherwise (--to). Docker's default is 64 MiB: start the container with --shm-size=8g; without "
            "Docker:",
            "mount -o remount,size=8g /dev/shm" if facts.shm_bytes else None,
            optional=True,
        )
    if facts.cores == 1:
        yield Advice(
            f"this process may use 1 of {facts.machine_cores} core(s), and decoding takes most of the time: ask the "
            "scheduler or the container for more (--cpus-per-task, --cpus)",
            None,
        )


def _advise_on_decoders(facts: MachineFacts) -> Iterator[Advice]:
    found = {each.name: each for each in facts.decoders}
    extension, simplejpeg = found.get("extension"), found.get("simplejpeg")
    if extension is None or extension.auto:
        return
    build = build_command(facts.to_install)
    if extension.version is None:
        yield Advice(
            "the C extension is missing: it is the fastest decoder, and packing crop-ready images needs it. "
            f"Why: {extension.problem}. {_for_building(facts)}. To build it:",
            build,
        )
    else:
        yield Advice(
            f"the C extension {extension.problem}, so it is not used: perhaps it was not built with libjpeg-turbo. To "
            "rebuild it:",
            build,
        )
    if simplejpeg is not None and simplejpeg.version is None:
        yield Advice(
            "if the C extension cannot be compiled here, simplejpeg (a wheel) still decodes crops faster than Pillow",
            f"{pip()} install --no-deps simplejpeg",
        )


def _for_building(facts: MachineFacts) -> str:
    """Name the packages that are missing for building the extension."""
    missing = [package for package in facts.to_install if package in EXTENSION_NEEDS]
    if missing:
        return f"Not installed here: {', '.join(missing)}"
    return "A compiler and all headers are here now; if it fails again, pip's option -v shows what the compiler says"


def _replace_pillow(facts: MachineFacts) -> str:
    """Return the command that puts the faster Pillow for this processor in the place of both."""
    remove = f"{pip()} uninstall -y pillow pillow-simd"
    if not facts.avx2:
        return f"{remove} && {pip()} install pillow"
    # The cache of pip may hold a build without AVX2.
    build = f'CC="cc -mavx2" {pip()} install --no-cache-dir --no-binary pillow-simd pillow-simd'
    return after_installing(facts.to_install, f"{remove} && {build}")
