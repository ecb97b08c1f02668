"""timm's random erasing: its rectangles for the same decisions, and its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from helpers.fusing import numbers
from helpers.scripted import Scripted
from helpers.timm_augment import only
from hypothesis import given
from hypothesis import strategies as st

from packtrain._readers.transforms.recognition import recognised

MODES = ("const", "rand", "pixel")
PER_RECTANGLE = 23


class ScriptedErasing(Scripted):
    """The random numbers of one image; each rectangle has numbers of its own, of which it may leave some unused."""

    def __init__(self, counts: bool, random: Sequence[float]) -> None:
        first = 1 + counts
        self._rectangles = [random[at : at + PER_RECTANGLE] for at in range(first, len(random), PER_RECTANGLE)]
        super().__init__((), random[1:2] if counts else ())
        self._first = random[0]
        self._attempts: list[float] = []

    def random(self) -> float:
        return self._first

    def uniform(self, low: float, high: float) -> float:
        if not self._attempts:
            current = self._rectangles.pop(0)
            self._attempts = list(current[:20])
            # Rectangles without a place draw none.
            self._places = list(current[20:22])
        return low + (high - low) * self._attempts.pop(0)

    def randint(self, least: int, most: int) -> int:
        if least:
            return super().randint(least, most)
        self._attempts.clear()
        return int(self._places.pop(0) * (most + 1))


@given(
    mode=st.sampled_from(MODES),
    p=st.sampled_from([0.0, 0.3, 1.0]),
    least=st.integers(1, 3),
    more=st.integers(0, 2),
    area=st.sampled_from([(0.02, 1 / 3), (0.5, 3.0), (0.0, 0.001)]),
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 1 << 30),
)
def test_rectangles_are_timms(
    timm: Any,
    mode: str,
    p: float,
    least: int,
    more: int,
    area: tuple[float, float],
    shape: tuple[int, int, int],
    seed: int,
) -> None:
    """What is erased is the same, and with ``const`` every value is."""
    library = timm.data.random_erasing
    theirs = library.RandomErasing(p, *area, mode=mode, min_count=least, max_count=least + more, device="cpu")
    ours = only(theirs)
    random = numbers(seed, ours.draws)
    image = torch.full(shape, 100.0)
    with mock.patch.object(library, "random", ScriptedErasing(more > 0, random)):
        expected = theirs(image.clone())
    found = ours.finish(image.clone(), random)
    assert found.dtype == expected.dtype
    if mode == "const":
        assert torch.equal(found, expected)
    assert torch.equal(found == 100, expected == 100)


@pytest.mark.parametrize("mode", ["rand", "pixel"])
def test_noise_is_another_one_for_each_rectangle_or_each_pixel(timm: Any, mode: str) -> None:
    ours = only(timm.data.random_erasing.RandomErasing(1, mode=mode, max_count=2, device="cpu"))
    colours = []
    for seed in range(30):
        for rectangle, _ in ours.rectangles(32, 24, random := numbers(seed, ours.draws))[-1:]:
            left, top, wide, tall = rectangle
            part = ours.finish(torch.zeros(3, 24, 32), random)[:, top : top + tall, left : left + wide]
            colours += part[:, 0, 0].tolist()
            assert (len(set(part.flatten().tolist())) == 3) == (mode == "rand")
    assert len(set(colours)) > 0.97 * len(colours)


def test_equal_steps_are_equal(timm: Any) -> None:
    kind = timm.data.random_erasing.RandomErasing
    assert only(kind(0.3, mode="pixel")) == only(kind(0.3, mode="pixel")) != only(kind(0.3, mode="rand"))
    assert hash(only(kind(0.3))) == hash(only(kind(0.3)))
    assert recognised(kind(1.5)) is None
