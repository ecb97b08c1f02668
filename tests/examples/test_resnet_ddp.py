"""The ResNet example trains on each image once per epoch, however often it is stopped, on any number of processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import training
from helpers.processes import children
from helpers.ranks import in_ranks
from helpers.support import with_classes
from resnet_ddp.train import Run, TrainOptions, learning_rate, require_same_classes, resnet

from packtrain import Loader, open_dataset
from packtrain.errors import UsageError

# Each starts a program that imports torch: too slow for every run.
pytestmark = pytest.mark.complete

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples/resnet_ddp/train.py"
IMAGES, BATCH = 160, 12
STEPS = 14
"""Steps in an epoch; the last one has 4 images."""


@pytest.fixture
def options(colours: Path, tmp_path: Path) -> TrainOptions:
    checkpoint = str(tmp_path / "checkpoint")
    return TrainOptions(
        str(colours), checkpoint=checkpoint, epochs=2, batch_size=BATCH, size=32, lr=0.05, width=4, stages=2
    )


def trained(world: int, options: TrainOptions, notes: Path) -> dict[str, Any]:
    """Trains, or resumes. Returns the checkpoint."""
    notes.mkdir(exist_ok=True)
    group = notes.with_name(f"{notes.name} {time.monotonic_ns()}")
    in_ranks(world, training.train, options, notes, group=group)
    return saved(options)


def saved(options: TrainOptions) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(Path(options.checkpoint) / "last.pt", weights_only=True)
    return state


def same(one: Any, other: Any) -> bool:
    """True if two checkpoints, or parts of them, are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# --- stopped and continued ---


@pytest.mark.parametrize(("before", "after", "stop"), [(2, 1, 5), (1, 2, STEPS), (2, 1, STEPS + 9)])
def test_every_position_is_trained_on_once(
    options: TrainOptions, tmp_path: Path, before: int, after: int, stop: int
) -> None:
    first = trained(before, replace(options, max_steps=stop), tmp_path / "notes")
    assert first["step"] == stop
    last = trained(after, options, tmp_path / "notes")
    assert last["step"] == 2 * STEPS
    for epoch in range(2):
        assert training.positions(tmp_path / "notes", epoch) == list(range(IMAGES))
    assert training.positions(tmp_path / "notes", 2) == []


def test_with_as_many_processes_the_weights_are_those_of_an_uninterrupted_run(
    options: TrainOptions, tmp_path: Path
) -> None:
    whole = trained(2, replace(options, checkpoint=str(tmp_path / "whole")), tmp_path / "notes")
    for stop in (5, STEPS):
        part = trained(2, replace(options, max_steps=stop), tmp_path / "more notes")
        assert not same(part["model"], whole["model"])
    assert same(trained(2, options, tmp_path / "more notes"), whole)
    for epoch in range(2):
        assert training.positions(tmp_path / "more notes", epoch) == list(range(IMAGES))


def test_a_finished_run_has_nothing_left_to_do(options: TrainOptions, tmp_path: Path) -> None:
    first = trained(1, replace(options, epochs=1), tmp_path / "notes")
    assert same(trained(2, replace(options, epochs=1), tmp_path / "more notes"), first)
    assert training.positions(tmp_path / "more notes", 0) == []


