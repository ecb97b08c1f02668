"""`packtrain doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packtrain._core.sizes import size

from .output import print_json, say

if TYPE_CHECKING:
    from packtrain._extras.doctor import DecoderFacts, DoctorReport, MachineFacts
    from packtrain._extras.foreign_decoders import ForeignDecoder


@click.command("doctor", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(as_json: bool) -> int:
    """Show what is installed, how fast it reads images here, and what would make it faster. Takes some seconds.

    Exit code 1 means that something is broken: there is neither Pillow nor the C extension, or Pillow
    and pillow-simd overwrote each other.
    """
    from packtrain._extras.doctor import examine

    report = examine()
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 1 if report.broken else 0


def _show(report: DoctorReport) -> None:
    say("\n".join(f"{name:<10} {text}" for name, text in _environment(report.facts)))
    if report.facts.decoders:
        say("\n".join(["", *_speeds(report.facts)]))
    if report.well:
        say("\nall is well: nothing would make packtrain read faster here")
    for advice in report.advice:
        kind, colour = (
            ("broken", "red") if advice.broken else ("optional", None) if advice.optional else ("better", "green")
        )
        say(f"\n{kind}:", colour=colour, end=" ")
        say(advice.text)
        if advice.command:
            say(f"    {advice.command}")


def _environment(facts: MachineFacts) -> list[tuple[str, str]]:
    shm = "missing"
    if facts.shm_bytes is not None and facts.shm_free is not None:
        shm = f"{size(facts.shm_bytes)}, {size(facts.shm_free)} free"
    return [
        *((name, version or "not installed") for name, version in facts.versions.items()),
        ("pillow", facts.pillow or "neither Pillow nor pillow-simd can be imported"),
        ("cores", f"{facts.cores} of {facts.machine_cores}"),
        ("/dev/shm", shm),
        ("gpu", _trial(facts.gpu) if facts.gpu else "none that torch can use"),
        ("dali", _trial(facts.dali) if facts.dali else "not installed"),
    ]


def _trial(found: ForeignDecoder) -> str:
    name = found.name or "nothing decodes on it"
    if found.problem:
        return f"{name}: {found.problem}"
    return f"{name}: decoded a photograph, at most {found.deviation} of 255 from Pillow's pixels"


def _speeds(facts: MachineFacts) -> list[str]:
    from packtrain._extras.decoder_speed import SIZE, TARGET

    lines = [
        f"Microseconds on one core to decode a JPEG of {SIZE[0]} x {SIZE[1]}; to cut a random crop out of it when it",
        "is crop-ready, and decode the crop; to decode the crop of coefficients (--store coefficients);",
        f"to resize the crop to {TARGET} x {TARGET}.",
        f"Images per second (cut and resize) on {facts.cores} core(s).",
        "",
        f"  {'decoder':<11}{'decode':>8}{'cut':>8}{'coeff.':>8}{'resize':>8}{'images/s':>10}",
        *(_row(each, facts.cores) for each in facts.decoders),
    ]
    return [*lines, "* taken by decoder='auto'"]


def _row(decoder: DecoderFacts, cores: int) -> str:
    mark = "*" if decoder.auto else " "
    speed = decoder.speed
    if speed is None:
        return f"{mark} {decoder.name:<11}  not installed"
    cut, coefficients = ("-" if each is None else f"{each:,.0f}" for each in (speed.cut, speed.coefficients))
    figures = (
        f"{speed.decode:>8,.0f}{cut:>8}{coefficients:>8}{speed.resize:>8,.0f}{speed.images_per_second * cores:>10,.0f}"
    )
    problem = f"; {decoder.problem}" if decoder.problem else ""
    return f"{mark} {decoder.name:<11}{figures}  {decoder.version}{problem}"
