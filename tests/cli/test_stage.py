"""Laws of `packtrain stage`: standard output is the path, and a command that it runs holds the lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.memory import disk_factory
from helpers.support import packed, shard_bytes, soon, tree
from helpers.waiting import wait_until

from packtrain import open_dataset
from packtrain._cli.stage_cmd import parse_seconds, stage_progress
from packtrain.errors import Leased, UsageError
from packtrain.staging import StageProgress, entries, evict

from .conftest import Run, on_terminal

GIB = 1 << 30
PROGRAM = (sys.executable, "-m", "packtrain")


# Copies in memory of what is on a disk.
tmp_path_factory = disk_factory


@pytest.fixture(scope="module")
def dataset(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stage") / "train set"
    return packed(images, folder, "tar", shard_size=shard_bytes(images, 5))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "a place"
    folder.mkdir()
    return folder


def program(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs ``packtrain stage`` in a separate process."""
    return subprocess.run([*PROGRAM, "stage", *map(str, words)], text=True, capture_output=True, timeout=60, **options)


class TestPath:
    @pytest.mark.parametrize("options", [[], ["--warm"], ["--partial"], ["--threads", 1], ["--budget", "1GiB"]])
    def test_standard_output_is_the_path_and_nothing_else(
        self, run: Run, dataset: Path, place: Path, options: list[object]
    ) -> None:
        outcome = run("stage", dataset, "--to", place, *options)
        assert outcome.code == 0
        path = Path(outcome.out.removesuffix("\n"))
        assert outcome.out == f"{path}\n" and path.is_absolute() and path.parent.parent == place
        copied = tree(path)
        assert copied.pop("staged.json")
        assert copied == tree(dataset)
        # It warns that the copy is on the file system of its source.
        assert outcome.err.startswith("warning: ") and "are on the same file system" in outcome.err
        assert run("stage", dataset, "--to", place, *options).out == outcome.out

    def test_a_path_that_is_not_text(self, dataset: Path, tmp_path: Path) -> None:
        place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
        place.mkdir()
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
        done = subprocess.run([*PROGRAM, "stage", dataset, "--to", place], capture_output=True, env=environment)
        assert Path(os.fsdecode(done.stdout.removesuffix(b"\n"))).parent.parent == place, done.stderr

    def test_json(self, run: Run, dataset: Path, place: Path) -> None:
        first = run("stage", dataset, "--to", place, "--json").json
        path = Path(first["path"])
        size = sum(len(data) for name, data in tree(dataset).items() if name != "manifest.json")
        assert first == {
            "path": str(path),
            "id": path.name,
            "bytes": size,
            "copied": size,
            "local_shards": 3,
            "shards": 3,
        }
        assert run("stage", dataset, "--to", place, "--json").json == {**first, "copied": 0}

    @pytest.mark.parametrize(("grace", "seconds"), [([], 3600), (["--grace", "2m"], 120), (["--grace", "0"], 0)])
    def test_the_path_is_safe_for_the_grace_period(
        self, run: Run, dataset: Path, place: Path, grace: list[str], seconds: float
    ) -> None:
        before = time.time()
        run("stage", dataset, "--to", place, *grace)
        (entry,) = entries(place)
        assert not seconds or before + seconds <= entry.promised_until + 1 <= time.time() + seconds + 2
        assert len(evict(place)) == (not seconds)


class TestErrors:
    def test_no_room(self, run: Run, dataset: Path, place: Path) -> None:
        outcome = run("stage", dataset, "--to", place, "--budget", "10K")
        assert (outcome.code, outcome.out) == (1, "")
        assert f"{dataset} takes " in outcome.err
        assert "the budget of 9.8 KiB has only 9.8 KiB left" in outcome.err and "raise it (`--budget`)" in outcome.err

    def test_json_of_a_command(self, run: Run, dataset: Path, place: Path) -> None:
        outcome = run("stage", dataset, "--to", place, "--json", "--", "true")
        assert outcome.code == 2 and "standard output belongs to the command" in outcome.json["message"]

    def test_the_commands_json_is_none_of_our_business(self, run: Run, dataset: Path, place: Path) -> None:
        outcome = run("stage", dataset, "--to", place, "--budget", 0, "--", "true", "--json")
        assert (outcome.code, outcome.out) == (1, "")

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("0", 0), ("90", 90), ("90s", 90), ("30m", 1800), ("1h", 3600), ("1.5H", 5400), (" 2 d ", 172800)],
    )
    def test_times(self, text: str, seconds: float) -> None:
        assert parse_seconds(text) == seconds

    @pytest.mark.parametrize("text", ["", "h", "-1", "1y", "1h30m", "inf", "nan", "1e9"])
    def test_what_is_no_time(self, text: str) -> None:
        with pytest.raises(UsageError, match="expected seconds"):
            parse_seconds(text)


