"""The parts of the ImageNet example: checkpoints, networks, learning rate, optimizer, average and metrics."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from helpers.support import import_torchvision
from hypothesis import given
from hypothesis import strategies as st
from imagenet import checkpoint
from imagenet.metrics import Sums, means
from imagenet.models import ARCHS, ResNet18, network
from imagenet.optimization import Average, learning_rate, optimizer_of
from imagenet.options import TrainOptions
from imagenet.train import evaluation, parse_options
from torch import nn

from packtrain.errors import MissingDependency, UsageError

# They import torch, and some torchvision: too slow for every run.
pytestmark = pytest.mark.complete


# --- checkpoints ---

KIND = checkpoint.Kind("resnet18", "sgd", 0.9, 10)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    path, parts = tmp_path / "checkpoint.pt", {"model": nn.Linear(2, 2)}
    checkpoint.save(path, KIND, parts)
    kind, states = checkpoint.read(path)
    assert kind == KIND
    checkpoint.restore(path, states, parts)
    for others in ({"model": nn.Linear(3, 2)}, {**parts, "ema": nn.Linear(2, 2)}):
        with pytest.raises(UsageError, match="does not fit"):
            checkpoint.restore(path, states, others)
    torch.save({"model": parts["model"].state_dict()}, tmp_path / "other.pt")
    with pytest.raises(UsageError, match="a checkpoint of something else"):
        checkpoint.read(tmp_path / "other.pt")
    for damaged in (path.read_bytes()[:-100], b"junk\n", b"\0" * 64, b"]", b""):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"cannot be read as a checkpoint: \w"):
            checkpoint.read(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("arch", "resnet50", "with --arch resnet18, not resnet50: continue with --arch resnet18$"),
        ("opt", "adamw", "with --opt sgd, not adamw: continue with --opt sgd$"),
        ("ema", 0.0, r"with --ema 0\.9, not 0\.0: continue with --ema 0\.9$"),
        ("classes", 8, "with 10 classes, not 8"),
    ],
)
def test_a_training_of_another_kind_is_told_the_two_values(name: str, value: object, message: str) -> None:
    given: Any = {name: value}
    with pytest.raises(UsageError, match=message):
        KIND.check(Path("checkpoint.pt"), replace(KIND, **given))


def test_a_network_of_fewer_classes_than_the_images_have_is_not_evaluated(tmp_path: Path) -> None:
    options, nothing = TrainOptions("train", "val", output=str(tmp_path)), cast(Any, None)
    checkpoint.save(options.checkpoint, KIND, {"model": nn.Linear(2, 2)})
    with pytest.raises(UsageError, match="was written with 10 classes, but the images have 11"):
        evaluation(options, nothing, nothing, 11)


def test_what_the_average_keeps_may_change() -> None:
    KIND.check(Path("checkpoint.pt"), replace(KIND, ema=0.5))


def test_a_checkpoint_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, parts = tmp_path / "checkpoint.pt", {"model": nn.Linear(2, 2)}
    checkpoint.save(path, KIND, parts)
    before = path.read_bytes()

    def fail(state: object, file: Any) -> None:
        file.write(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(checkpoint.Unwritten, match=r"checkpoint.new cannot be written: No space .* with --resume"):
        checkpoint.save(path, KIND, parts)
    assert path.read_bytes() == before


# --- options ---


def test_help_shows_the_defaults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    with pytest.raises(SystemExit):
        parse_options()
    shown = capsys.readouterr().out
    for option, default in (("ARCH", "resnet18"), ("BATCH_SIZE", "256"), ("LR", "0.1"), ("WORKERS", "-1")):
        assert re.search(rf" {option}\s+\[default: {default}\]", shown), option


@pytest.mark.parametrize("datasets", [("s3://bucket/train", "packed/val"), ("packed/train", "gs://bucket/val")])
def test_an_object_store_takes_a_stage(datasets: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=r"(s3|gs)://bucket/\w+ is in an object store.*--stage.*--budget 200GiB"):
        TrainOptions(*datasets).check()
    TrainOptions(*datasets, stage="/nvme").check()


# --- networks ---


@pytest.mark.parametrize(
    ("arch", "parameters"),
    list(zip(ARCHS, (11_689_512, 25_557_032, 1_366_792, 22_050_664), strict=True)),
)
def test_networks_have_the_sizes_of_their_papers(arch: str, parameters: int) -> None:
    import_torchvision()
    model = network(arch, 1000, 224)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert network(arch, 7, 64)(torch.zeros(2, 3, 64, 64)).shape == (2, 7)


def test_our_own_resnet_18_is_torchvisions() -> None:
    models = import_torchvision().models
    torch.manual_seed(0)
    own, theirs = ResNet18(5).eval(), models.resnet18(num_classes=5).eval()
    assert {name: value.shape for name, value in own.state_dict().items()} == {
        name: value.shape for name, value in theirs.state_dict().items()
    }
    theirs.load_state_dict(own.state_dict())
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(own(images), theirs(images))


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("2.9.0", "pip install torchvision torch==2.9.0"),
        ("2.9.0+cpu", "pip install torchvision torch==2.9.0+cpu --index-url https://download.pytorch.org/whl/cpu"),
        (
            "2.9.0+cu126",
            "pip install torchvision torch==2.9.0+cu126 --index-url https://download.pytorch.org/whl/cu126",
        ),
    ],
)
def test_without_torchvision_there_is_only_a_resnet_18(
    monkeypatch: pytest.MonkeyPatch, version: str, command: str
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert isinstance(network("resnet18", 10, 224), ResNet18)
    for arch in ARCHS[1:]:
        with pytest.raises(MissingDependency, match=f"--arch {arch} needs torchvision") as caught:
            network(arch, 10, 224)
        # pip keeps the torch that is there, and takes the torchvision that fits it.
        assert f"`{command}`" in str(caught.value)


# --- learning rate, optimizer, average ---


@given(st.floats(0, 0.9), st.floats(1e-6, 10))
def test_the_learning_rate_rises_and_falls(warm_up: float, highest: float) -> None:
    rates = [learning_rate(highest, step / 500, warm_up) for step in range(501)]
    peak = math.ceil(warm_up * 500)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert max(rates) <= highest * (1 + 1e-9) and rates[-1] == pytest.approx(0, abs=highest * 1e-9)
    assert learning_rate(highest, (1 + warm_up) / 2, warm_up) == pytest.approx(highest / 2)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_neither_biases_nor_normalisation_decay(name: str) -> None:
    model = ResNet18(3)
    groups = optimizer_of(model, name, 0.1, 0.9, 0.05).param_groups
    decays = {id(weights): group["weight_decay"] for group in groups for weights in group["params"]}
    for key, weights in model.named_parameters():
        assert decays.pop(id(weights)) == (0.05 if weights.ndim > 1 else 0), key
    assert not decays


def test_the_average_forgets_its_beginning_and_continues_from_a_state() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average, wanted = Average(model, 0.5), {key: value.clone() for key, value in model.state_dict().items()}
    again = None
    for update in range(1, 20):
        for number, value in enumerate(model.state_dict().values()):
            value.fill_(update + number)
        average.update(model)
        decay = min(0.5, (1 + update) / (10 + update))
        for key, value in model.state_dict().items():
            wanted[key] = decay * wanted[key] + (1 - decay) * value if value.is_floating_point() else value
        if update == 10:
            again = Average(model, 0.5)
            again.load_state_dict(average.state_dict())
        elif again is not None:
            again.update(model)
    assert again is not None and again.updates == average.updates
    for mine, theirs in zip(again.model.state_dict().values(), average.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    for key, value in average.model.state_dict().items():
        assert torch.allclose(value.double(), wanted[key].double(), rtol=1e-5), key
    assert not average.model.training


# --- metrics ---


@given(st.integers(0, 10_000), st.integers(2, 9), st.booleans())
def test_metrics_are_those_of_all_samples_together(seed: int, classes: int, soft: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    sums = Sums(torch.device("cpu"))
    first = five = 0
    sizes = (3, 1, 8)
    for number, size in enumerate(sizes):
        logits = torch.randn(size, classes, generator=generator)
        labels = torch.randint(classes, (size,), generator=generator)
        target = nn.functional.one_hot(labels, classes).float() * 0.9 if soft else labels
        sums.add(torch.tensor(float(number)), logits, target)
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
            better = sum(value > row[label] for value in row)
            first, five = first + (better < 1), five + (better < 5)
    found = means(sums.take())
    assert found.samples == 12
    assert found.loss == pytest.approx((0 * 3 + 1 * 1 + 2 * 8) / 12)
    assert found.top1 == pytest.approx(100 * first / 12) and found.top5 == pytest.approx(100 * five / 12)
    assert means(sums.take()).samples == 0, "they start again from zero"
