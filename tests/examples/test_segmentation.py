"""The segmentation example does what its README says, and the network learns."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from segmentation.shapes import CLASSES, HEIGHT, WIDTH, picture
from segmentation.train import IGNORED, SIZE, TrainOptions, confusion, mean_overlap, network, opened, train

FOLDER = Path(__file__).parents[2] / "examples/segmentation"


def test_a_mask_says_where_the_shapes_are() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        image, mask = (np.asarray(part) for part in picture(random))
        assert image.shape == (HEIGHT, WIDTH, 3) and mask.shape == (HEIGHT, WIDTH)
        assert mask.max() < len(CLASSES)
        # Shapes are brighter than any background.
        assert image[mask > 0].max(1).min() >= 120 > image[mask == 0].mean()


def test_scores_are_as_large_as_the_image() -> None:
    assert network(4)(torch.zeros(2, 3, SIZE, SIZE)).shape == (2, 4, SIZE, SIZE)


def test_pixels_of_no_class_are_not_counted() -> None:
    truth = torch.tensor([[0, 1, 1], [IGNORED, 2, 2]])
    found = torch.tensor([[0, 1, 0], [1, 2, 2]])
    counts = confusion(found, truth, 4)
    assert counts.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]]
    assert mean_overlap(counts) == pytest.approx((1 / 2 + 1 / 2 + 1) / 3)


@pytest.mark.complete
def test_the_commands_of_the_readme_train_a_network(tmp_path: Path) -> None:
    (commands,) = re.findall(r"^```sh\n(python .*?)^```", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    for command in commands.splitlines()[:2]:
        program, *words = shlex.split(command)
        script = [str(FOLDER.parents[1] / words[0]), "--count=160"] if program == "python" else ["-m", "packtrain"]
        rest = words[1:] if program == "python" else words
        done = subprocess.run([sys.executable, *script, *rest], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    dataset = opened(str(tmp_path / "out"))
    first, *_, last = train(dataset, TrainOptions(epochs=4, workers=1))
    assert last.loss < first.loss
    assert last.overlap > first.overlap
    command = [sys.executable, str(FOLDER / "train.py"), str(tmp_path / "out"), "--epochs=1", "--workers=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"epoch 1: loss \d\.\d{3}, mean IoU 0\.\d\d\n", done.stdout)