def test_torchrun_killed_and_continued(options: TrainOptions, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    endless = torchrun(
        2, "-m", "helpers.training", *arguments(replace(options, epochs=10_000, save_every=3)), notes=notes
    )
    try:
        deadline = time.monotonic() + 60
        while not (Path(options.checkpoint) / "last.pt").exists() or len(training.positions(notes, 1)) < IMAGES // 2:
            assert endless.poll() is None, endless.communicate()
            assert time.monotonic() < deadline, "it does not train"
            time.sleep(0.02)
    finally:
        for process in family(endless.pid):
            os.kill(process, signal.SIGKILL)
        endless.communicate()
    at = saved(options)["loader"]
    epoch, consumed = at["epoch"], at["consumed"]
    before = training.positions(notes, epoch, consumed)
    assert len(before) == consumed
    for world in (1, 2):
        again = replace(options, epochs=epoch + 1, checkpoint=str(tmp_path / f"copy for {world}"))
        shutil.copytree(options.checkpoint, again.checkpoint)
        trained(world, again, tmp_path / f"notes of {world}")
        after = training.positions(tmp_path / f"notes of {world}", epoch)
        assert sorted(before + after) == list(range(IMAGES))


def family(process: int) -> list[int]:
    """A process and all its descendants."""
    return [process, *(one for child in children(process) for one in family(child))]


def test_a_checkpoint_is_replaced_whole_or_not_at_all(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(2, 2)
    run = Run(model, torch.optim.SGD(model.parameters(), 0.1), Loader(open_dataset(colours), 8, num_workers=0), step=1)
    path = tmp_path / "last.pt"
    run.save(path)
    with path.open("rb") as old:
        run.step = 2
        run.save(path)
        assert torch.load(old)["step"] == 1, "the old file was not written to"
    before = path.read_bytes()

    def fail(state: object, file: Any) -> None:
        file.write(b"half of it")
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", fail)
        with pytest.raises(OSError, match="No space"):
            run.save(path)
    assert path.read_bytes() == before


# --- the script ---


def torchrun(world: int, *command: object, notes: Path | None = None) -> subprocess.Popen[str]:
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        # With more threads than cores, threads wait for each other.
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT / "tests"), str(ROOT / "examples"), os.environ.get("PYTHONPATH")])
        ),
        "NOTES": str(notes),
    }
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world))
    return subprocess.Popen(
        [*start, *map(str, command)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def arguments(options: TrainOptions) -> list[str]:
    named = [f"--{name.replace('_', '-')}={value}" for name, value in vars(options).items() if name != "dataset"]
    return [options.dataset, *named]


def test_torchrun_trains_it_on_two_processes(options: TrainOptions, tmp_path: Path) -> None:
    options = replace(options, epochs=6, validation=options.dataset)
    process = torchrun(2, SCRIPT, *arguments(options))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Warning" not in errors
    lines = output.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"epoch {number}" for number in range(1, 7)]
    assert float(lines[-1].split()[-1].rstrip("%")) > 90, lines
    assert saved(options).keys() == {"step", "model", "optimizer", "loader"}


def test_without_torchrun_it_says_how_to_start_it(options: TrainOptions) -> None:
    done = subprocess.run([sys.executable, SCRIPT, options.dataset], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: start this with torchrun: torchrun --standalone --nproc-per-node 2 ")


def test_a_batch_that_cannot_be_shared_evenly_is_refused(options: TrainOptions, tmp_path: Path) -> None:
    assert (
        in_ranks(2, refusal, replace(options, batch_size=7), group=tmp_path / "group")
        == ["batch size 7 is not a multiple of 2 processes"] * 2
    )


def test_validation_images_of_other_classes_are_refused(options: TrainOptions, tmp_path: Path) -> None:
    train, other, fewer = (with_classes(tmp_path / names, names) for names in ("abc", "bc", "ab"))
    options = replace(options, dataset=str(train), validation=str(other))
    (found,) = in_ranks(1, refusal, options, group=tmp_path / "group")
    assert found == f"label 0 is 'a' in {train}, but 'b' in {other}: pack both with the same --classes"
    for known in (fewer, Path(options.dataset), with_classes(tmp_path / "bare", "ab", named=False)):
        require_same_classes(open_dataset(train), open_dataset(known))


def refusal(rank: int, world: int, options: TrainOptions) -> str:
    with pytest.raises(UsageError) as refused:
        training.train(rank, world, options, Path())
    return str(refused.value)


# --- the network and its learning rate ---


def test_the_network_is_a_resnet_18_unless_asked_otherwise() -> None:
    assert sum(parameter.numel() for parameter in resnet(1000).parameters()) == 11_689_512
    assert resnet(5, width=4, stages=3)(torch.zeros(2, 3, 48, 64)).shape == (2, 5)


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(0.1, step / 1000) for step in range(1, 1001)]
    highest = rates.index(max(rates))
    assert 40 <= highest <= 50 and 0.099 < rates[highest] <= 0.1
    assert rates[: highest + 1] == sorted(rates[: highest + 1])
    assert rates[highest:] == sorted(rates[highest:], reverse=True)
    assert rates[0] > 0 and rates[-1] == pytest.approx(0)
