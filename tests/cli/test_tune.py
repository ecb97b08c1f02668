"""Laws of `packtrain tune`: what it prints, what it refuses, and that no process survives it."""

from __future__ import annotations

import html
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.processes import children
from helpers.support import packed, soon

from packtrain import TuneOptions
from packtrain._extras import tune
from packtrain._extras.tune import Setting, Trial

from .conftest import Outcome, Run


class FakeBench:
    """A simulated host that measures instantly: 500 images/s for each worker, with two cores."""

    stop_after = 10**9
    disk_share = 0.0

    def __init__(self, path: Path, options: TuneOptions) -> None:
        self.options, self.left = options, self.stop_after

    def trial(self, setting: Setting, seconds: float) -> Trial:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        made = self.options.batch_size / (500 * min(max(0.5, setting.num_workers), 2))
        every = max(made, self.options.consumer_ms / 1000)
        wait_share = 1 - self.options.consumer_ms / 1000 / every
        return Trial(setting, self.options.batch_size / every, wait_share, 1 << 20, self.disk_share, 0.1)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeBench]:
    """Replaces the host by a `FakeBench` of this test's own, whose attributes it may set."""

    class Fake(FakeBench):
        pass

    monkeypatch.setattr(tune, "Bench", Fake)
    monkeypatch.setattr(tune, "available_cores", lambda: 2)
    monkeypatch.setattr(tune, "workers_of", lambda workers: 2)
    # Each look at the time is a second later.
    ticks = itertools.count()
    monkeypatch.setattr(tune, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    return Fake


@pytest.fixture(scope="module")
def folder(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("tune") / "packed", "tar")


def table_of(outcome: Outcome) -> list[list[str]]:
    return [line.split() for line in outcome.out.split("\n\n")[1].splitlines()]


class TestOutput:
    def test_the_best_and_the_default_are_marked(self, run: Run, fake: type[FakeBench]) -> None:
        outcome = run("tune", "/data/train")
        assert (outcome.code, outcome.err) == (0, "")
        head, table, code, findings = outcome.out.split("\n\n")
        assert head.startswith("/data/train: rrc224, batches of 64; ") and head.endswith(" measurements")
        best = [line for line in table.splitlines() if line.startswith("*")]
        assert len(best) == 1 and best[0].endswith("  best, and the default")
        assert best[0].split()[:4] == ["*", "2", "2", "1,000"]
        assert max(map(len, table.splitlines())) < 110
        assert code.splitlines() == [
            "from packtrain import Loader, open_dataset",
            "from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop",
            "loader = Loader(open_dataset('/data/train', transform=[RandomResizedCrop(224), RandomHorizontalFlip()]), "
            "batch_size=64, shuffle=True, num_workers=2, prefetch_factor=2)",
        ]
        assert "leave them" in findings

    def test_with_a_step_it_shows_how_long_each_setting_waits(self, run: Run, fake: type[FakeBench]) -> None:
        outcome = run("tune", "/data/train", "--consumer-ms", "130")
        assert table_of(outcome)[0][-1] == "waiting"
        best, default = (next(line for line in table_of(outcome) if line[-1] == word) for word in ("best", "default"))
        assert best[:3] == ["*", "1", "2"] and best[-2] == "0.0%"
        assert default[:2] == ["2", "2"]
        assert "a step of 130 ms for 64 images waits 0.0% of the time: 1 worker will do" in outcome.out

    def test_json(self, run: Run, fake: type[FakeBench]) -> None:
        found = run("tune", "/data/train", "--json", "--batch-size", "16", "--transform", "none").json
        assert found["options"]["batch_size"] == 16
        assert found["best"]["setting"] == found["default"]["setting"] == [2, 2]
        assert (
            found["line"]
            == "Loader(open_dataset('/data/train'), batch_size=16, shuffle=True, num_workers=2, prefetch_factor=2)"
        )
        assert len(found["trials"]) == sum(len(each["rates"]) for each in found["results"])


class TestInterrupted:
    def test_what_was_found_so_far_is_printed(self, run: Run, fake: type[FakeBench]) -> None:
        fake.stop_after = 3
        outcome = run("tune", "/data/train")
        assert outcome.code == 130
        assert outcome.err == "stopped; what was found so far:\n"
        assert len(table_of(outcome)) == 3 and "loader = Loader(" in outcome.out

    @pytest.mark.parametrize(("after", "words"), [(0, []), (1, []), (1, ["--consumer-ms", "10"])])
    def test_nothing_is_printed_if_nothing_was_found(
        self, run: Run, fake: type[FakeBench], after: int, words: list[str]
    ) -> None:
        fake.stop_after = after
        outcome = run("tune", "/data/train", *words)
        assert (outcome.code, outcome.out, outcome.err) == (130, "", "stopped before anything was found\n")

    @pytest.mark.complete
    def test_no_process_is_left(self, folder: Path) -> None:
        """Ctrl-C in a terminal reaches all processes of the group."""
        command = [sys.executable, "-m", "packtrain", "tune", str(folder), "--transform", "rrc20"]
        with (
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            ) as process,
            soon(60),
        ):
            while not children(process.pid):
                assert process.poll() is None
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate()
        assert process.returncode == 130
        assert err.startswith("stopped") and err.count("\n") == 1
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)


@pytest.mark.parametrize("words", [[], ["--consumer-ms", "100"], ["--max-workers", "0"]])
@pytest.mark.parametrize("stop_after", [1, 4, 10**9])
def test_a_page(run: Run, fake: type[FakeBench], tmp_path: Path, words: list[str], stop_after: int) -> None:
    fake.stop_after = stop_after
    page = tmp_path / "tune.html"
    outcome = run("tune", "/data/train", "--out", page, *words)
    if "before" in outcome.err:
        assert not page.exists()
        return
    (line,) = (line.removeprefix("loader = ") for line in outcome.out.splitlines() if line.startswith("loader = "))
    assert page.read_text().count('class="best"') == 1 and html.escape(line) in page.read_text()
    assert outcome.out.endswith(f"\npage: {page}\n")


def test_a_transform_of_the_user(
    run: Run, fake: type[FakeBench], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is imported from the current folder."""
    (tmp_path / "my_transforms_of_tune.py").write_text("def train(image):\n    return image.resize((8, 8))\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    out = run("tune", "/data/train", "--transform", "my_transforms_of_tune:train").out
    assert "from my_transforms_of_tune import train\n" in out
    assert "transform=train)" in out
