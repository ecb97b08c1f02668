"""Laws of `packtrain doctor`: what it says about simulated machines, and about this one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from helpers.support import with_modules

from packtrain._codec import native
from packtrain._codec.decoders import DECODERS, decoder
from packtrain._codec.pillow import pillow_version
from packtrain._core.installing import extra_command
from packtrain._extras import doctor
from packtrain._extras.decoder_speed import DecoderSpeed
from packtrain._extras.doctor import Advice, DecoderFacts, MachineFacts, advise
from packtrain._extras.foreign_decoders import ForeignDecoder

from .conftest import Run

SPEED = DecoderSpeed(decode=1000, cut=400, coefficients=200, resize=100)
PILLOW = DecoderFacts("pillow", "Pillow 13", False, None, SPEED)
EXTENSION = DecoderFacts("extension", "libjpeg-turbo 3", True, None, SPEED)
SIMPLEJPEG = DecoderFacts("simplejpeg", "simplejpeg 1.9.0", False, None, SPEED)
ACCIMAGE = DecoderFacts("accimage", None, False, "not here", None)

WELL = MachineFacts(
    versions={"python": "3.11", "packtrain": "0.1.0", "numpy": "2.4.6", "torch": None, "libjpeg": "8, /x"},
    pillow="pillow-simd 12.1.1.post0, libjpeg-turbo 2.1.5",
    pillow_problem=None,
    avx2=True,
    to_install=(),
    cores=4,
    machine_cores=64,
    shm_bytes=8 << 30,
    shm_free=1 << 30,
    decoders=(PILLOW, EXTENSION, SIMPLEJPEG, ACCIMAGE),
    resizes=True,
)
PLAIN = replace(WELL, pillow="Pillow 13.0.0, libjpeg-turbo 3.2.0")


def without_extension(problem: str, version: str | None = None, to_install: tuple[str, ...] = ()) -> MachineFacts:
    extension = replace(EXTENSION, version=version, auto=False, problem=problem, speed=None)
    decoders = (PILLOW, extension, replace(SIMPLEJPEG, auto=True), ACCIMAGE)
    return replace(WELL, decoders=decoders, to_install=to_install, resizes=False)


def only(facts: MachineFacts) -> Advice:
    (advice,) = advise(facts)
    return advice


def command_of(advice: Advice) -> str:
    assert advice.command is not None
    return advice.command


class TestAdvice:
    def test_there_is_none_if_all_is_well(self) -> None:
        assert not list(advise(WELL))
        assert not list(advise(replace(PLAIN, avx2=False)))

    def test_pillow_simd_where_the_processor_can_run_it(self) -> None:
        advice = only(PLAIN)
        remove, build = command_of(advice).split(" && ")
        assert remove.endswith(" -m pip uninstall -y pillow pillow-simd")
        assert build.startswith('CC="cc -mavx2" ')
        assert build.endswith(" --no-binary pillow-simd pillow-simd")
        assert not advice.broken

    def test_pillow_simd_is_optional_where_packtrain_resizes_without_pillow(self) -> None:
        advice = only(PLAIN)
        assert advice.optional and "packtrain's own transforms resize without Pillow here" in advice.text
        advice = only(replace(PLAIN, resizes=False))
        assert not advice.optional and "that is how images are resized here" in advice.text

    def test_both_pillows_are_broken(self) -> None:
        for avx2, end in ((True, "--no-binary pillow-simd pillow-simd"), (False, " install pillow")):
            advice = only(replace(WELL, pillow_problem="both are installed", avx2=avx2))
            assert advice.broken and advice.text == "both are installed"
            assert " uninstall -y pillow pillow-simd && " in command_of(advice)
            assert command_of(advice).endswith(end)

    def test_what_is_broken_comes_first(self) -> None:
        facts = replace(PLAIN, pillow=None, pillow_problem="neither", cores=1, shm_bytes=None, decoders=())
        assert [advice.broken for advice in advise(facts)] == [True, False, False]

    def test_only_missing_packages_are_to_be_installed(self) -> None:
        missing = replace(PLAIN, to_install=("gcc", "zlib1g-dev"))
        assert command_of(only(missing)).startswith("apt-get install -y gcc zlib1g-dev && ")
        (advice,) = advise(without_extension("missing", to_install=("libjpeg-dev", "zlib1g-dev")))
        assert command_of(advice).startswith("apt-get install -y libjpeg-dev && ")

    def test_what_is_missing_for_building_the_extension_is_named(self) -> None:
        advice = only(without_extension("it failed", to_install=("gcc", "libjpeg-dev", "zlib1g-dev")))
        assert "Why: it failed. Not installed here: gcc, libjpeg-dev. To build it:" in advice.text
        advice = only(without_extension("it failed", to_install=("zlib1g-dev",)))
        assert "Why: it failed. A compiler and all headers are here now; " in advice.text
        assert "apt-get" not in command_of(advice)

    def test_an_extension_that_deviates(self) -> None:
        advice = only(without_extension("decodes a small grey JPEG to other pixels than Pillow", "libjpeg 9"))
        assert "other pixels than Pillow, so it is not used" in advice.text
        assert " -m pip install " in command_of(advice)

    def test_simplejpeg_where_the_extension_is_missing(self) -> None:
        facts = without_extension("missing")
        pillow, extension, simplejpeg, accimage = facts.decoders
        neither = (replace(pillow, auto=True), extension, replace(simplejpeg, version=None, auto=False), accimage)
        first, second = advise(replace(facts, decoders=neither))
        assert "C extension" in first.text
        assert command_of(second).endswith(" install --no-deps simplejpeg")
        # With the extension, simplejpeg would gain nothing.
        assert not list(advise(replace(facts, decoders=(pillow, EXTENSION, neither[2], accimage))))

    @pytest.mark.parametrize(
        ("size", "word"), [(64 << 20, "only 64 MiB large"), ((1 << 30) - 1, "only 1023 MiB large"), (None, "missing")]
    )
    def test_a_small_shm(self, size: int | None, word: str) -> None:
        advice = only(replace(WELL, shm_bytes=size, shm_free=size))
        assert advice.text.startswith(f"/dev/shm is {word}: ")
        assert "--shm-size=8g" in advice.text

    def test_an_shm_of_a_gibibyte_is_not_small(self) -> None:
        assert not list(advise(replace(WELL, shm_bytes=1 << 30)))

    def test_a_single_core(self) -> None:
        advice = only(replace(WELL, cores=1))
        assert "1 of 64 core(s)" in advice.text
        assert advice.command is None

    def test_every_command_is_one_that_a_shell_understands(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/opt/my envs/it's/bin/python")
        facts = replace(
            without_extension("missing", to_install=("gcc", "libjpeg-dev", "zlib1g-dev", "python3-dev")),
            pillow="Pillow 13",
            shm_bytes=1 << 20,
        )
        commands = [advice.command for advice in advise(facts) if advice.command]
        assert len(commands) == 3
        for command in commands:
            subprocess.run(["sh", "-n", "-c", command], check=True)
        assert "/opt/my envs/it's/bin/python" in shlex.split(commands[0])


class TestFacts:
    @pytest.mark.parametrize(
        ("architecture", "flags", "expected"),
        [
            ("x86_64", "fpu sse4_1 avx2 bmi2", True),
            ("x86_64", "fpu sse4_1 avx avx2x", False),
            ("aarch64", "asimd avx2", False),
            ("x86_64", None, False),
        ],
    )
    def test_avx2(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, architecture: str, flags: str | None, expected: bool
    ) -> None:
        monkeypatch.setattr("platform.machine", lambda: architecture)
        if flags is not None:
            (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\n")
        assert doctor._has_avx2(tmp_path / "cpuinfo") is expected

    def test_shm(self, tmp_path: Path) -> None:
        total, free = doctor._shm(tmp_path)
        state = os.statvfs(tmp_path)
        assert total == state.f_blocks * state.f_frsize
        assert free is not None and 0 < free <= total
        assert doctor._shm(tmp_path / "missing") == (None, None)


class TestCommand:
    @pytest.fixture
    def on(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[MachineFacts], None]:
        """Makes the command find these facts."""
        return lambda facts: monkeypatch.setattr(doctor, "find_facts", lambda: facts)

    def test_the_report_of_a_machine_where_all_is_well(self, run: Run, on: Callable[[MachineFacts], None]) -> None:
        on(WELL)
        outcome = run("doctor")
        assert (outcome.code, outcome.err) == (0, "")
        environment, explanation, table, verdict = outcome.out.split("\n\n")
        assert environment.splitlines() == [
            "python     3.11",
            "packtrain  0.1.0",
            "numpy      2.4.6",
            "torch      not installed",
            "libjpeg    8, /x",
            "pillow     pillow-simd 12.1.1.post0, libjpeg-turbo 2.1.5",
            "cores      4 of 64",
            "/dev/shm   8.0 GiB, 1.0 GiB free",
            "gpu        none that torch can use",
            "dali       not installed",
        ]
        assert "500 x 375" in explanation and max(map(len, explanation.splitlines())) < 100
        assert table.splitlines() == [
            "  decoder      decode     cut  coeff.  resize  images/s",
            "  pillow        1,000     400     200     100     8,000  Pillow 13",
            "* extension     1,000     400     200     100     8,000  libjpeg-turbo 3",
            "  simplejpeg    1,000     400     200     100     8,000  simplejpeg 1.9.0",
            "  accimage     not installed",
            "* taken by decoder='auto'",
        ]
        assert verdict == "all is well: nothing would make packtrain read faster here\n"

    def test_what_would_be_better_ends_with_the_command(self, run: Run, on: Callable[[MachineFacts], None]) -> None:
        on(replace(PLAIN, cores=1))
        outcome = run("doctor")
        assert outcome.code == 0
        *_, table, cores, swap = outcome.out.split("\n\n")
        assert "all is well" not in table
        assert cores.startswith("better: this process may use 1 of 64 core(s)")
        first, second = swap.splitlines()
        assert first.startswith("optional: pillow-simd ")
        assert second == f"    {only(PLAIN).command}"

    def test_all_is_well_where_only_others_would_be_faster(self, run: Run, on: Callable[[MachineFacts], None]) -> None:
        on(replace(PLAIN, shm_bytes=1 << 20))
        *_, verdict, swap, shm = run("doctor").out.split("\n\n")
        assert verdict == "all is well: nothing would make packtrain read faster here"
        assert swap.startswith("optional: pillow-simd ")
        assert shm.startswith("optional: /dev/shm is only 1 MiB large: packtrain's Loader does without it, ")
        on(without_extension("missing"))
        assert "all is well" not in run("doctor").out and "better: the C extension" in run("doctor").out

    def test_what_decodes_beside_the_decoders(self, run: Run, on: Callable[[MachineFacts], None]) -> None:
        on(WELL)
        out = run("doctor").out
        assert "\ngpu        none that torch can use\n" in out and "\ndali       not installed\n" in out
        on(replace(WELL, gpu=ForeignDecoder(None, None, "pip install it"), dali=ForeignDecoder("DALI 2.4.0", 2, None)))
        out = run("doctor").out
        assert "\ngpu        nothing decodes on it: pip install it\n" in out
        assert "\ndali       DALI 2.4.0: decoded a photograph, at most 2 of 255 from Pillow's pixels\n" in out

    def test_a_decoder_that_deviates_says_how(self, run: Run, on: Callable[[MachineFacts], None]) -> None:
        problem = "decodes a small grey JPEG to other pixels than Pillow"
        on(replace(WELL, decoders=(PILLOW, EXTENSION, replace(SIMPLEJPEG, problem=problem), ACCIMAGE)))
        assert f"  simplejpeg 1.9.0; {problem}\n" in run("doctor").out

    @pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"]])
    def test_what_is_broken_is_exit_code_1(
        self, run: Run, on: Callable[[MachineFacts], None], words: list[str]
    ) -> None:
        on(replace(WELL, pillow=None, pillow_problem="neither", decoders=()))
        outcome = run(*words)
        assert outcome.code == 1
        assert "neither" in outcome.out

    @pytest.mark.complete
    def test_this_machine(self, run: Run) -> None:
        outcome = run("doctor", "--json")
        assert outcome.err == ""
        facts, advice = outcome.json["facts"], outcome.json["advice"]
        assert outcome.code == any(each["broken"] for each in advice)
        assert facts["pillow"] == pillow_version()
        assert facts["resizes"] == (native.extension is not None)
        assert facts["versions"]["packtrain"] == metadata.version("packtrain")
        assert facts["versions"].get("libjpeg") == (native.extension and native.extension.LOADED)
        assert facts["cores"] <= len(os.sched_getaffinity(0))
        assert tuple(each["name"] for each in facts["decoders"]) == DECODERS[1:]
        assert [each["name"] for each in facts["decoders"] if each["auto"]] == [decoder().name]
        for each in facts["decoders"]:
            assert (each["version"] is None) == (each["speed"] is None)
            if each["speed"]:
                assert each["speed"]["decode"] > 0 and each["speed"]["resize"] > 0


def run_with(modules: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process that finds the modules of this folder first."""
    command = [sys.executable, "-m", "packtrain", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=with_modules(modules))


@pytest.mark.complete
def test_without_either_pillow(tmp_path: Path) -> None:
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL" / "__init__.py").write_text("raise ImportError(\"No module named 'PIL'\")\n")
    done = run_with(tmp_path)
    assert (done.returncode, done.stderr) == (int(native.extension is None), "")
    assert "pillow     neither Pillow nor pillow-simd can be imported\n" in done.stdout
    assert f"\n    {extra_command('pillow')}\n" in done.stdout
    assert json.loads(run_with(tmp_path, "--json").stdout)["facts"]["decoders"] == []


@pytest.mark.complete
def test_with_both_pillows(tmp_path: Path) -> None:
    for name in ("pillow", "pillow_simd"):
        folder = tmp_path / f"{name}-99.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 99.0\n")
    done = run_with(tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "\nbroken: Pillow and pillow-simd are both installed" in done.stdout
