"""Laws of what commands print: no name steers the terminal, and no failure ends in a traceback."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from helpers.damage import forge
from helpers.support import encoded, picture

from packtrain import PackOptions, pack
from packtrain._cli import output
from packtrain._storage.staging.options import StageProgress

from .conftest import Run

CLI = Path(__file__).parents[2] / "cli"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
EVIL = "\x1b[31mred\x1b]0;title\x07\x9b2J\r\x7f\u202egpj\udcff"


def test_only_one_module_prints() -> None:
    """What `stage` prints for a program, and `show` for a terminal that shows images, stays as it is."""
    allowed = {("output.py", "style"), ("output.py", "echo"), ("stage_cmd.py", "echo"), ("show_cmd.py", "echo")}
    found = {
        (path.name, node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id)
        for path in CLI.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    }
    assert {(module, name) for module, name in found if name in ("print", "echo", "secho", "write", "style")} <= allowed


class TestNamesThatSteerTerminals:
    @pytest.fixture
    def photos(self, tmp_path: Path) -> Path:
        """An image folder whose names are escape sequences."""
        photos = tmp_path / f"photos{EVIL}"
        (photos / f"dog{EVIL}").mkdir(parents=True)
        for number in range(3):
            (photos / f"dog{EVIL}" / f"{number}{EVIL}.jpg").write_bytes(encoded(picture(number)))
        (photos / f"dog{EVIL}" / f"broken{EVIL}.jpg").write_bytes(b"\x1b[31m")
        return photos

    def test_in_files_classes_and_folders(self, run: Run, photos: Path, tmp_path: Path) -> None:
        out = tmp_path / f"out{EVIL}"
        outcomes = [run("pack", photos, out, "--workers", 1, "--max-rejects", 0)]
        assert outcomes[0].code == 1
        for command in (("pack", photos, out), ("info", out), ("verify", out, "--decode"), ("pack", photos, out)):
            outcomes.append(run(*command))
            assert outcomes[-1].code == 0
        shard = next(out.glob("*.tar"))
        shard.write_bytes(shard.read_bytes()[:-2000])
        outcomes += [run("verify", out), run("info", photos), run("pack", out / "gone", out), run("info", out, EVIL)]
        outcomes += [run("info", out, "--json"), run("pack", photos, photos, "--json"), run(EVIL)]
        for outcome in outcomes:
            assert not STEERING.search(outcome.out + outcome.err)
        assert "\\x1b[31mred" in outcomes[0].err
        assert "\\x1b[31mred" in outcomes[2].out

    def test_in_fields_of_a_manifest(self, run: Run, images: Path, tmp_path: Path) -> None:
        pack(images, tmp_path / "out", PackOptions())
        path = tmp_path / "out" / "manifest.json"
        forge(path, lambda body: body.update(written_by=f"{EVIL}\nshards  0", classes=[f"{EVIL}\n2 dogs"] * 3))
        outcome = run("info", tmp_path / "out")
        assert outcome.code == 0
        assert not STEERING.search(outcome.out)
        assert "\\nshards" in outcome.out
        assert "\\n2 dogs" in outcome.out
        forge(path, lambda body: body.update(format=EVIL))
        assert not STEERING.search(run("verify", tmp_path / "out").out + run("info", tmp_path / "out").err)

    def test_in_the_note_of_a_progress_line(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output, "_LOG_SECONDS", 0)
        with output.progress("stage", quiet=False, unit="bytes", note=lambda state: state.note) as show:
            show(StageProgress("copy", 1, 2, 0, f"{EVIL}\nerror: no"))
        written = capsys.readouterr().err
        assert written.count("\n") == 1
        assert not STEERING.search(written)

    def test_in_a_locale_that_cannot_write_them(self, images: Path, tmp_path: Path) -> None:
        pack(images, tmp_path / "out é", PackOptions())
        environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
        command = [sys.executable, "-m", "packtrain", "info", str(tmp_path / "out é")]
        done = subprocess.run(command, env=environment, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"out \xe9 (tar)" in done.stdout
        assert b" \\u2588" in done.stdout


class TestLastResort:
    """An OSError that nobody foresaw is a message with its path."""

    @pytest.mark.parametrize("words", [[], ["--json"]], ids=["", "json"])
    def test_it_is_no_traceback(
        self, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        @click.command()
        @click.option("--json", is_flag=True)
        def command(json: bool) -> None:
            Path("/gone\x1b[31m/file").read_bytes()

        monkeypatch.setattr(sys, "argv", ["packtrain", *words])
        with pytest.raises(SystemExit) as ended:
            output.run(command)
        assert ended.value.code == 1
        written = capsys.readouterr()
        assert written.err == "error: /gone\\x1b[31m/file: No such file or directory\n"
        assert ("FileNotFoundError" in written.out) == bool(words)

    @pytest.mark.parametrize("name", ["x" * 300, "a" * 200 + "/" + "b" * 5000], ids=["name", "path"])
    @pytest.mark.parametrize(
        "command", ["info {}", "verify {}", "stage {}", "tune {}", "pack {} out", "pack {list} {}"]
    )
    def test_a_path_that_is_too_long(
        self, run: Run, images: Path, tmp_path: Path, command: str, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        outcome = run(*(word.format(name, list=images) for word in command.split()))
        assert outcome.code == 1
        # To verify, an unreadable manifest is a finding.
        said = outcome.out.partition("\n")[0] + "\n" if command == "verify {}" else outcome.err
        assert re.fullmatch(r"(error|manifest.json): .*File name too long.*\n", said)