class TestCommand:
    def test_it_gets_the_path(self, dataset: Path, place: Path) -> None:
        code = "import os, sys; print(os.environ['PACKTRAIN_STAGED'], *sys.argv[1:], input(), sep='\\n')"
        words = ["{}", "--data={}", "data={}", "{}/index", "d = {}", "--to", "--json", "--", "-h"]
        done = program(dataset, "--to", place, "--", sys.executable, "-c", code, *words, input="typed")
        path = str(entries(place)[0].path)
        replaced = [path, f"--data={path}", f"data={path}", *words[3:]]
        assert (done.returncode, done.stdout.splitlines()) == (0, [path, *replaced, "typed"])

    @pytest.mark.parametrize(
        ("script", "code"),
        [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM), ("kill -PIPE $$; exit 1", -signal.SIGPIPE)],
    )
    def test_it_ends_as_the_command_ends(self, dataset: Path, place: Path, script: str, code: int) -> None:
        assert program(dataset, "--to", place, "--", "sh", "-c", script).returncode == code

    def test_ctrl_c_reaches_the_command(self, dataset: Path, place: Path) -> None:
        """There is no parent process that could catch it."""
        words = [
            *PROGRAM,
            "stage",
            str(dataset),
            "--to",
            str(place),
            "--",
            "sh",
            "-c",
            "trap 'exit 5' INT; echo; read x",
        ]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process, soon(60):
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait() == 5

    def test_the_lease_is_held_until_all_that_it_started_has_ended(self, dataset: Path, place: Path) -> None:
        script = "sleep 1000 >&- 2>&- & echo $!"
        done = program(dataset, "--to", place, "--", "sh", "-c", script)
        process = int(done.stdout)
        try:
            (entry,) = entries(place)
            assert entry.leased
            assert evict(place) == []
            with pytest.raises(Leased):
                evict(place, [entry.id])
            assert len(open_dataset(entry.path)) == 12
        finally:
            os.kill(process, signal.SIGKILL)
        wait_until(lambda: not entries(place)[0].leased, "the lease is gone")
        # There is no grace period after that.
        assert [gone.id for gone in evict(place)] == [entry.id]

    def test_grace_for_after_the_command(self, dataset: Path, place: Path) -> None:
        assert program(dataset, "--to", place, "--grace", "5m", "--", "true").returncode == 0
        assert entries(place)[0].promised_until > time.time() + 200

    @pytest.mark.parametrize(
        ("name", "code", "why"),
        [
            ("no-such-program", 127, "not found"),
            ("./no-such-file", 127, "not found"),
            ("/etc/passwd", 126, "not executable"),
            ("/etc", 126, "not executable"),
        ],
    )
    def test_it_is_looked_for_before_anything_is_copied(
        self, dataset: Path, place: Path, name: str, code: int, why: str
    ) -> None:
        done = program(dataset, "--to", place, "--", name)
        assert (done.returncode, done.stdout) == (code, "")
        assert f"cannot run '{name}': {why}\n" in done.stderr
        assert not list(place.iterdir())

    def test_what_cannot_be_run(self, dataset: Path, place: Path) -> None:
        done = program(dataset, "--to", place, "--", "{}")
        assert (done.returncode, done.stdout) == (126, "")
        assert "cannot run" in done.stderr and "Permission denied" in done.stderr
        assert len(evict(place)) == 1

    def test_other_descriptors_are_not_inherited(self, dataset: Path, place: Path) -> None:
        done = program(dataset, "--to", place, "--", "ls", "-l", "/proc/self/fd")
        links = [line.split(" -> ")[1] for line in done.stdout.splitlines() if " -> " in line]
        assert [link for link in links if str(place) in link] == [f"{place}/{leasefile(place)}"]


def leasefile(place: Path) -> str:
    (path,) = place.glob("packtrain-*/.locks/*.lease")
    return str(path.relative_to(place))


class TestProgress:
    def test_lines_in_a_log(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """There is one line every ten seconds; the rate does not include what was copied before."""
        clock = [1000]
        monkeypatch.setattr("packtrain._cli.output.time.monotonic", lambda: clock[0])
        with stage_progress(quiet=False) as show:
            for clock[0] in (1000, 1004, 1012, 1013, 1021):
                show(StageProgress("wait", 0, 0, 0, "process 7 is copying it"))
            for clock[0] in (1021, 1025, 1032, 1041):
                show(StageProgress("copy", (clock[0] - 1021) * GIB // 10 + GIB, 5 * GIB, GIB))
            for clock[0] in (1041, 1052):
                show(StageProgress("warm", 0, GIB))
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines() == [
            "waiting: process 7 is copying it",
            "staging: 2.1 GiB of 5.0 GiB (102.4 MiB/s, 29 s left)",
            "warming: 0 B of 1.0 GiB (0 B/s)",
        ]

    def test_a_bar_on_a_terminal(self, dataset: Path, place: Path) -> None:
        """Even if standard output is a pipe, as in DATA=$(packtrain stage ...)."""
        printed, shown = on_terminal("stage", dataset, "--to", place, "--warm")
        assert printed == f"{entries(place)[0].path}\n"
        assert b"staging: 100%" in shown and b"B/s" in shown and b"warming: 100%" in shown
