"""Pipelines of `timm.data.create_transform`: taken apart as a whole, with timm's tensors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fusing import decoded, pack_sources, sources

from packtrain import open_dataset
from packtrain._core.options import StoreOptions
from packtrain._readers.transforms.base import Transform
from packtrain._readers.transforms.recognition import recognised
from packtrain.transforms import Compose, from_timm

TRAINING: list[dict[str, Any]] = [
    {},
    {"color_jitter": (0.4, 0.4, 0.4, 0.1), "interpolation": "random", "vflip": 0.3},
    {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel", "re_count": 3},
    {"auto_augment": "rand-m9-n3-tweights", "interpolation": "bicubic"},
    {"auto_augment": "original-mstd0.5", "re_prob": 0.5, "re_mode": "rand"},
    {"auto_augment": "v0"},
    {"auto_augment": "3a", "color_jitter": 0.3},
    {"train_crop_mode": "rkrr"},
    {"train_crop_mode": "rkrc", "input_size": (3, 24, 32)},
    {"color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5},
    {"use_prefetcher": True},
    {"no_aug": True},
]
EVALUATION: list[dict[str, Any]] = [
    {},
    {"interpolation": "bicubic", "crop_pct": 0.95},
    {"crop_mode": "squash", "crop_pct": 0.9},
    {"crop_mode": "border"},
    {"input_size": (3, 24, 40)},
    {"crop_border_pixels": 3},
    {"normalize": False},
    {"use_prefetcher": True},
]
# Steps on tensors, or what makes tensors.
LAST = ("MaybePILToTensor", "MaybeToTensor", "Normalize", "RandomErasing")


def made_by(timm: Any, settings: dict[str, Any], *, training: bool) -> Any:
    return timm.data.create_transform(**{"input_size": 32, "is_training": training, **settings})


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A dataset, and the files that it was made of."""
    files = {
        name: data for name, data in sources() if name in ("4:2:0.jpg", "progressive.jpg", "long.jpg", "palette.png")
    }
    return pack_sources(tmp_path_factory.mktemp("images"), StoreOptions(), files), files


@pytest.mark.parametrize("settings", TRAINING, ids=str)
def test_training_pipelines_run(timm: Any, photographs: tuple[Path, Any], settings: dict[str, Any]) -> None:
    """As timm gives them: the same shape and type, and every image of its own."""
    made = made_by(timm, settings, training=True)
    for step in Compose([made]).given:
        if type(step).__name__ not in LAST:
            known = recognised(step)
            assert known is not None and all(isinstance(part, Transform) for part in known), step
    assert len(from_timm(made).fused) >= 2
    again = pickle.loads(pickle.dumps(from_timm(made)))
    assert repr(again.fused) == repr(from_timm(made).fused)
    folder, files = photographs
    example = made(decoded(next(iter(files.values())), "RGB"))
    opened = open_dataset(folder, made)
    for row in range(len(opened)):
        image = opened[row][0]
        assert (image.shape, image.dtype) == (example.shape, example.dtype)


@pytest.mark.parametrize("settings", EVALUATION, ids=str)
def test_evaluation_gives_timms_tensors(timm: Any, photographs: tuple[Path, Any], settings: dict[str, Any]) -> None:
    made = made_by(timm, settings, training=False)
    folder, files = photographs
    opened = open_dataset(folder, from_timm(made))
    for row, data in enumerate(files.values()):
        expected = made(decoded(data, "RGB"))
        assert torch.equal(opened[row][0], expected), list(files)[row]
