"""`packtrain doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packtrain._core.sizes import size

from .output import print_json

if TYPE_CHECKING:
    from packtrain._readers.tuning.doctor import DecoderFacts, Examination, Facts


@click.command("doctor", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(as_json: bool) -> int:
    """Say what is installed, how fast it reads images here, and what would make it faster. Takes some seconds.

    Exit code 1 says that something is broken: no Pillow, or Pillow and pillow-simd over each other.
    """
    from packtrain._readers.tuning.doctor import examine

    found = examine()
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(_describe(found)))
    return 1 if found.broken else 0


def _describe(found: Examination) -> list[str]:
    lines = [f"{name:<10} {text}" for name, text in _environment(found.facts)]
    if found.facts.decoders:
        lines += ["", *_speeds(found.facts)]
    for advice in found.advice:
        word = click.style("broken:", fg="red") if advice.broken else click.style("better:", fg="green")
        lines += ["", f"{word} {advice.text}"]
        if advice.command:
            lines.append(f"    {advice.command}")
    if not found.advice:
        lines += ["", "nothing is left to make faster here"]
    return lines


def _environment(facts: Facts) -> list[tuple[str, str]]:
    shm = "missing"
    if facts.shm_bytes is not None and facts.shm_free is not None:
        shm = f"{size(facts.shm_bytes)}, {size(facts.shm_free)} free"
    return [
        *((name, version or "not installed") for name, version in facts.versions.items()),
        ("images", facts.pillow or "neither Pillow nor pillow-simd can be imported"),
        ("cores", f"{facts.cores} of {facts.machine_cores}"),
        ("/dev/shm", shm),
    ]


def _speeds(facts: Facts) -> list[str]:
    from packtrain._readers.tuning.speed import SIZE, TARGET

    lines = [
        f"Microseconds on one core: decode a JPEG of {SIZE[0]} x {SIZE[1]}; cut a random part out of it when it is",
        f"crop-ready, and decode that; resize it to {TARGET} x {TARGET}. Images per second: {facts.cores} core(s).",
        "",
        f"  {'decoder':<11}{'decode':>8}{'cut':>8}{'resize':>8}{'images/s':>10}",
        *(_row(each, facts.cores) for each in facts.decoders),
    ]
    return [*lines, "* decoder='auto'"]


def _row(decoder: DecoderFacts, cores: int) -> str:
    mark = "*" if decoder.auto else " "
    speed = decoder.speed
    if speed is None:
        return f"{mark} {decoder.name:<11}  not installed"
    cut = "-" if speed.cut is None else f"{speed.cut:,.0f}"
    figures = f"{speed.decode:>8,.0f}{cut:>8}{speed.resize:>8,.0f}{speed.images_per_second * cores:>10,.0f}"
    problem = f"; {decoder.problem}" if decoder.problem else ""
    return f"{mark} {decoder.name:<11}{figures}  {decoder.version}{problem}"
