"""The mixup example mixes as its README says, and a network learns from it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mixup.train import CutMix, Mixup, TrainOptions, count_classes, train

from packtrain import open_dataset

# Each starts a program that imports torch: too slow for every run.
pytestmark = pytest.mark.complete

SCRIPT = Path(__file__).parents[2] / "examples/mixup/train.py"
LABELS = torch.tensor([2, 0, 1, 3, 3])
IMAGES = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 3, 12, 17).contiguous(memory_format=torch.channels_last)
"""Each image is filled with its own number."""


@given(st.integers(0, 1000))
def test_mixup_blends_images_like_labels(seed: int) -> None:
    np.random.seed(seed)
    images, probabilities = Mixup(4)(IMAGES, LABELS)
    np.random.seed(seed)
    share = np.random.beta(0.2, 0.2)
    for number in range(5):
        other = 4 - number
        wanted = share * np.eye(4)[LABELS[number]] + (1 - share) * np.eye(4)[LABELS[other]]
        assert np.allclose(probabilities[number], wanted, atol=1e-6)
        assert np.allclose(images[number], share * number + (1 - share) * other, atol=1e-6)
    assert images.is_contiguous(memory_format=torch.channels_last)


@given(st.integers(0, 1000))
def test_cutmix_weighs_labels_by_the_pixels_of_each_image(seed: int) -> None:
    np.random.seed(seed)
    images, probabilities = CutMix(4)(IMAGES, LABELS)
    for number in range(5):
        other = 4 - number
        assert set(images[number].flatten().tolist()) <= {number, other}
        share = float((images[number] == number).double().mean())
        wanted = share * np.eye(4)[LABELS[number]] + (1 - share) * np.eye(4)[LABELS[other]]
        assert np.allclose(probabilities[number], wanted, atol=1e-6)
        rows, columns = np.nonzero((images[number, 0] != number).numpy())
        if len(rows):
            assert len(rows) == (np.ptp(rows) + 1) * (np.ptp(columns) + 1), "it is one box"
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert bool((IMAGES[1] == 1).all()), "the argument is not changed"


def test_the_share_of_cutmix_is_spread_evenly() -> None:
    """With alpha=1, 1 - area is uniform before boxes are clipped at the border, which makes them smaller."""
    np.random.seed(0)
    images = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 32, 32)
    shares = [float(CutMix(2)(images, torch.tensor([0, 1]))[1][0, 0]) for _ in range(400)]
    assert 0.55 < float(np.mean(shares)) < 0.75
    assert min(shares) < 0.2 and max(shares) > 0.98


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_a_network_learns_the_same_from_mixed_batches_with_any_number_of_workers(colours: Path, mix: str) -> None:
    dataset, options = open_dataset(colours), TrainOptions(mix, epochs=6, batch_size=16, workers=0)
    assert count_classes(dataset) == 4
    with torch.random.fork_rng(devices=[]):
        losses = train(dataset, 4, options)
        assert losses[-1] < 0.8 * losses[0]
        assert train(dataset, 4, replace(options, workers=2)) == losses


def test_the_script_runs(colours: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(colours), "--mix", "cutmix", "--epochs", "2", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["epoch 1", "epoch 2"]
    done = subprocess.run([sys.executable, SCRIPT, "nowhere"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: ")
