"""The ImageNet example trains, evaluates, and after a kill goes on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import imagenet_notes as helper
from helpers.objects.servers import Server
from helpers.streaming import end_fetchers
from helpers.support import encoded, import_torchvision
from imagenet import train
from imagenet.data import classes_of, mixer
from imagenet.options import TrainOptions
from PIL import Image
from torch import nn

from packtrain import open_dataset, pack
from packtrain.errors import UsageError

# Most start a program that imports torch: too slow for every run.
pytestmark = pytest.mark.complete

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples/imagenet/train.py"
README = ROOT / "examples/imagenet/README.md"
IMAGES = 96


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset of pictures, each with a label of its own."""
    folder = tmp_path_factory.mktemp("numbered")
    random = np.random.default_rng(0)
    for number in range(IMAGES):
        pixels = random.integers(0, 256, (6, 7, 3)).repeat(7, 0).repeat(7, 1).astype(np.uint8)
        (folder / f"{number}.jpg").write_bytes(encoded(Image.fromarray(pixels)))
    (folder / "train.txt").write_text("".join(f"{number}.jpg {number}\n" for number in range(IMAGES)))
    return Path(pack(folder / "train.txt", folder / "packed").dataset)


def run(*arguments: object, world: int = 0, notes: Path | None = None, kill_at: int = 0) -> tuple[int, str, str]:
    """Runs the script, with torchrun on `world` processes if that is not 0. Returns status, output and errors."""
    environment = {
        "GLOO_SOCKET_IFNAME": "lo",
        # With more threads than cores, threads wait for each other; and sums do not depend on the number of cores.
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT / "tests"), str(ROOT / "examples"), os.environ.get("PYTHONPATH")])
        ),
        "NOTES": str(notes),
        "KILL_AT": str(kill_at),
    }
    if notes is not None:
        notes.mkdir(exist_ok=True)
    if not world:
        return forked(arguments, environment, helper.main if notes else train.main)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    program = [str(SCRIPT)] if notes is None else ["-m", "helpers.imagenet_notes"]
    command = [*start, *program, *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def forked(arguments: Sequence[object], environment: dict[str, str], main: Callable[[], None]) -> tuple[int, str, str]:
    """Runs a program in a fork of this process, which has imported torch. Returns status, output and errors."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        if not (child := os.fork()):
            status = 1
            try:
                os.environ |= environment
                os.dup2(output.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                sys.stdout, sys.stderr = output, errors
                sys.argv = ["train.py", *map(str, arguments)]
                torch.set_num_threads(1)
                main()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                output.flush()
                errors.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (output, errors):
            file.seek(0)
        return status, output.read(), errors.read()


def small(dataset: Path | str, output: Path, *more: object) -> list[object]:
    """Arguments for a training of seconds."""
    options = ("--size", 32, "--workers", 1, "--warmup-epochs", 1, "--lr", 0.02, "--output", output)
    return [dataset, dataset, *options, *more]


def saved(output: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(output / "checkpoint.pt", weights_only=True)
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


# --- the script ---


def test_it_learns_and_says_how_in_the_style_of_torchvision(colours: Path, tmp_path: Path) -> None:
    more = ("--batch-size", 8, "--epochs", 4, "--ema", 0.9, "--print-every", 8, "--label-smoothing", 0.1, "--profile")
    status, output, errors = run(*small(colours, tmp_path, *more))
    assert status == 0, errors
    assert "Warning" not in errors
    step = (
        r"Epoch: \[(\d)\]  \[ ?(\d+)/20\]  lr: \d\.\d{6}  img/s: [\d.]+  loss: \d\.\d{4}  acc1: [\d.]+  "
        r"acc5: 100\.000  wait: [\d.]+%  max mem: \d+ MiB"
    )
    steps = [tuple(map(int, found)) for found in re.findall(f"^{step}$", output, re.MULTILINE)]
    assert steps == [(epoch, step) for epoch in range(4) for step in (8, 16, 20)]
    trained = re.findall(r"^Epoch: \[(\d)\]  train  img/s: .*  time: [\d.]+ s$", output, re.MULTILINE)
    assert trained == ["0", "1", "2", "3"]
    for name in ("Test:", "Test: EMA"):
        line = rf"^{name}  loss: [\d.]+  acc1: ([\d.]+)  acc5: 100.000  images: 160  time: [\d.]+ s$"
        accuracies = re.findall(line, output, re.MULTILINE)
        assert len(accuracies) == 4
        assert float(accuracies[-1]) > 90, output
    assert (tmp_path / "trace.json").stat().st_size
    assert "convolution" in (tmp_path / "profile.txt").read_text()
    # The options of the checkpoint count, not these or their defaults.
    status, again, errors = run(*small(colours, tmp_path, "--arch", "vit_s_16", "--opt", "adamw", "--evaluate"))
    assert status == 0, errors
    assert again.startswith(f"evaluates {tmp_path / 'checkpoint.pt'}: resnet18, ")
    tested = [re.sub(r"time.*", "", line) for line in output.splitlines() if line.startswith("Test")][-2:]
    assert [re.sub(r"time.*", "", line) for line in again.splitlines() if line.startswith("Test")] == tested


def test_a_training_that_was_killed_ends_in_the_state_of_one_that_was_not(numbered: Path, tmp_path: Path) -> None:
    """In one process on a CPU, bit for bit: weights, average, optimizer and loader."""
    more = ("--batch-size", 16, "--epochs", 2, "--ema", 0.9, "--mixup", 0.2, "--cutmix", 1)
    whole, part = tmp_path / "whole", tmp_path / "part"
    status, _, errors = run(*small(numbered, whole, *more))
    assert status == 0, errors
    status, _, _ = run(
        *small(numbered, part, *more, "--save-every", 3, "--resume"), notes=tmp_path / "notes", kill_at=5
    )
    assert status == -signal.SIGKILL
    at = saved(part)["data"]
    assert (at["epoch"], at["consumed"]) == (0, 3 * 16), "it is in the middle of an epoch"
    assert not same(saved(part)["model"], saved(whole)["model"])
    status, output, errors = run(*small(numbered, part, *more, "--resume"))
    assert status == 0, errors
    assert output.startswith(f"continues from {part / 'checkpoint.pt'}: epoch 0, step 3\n")
    assert same(saved(part), saved(whole))


def test_each_image_is_trained_on_once_although_it_is_killed(numbered: Path, tmp_path: Path) -> None:
    """With torchrun or without; the test after this one continues with fewer processes."""
    output, notes, rest = tmp_path / "output", tmp_path / "notes", tmp_path / "rest"
    more = ("--batch-size", 8, "--epochs", 1, "--warmup-epochs", 0, "--save-every", 2, "--resume", "--amp", "bf16")
    status, _, _ = run(*small(numbered, output, *more), notes=notes, kill_at=6)
    assert status not in (0, 2)
    at = saved(output)["data"]
    assert (at["epoch"], at["consumed"]) == (0, 4 * 8)
    seen = helper.labels(notes, 0, at["consumed"])
    assert len(seen) == at["consumed"]
    status, printed, errors = run(*small(numbered, output, *more), world=2, notes=rest)
    assert status == 0, errors
    assert sorted(seen + helper.labels(rest, 0)) == list(range(IMAGES))
    assert f"images: {IMAGES} " in printed, "processes share the validation images"


@pytest.mark.stress  # as tests/readers/loader/test_object_store.py does with less around it
def test_from_an_object_store_each_image_is_trained_on_once(
    numbered: Path, moto_server: Server, memory_path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Through a cache of this machine, which a training that was killed leaves to the one that continues."""
    url = f"{moto_server.fresh()}/numbered"
    for path in filter(Path.is_file, numbered.rglob("*")):
        moto_server.put(f"{moto_server.key(url)}/{path.relative_to(numbered)}", path.read_bytes())
    output, notes, rest = tmp_path / "output", tmp_path / "notes", tmp_path / "rest"
    more = ("--batch-size", 8, "--epochs", 1, "--warmup-epochs", 0, "--save-every", 2, "--resume")
    stage = ("--stage", memory_path, "--budget", "100MiB")
    request.addfinalizer(lambda: end_fetchers(memory_path))
    with moto_server.in_environment():
        status, _, _ = run(*small(url, output, *more, *stage), world=2, notes=notes, kill_at=4)
        assert status not in (0, 2)
        seen = helper.labels(notes, 0, saved(output)["data"]["consumed"])
        assert len(seen) == 2 * 8 * 2
        status, printed, errors = run(*small(url, output, *more, *stage), notes=rest)
    assert status == 0, errors
    assert sorted(seen + helper.labels(rest, 0)) == list(range(IMAGES))
    assert f"images: {IMAGES} " in printed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--arch", "resnet19"], "--arch resnet19: expected resnet18, resnet50, shufflenet_v2_x0_5, vit_s_16"),
        (["--backend", "ffcv"], "backend='ffcv'"),
        (["--amp", "fp8"], "--amp fp8: expected off, bf16 or fp16"),
        (["--opt", "lion"], "--opt lion: expected sgd or adamw"),
        (["--epochs", "1"], "--warmup-epochs 1: expected at least 0, and fewer than --epochs 1"),
        (["--evaluate"], "there is no checkpoint to evaluate"),
        (["--lr", "1e30"], "try a lower --lr"),
        (["--size", "0"], "--size 0: expected at least 1"),
        (["--momentum", "-1"], "--momentum -1: expected at least 0"),
        (["--workers", "-2"], "--workers -2: expected at least 0, or -1 for all cores"),
        (["--backend", "dali-gpu"], "torch sees no GPU: choose another --backend"),
        (["--decode", "cuda"], "torch sees no GPU: leave it out"),
        (["--budget", "1GiB"], "only the cache of a dataset in an object store has a budget"),
        (["--stage", "/nowhere"], "there is no folder /nowhere: make it"),
        (["--output", "/dev/null"], "/dev/null: cannot be made a folder: File exists. Choose another --output"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: list[str], message: str
) -> None:
    arguments = small(colours, tmp_path, "--batch-size", 40, "--epochs", 2, *wrong)
    monkeypatch.setattr(sys, "argv", ["train.py", *map(str, arguments)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with torch.random.fork_rng(devices=[]), pytest.raises(SystemExit) as ended:
        train.main()
    assert str(ended.value).startswith("error: ") and message in str(ended.value) and "\n" not in str(ended.value)


def test_a_training_continues_with_the_options_that_are_given_now(colours: Path, tmp_path: Path) -> None:
    more = ("--batch-size", 80, "--resume", "--warmup-epochs", 0)
    status, _, errors = run(*small(colours, tmp_path, *more, "--epochs", 1))
    assert status == 0, errors
    status, _, errors = run(*small(colours, tmp_path, *more, "--epochs", 2, "--weight-decay", 0.5, "--momentum", 0.25))
    assert status == 0, errors
    groups = saved(tmp_path)["optimizer"]["param_groups"]
    assert [(group["weight_decay"], group["momentum"]) for group in groups] == [(0.5, 0.25), (0, 0.25)]


# --- mixing ---


@pytest.mark.parametrize("with_torchvision", [False, True])
@pytest.mark.parametrize(("mixup", "cutmix"), [(0.2, 0.0), (0.0, 1.0), (0.2, 1.0)])
def test_images_are_mixed_like_their_labels(
    monkeypatch: pytest.MonkeyPatch, with_torchvision: bool, mixup: float, cutmix: float
) -> None:
    if with_torchvision:
        import_torchvision()
    else:
        monkeypatch.setitem(sys.modules, "torchvision", None)
        monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    mix = mixer(mixup, cutmix, 4)
    assert mix is not None
    # Each image shows its class.
    labels = torch.arange(4)
    images = nn.functional.one_hot(labels, 4).float()[:, :, None, None].expand(4, 4, 16, 16)
    for seed in range(10):
        torch.manual_seed(seed)
        np.random.seed(seed)
        mixed, probabilities = mix(images.clone(), labels)
        assert torch.allclose(mixed.mean((2, 3)), probabilities, atol=1e-5)
        assert torch.allclose(probabilities.sum(1), torch.ones(4))


def test_nothing_is_mixed_unless_asked() -> None:
    assert mixer(0, 0, 4) is None


def test_the_validation_images_have_no_other_classes(colours: Path, numbered: Path) -> None:
    few, many = open_dataset(colours), open_dataset(numbered)
    assert (classes_of(few, few), classes_of(many, few)) == (4, IMAGES)
    with pytest.raises(UsageError, match=f"label {IMAGES - 1} is none of the 4 classes"):
        classes_of(few, many)


# --- the documents ---


def test_the_options_of_the_readme_are_those_of_the_script() -> None:
    known = {f"--{option.name.replace('_', '-')}" for option in dataclasses.fields(TrainOptions)}
    named = set(re.findall(r"--[a-z][a-z-]+", README.read_text()))
    assert {"--arch", "--backend", "--resume"} <= named
    torchrun = {"--standalone", "--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint"}
    assert named - known == {"--help", *torchrun}
    documented = set(re.findall(r"^        (\w+): ", TrainOptions.__doc__ or "", re.MULTILINE))
    assert documented == {option.name for option in dataclasses.fields(TrainOptions)}
