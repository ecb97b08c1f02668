"""Transforms keep the contract of `packtrain.testing`, whatever becomes of them: fused, on tensors, or called."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.batching import chw_float, jitter

from packtrain.testing import TransformContract
from packtrain.transforms import (
    CenterCrop,
    ColorJitter,
    FiveCrop,
    Normalize,
    RandAugment,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
    Views,
)

CROP = [RandomResizedCrop((22, 24)), RandomHorizontalFlip()]
RANDOM: dict[str, Any] = {
    "fused": CROP,
    "colours": [*CROP, RandAugment(), ColorJitter(0.4, 0.4, 0.4)],
    "on tensors": [*CROP, ToTensor(), Normalize([0.5], [0.2])],
    "called": jitter,
    "called after a crop": [*CROP, jitter, chw_float],
    "views": Views([CROP, [Resize(30), jitter]]),
}


class TestRandom(TransformContract):
    start_methods = ("fork",)

    @pytest.fixture(params=RANDOM)
    def transform(self, request: pytest.FixtureRequest) -> Any:
        return RANDOM[request.param]


class TestFixed(TransformContract):
    random = False
    start_methods = ("fork",)

    @pytest.fixture(params=["crop", "five crops"])
    def transform(self, request: pytest.FixtureRequest) -> Any:
        return [Resize(40), CenterCrop(32) if request.param == "crop" else FiveCrop(20)]
