"""timm's AugMix: timm's pixels for the same decisions, and its decisions by chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers.pixels import assert_same, noise
from helpers.timm_augment import ScriptedOperation, only, posterize_without_bits

from packtrain._codec.effects.mixing import Mix, Overlay
from packtrain._codec.geometry import apply
from packtrain._readers.transforms.compose import from_timm
from packtrain._readers.transforms.recognition import recognised
from packtrain.errors import UsageError

STRINGS = ("augmix-m5-w4-d2", "augmix", "augmix-m3-mstd0.5", "augmix-m5-b1", "augmix-m10-w1-d4", "augmix-w5-b1-d1")

pytestmark = pytest.mark.usefixtures(posterize_without_bits.__name__)


def settings_of(timm: Any, string: str) -> Any:
    return timm.data.auto_augment.augment_and_mix_transform(string, {"translate_pct": 0.3, "img_mean": (124, 116, 104)})


class ScriptedNumpy:
    """Stands in for `numpy.random`: gives timm the decisions that a row of our numbers means."""

    def __init__(self, theirs: Any, random: Sequence[float]) -> None:
        self.theirs, self.random = theirs, iter(random)
        self.share = next(self.random)
        exponential = [-math.log1p(-next(self.random)) for _ in range(theirs.width)]
        self.weights = np.array(exponential) / sum(exponential)
        self.longest = theirs.depth if theirs.depth > 0 else 3

    def dirichlet(self, alpha: Sequence[float]) -> Any:
        assert list(alpha) == [1.0] * self.theirs.width
        return self.weights

    def beta(self, a: float, b: float) -> float:
        assert (a, b) == (1.0, 1.0)
        return self.share

    def randint(self, low: int, high: int) -> int:
        assert self.theirs.depth < 1
        self.depth = low + int(next(self.random) * (high - low))
        return self.depth

    def choice(self, operations: Sequence[Any], depth: int, replace: bool) -> list[Any]:
        assert replace
        if self.theirs.depth > 0:
            next(self.random)  # of the length, which does not vary
        chosen = [operations[int(next(self.random) * len(operations))] for _ in range(self.longest)][:depth]
        scripts = [[next(self.random) for _ in range(4)] for _ in range(self.longest)]
        return [self._scripted(*each) for each in zip(chosen, scripts, strict=False)]

    @staticmethod
    def _scripted(operation: Any, numbers: Sequence[float]) -> Any:
        def run(image: Any) -> Any:
            import timm

            with mock.patch.object(timm.data.auto_augment, "random", ScriptedOperation(operation.prob, numbers)):
                return operation(image)

        return run


@pytest.mark.parametrize("string", STRINGS)
def test_pixels_are_timms(timm: Any, string: str) -> None:
    theirs, image = settings_of(timm, string), noise(5, 61, 43)
    ours = only(theirs)
    kinds = set()
    for random in np.random.default_rng(6).random((25, ours.draws)).tolist():
        scripted = ScriptedNumpy(theirs, random)
        with mock.patch.object(np, "random", scripted):
            expected = theirs(image)
        assert not list(scripted.random)
        made = ours.operations(*image.size, random)
        kinds.add(type(made[0]))
        assert_same(apply(image, made), expected)
    assert kinds == {Overlay if "b1" in string else Mix}


def test_other_distributions_stay_foreign(timm: Any) -> None:
    theirs = settings_of(timm, "augmix-a2")
    assert theirs.alpha == 2 and recognised(theirs) is None
    theirs = settings_of(timm, "augmix")
    theirs.ops[0].aug_fn = lambda image, **settings: image
    assert recognised(theirs) is None


def test_a_pipeline_shows_it_as_fused(timm: Any) -> None:
    made = from_timm(timm.data.create_transform(32, is_training=True, auto_augment="augmix-m5-w4-d2"))
    assert not made.foreign
    assert "\n    fused       " in str(made) and "AugMix" in str(made)


def test_no_mask_fits_a_mixture_of_moved_images(timm: Any) -> None:
    ours, mask = only(settings_of(timm, "augmix-m5-w4-d3")), np.zeros((9, 9), np.uint8)
    rows = np.random.default_rng(3).random((20, ours.draws)).tolist()
    refused = 0
    for (mixture,) in (ours.operations(9, 9, row) for row in rows):
        assert isinstance(mixture, Mix)
        if any(operation.moves for chain in mixture.chains for operation in chain):
            refused += 1
            with pytest.raises(UsageError, match="AugMix beside a mask"):
                mixture.on_mask(mask)
        else:
            assert mixture.on_mask(mask) is mask
    assert refused
