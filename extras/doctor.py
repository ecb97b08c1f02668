"""Advice on this machine: commands that would make it read images faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from packtrain._core.installing import EXTENSION_NEEDS, after_installing, build_command, pip

from .machine import MachineFacts, find_facts

# Eight workers with two batches each of 256 images, 224 x 224 and uint8, take 0.6 GiB.
_SMALL_SHM: Final = 1 << 30


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


def examine(seconds: float = 0.2) -> DoctorReport:
    """Inspect this machine and measure its decoders, spending `seconds` on each of three figures per decoder."""
    facts = find_facts(seconds)
    return DoctorReport(facts, tuple(advise(facts)))


def advise(facts: MachineFacts) -> list[Advice]:
    """Advise on a machine with these facts, the most serious first."""
    return sorted(_advice(facts), key=lambda advice: (not advice.broken, advice.optional))


def _advice(facts: MachineFacts) -> Iterator[Advice]:
    if facts.pillow_problem:
        yield Advice(facts.pillow_problem, _replace_pillow(facts), broken=True)
    elif facts.avx2 and facts.pillow is not None and not facts.pillow.startswith("pillow-simd"):
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
