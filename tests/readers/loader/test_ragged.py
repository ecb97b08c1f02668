"""Laws of `Ragged`: it is the list of its arrays, over one piece of memory."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packtrain import Ragged

LENGTHS = st.lists(st.integers(0, 5), max_size=8)


def arrays_of(lengths: list[int], *shape: int) -> list[torch.Tensor]:
    numbers = itertools.count()
    rows = [torch.tensor([next(numbers) for _ in range(length)], dtype=torch.int64) for length in lengths]
    return [row.view(-1, 1).expand(-1, *shape) for row in rows]


def ragged(arrays: list[torch.Tensor], *shape: int) -> Ragged:
    places = [0, *itertools.accumulate(map(len, arrays))]
    values = torch.cat(arrays) if arrays else torch.empty((0, *shape), dtype=torch.int64)
    return Ragged(values, torch.tensor(places))


def assert_same(found: Any, wanted: list[torch.Tensor]) -> None:
    found = list(found)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and torch.equal(one, other)


@given(LENGTHS, st.integers(-12, 12), st.integers(-12, 12))
def test_it_is_the_list_of_its_arrays(lengths: list[int], first: int, last: int) -> None:
    arrays = arrays_of(lengths, 3)
    found = ragged(arrays, 3)
    assert len(found) == len(arrays)
    assert_same(found, arrays)
    assert_same(found[first:last], arrays[first:last])
    assert found[first:last].offsets[0] == 0
    assert_same([found[place] for place in range(-len(arrays), len(arrays))], arrays * 2)
    for place in (len(arrays), -len(arrays) - 1):
        with pytest.raises(IndexError, match=f"sample {place} of a batch of {len(arrays)}"):
            found[place]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
@pytest.mark.complete
def test_as_a_nested_tensor(lengths: list[int]) -> None:
    arrays = arrays_of(lengths, 3)
    nested = ragged(arrays).to_nested()
    assert nested.layout == torch.jagged
    assert_same(nested.unbind(), arrays)


def test_what_it_gives_are_views() -> None:
    found = ragged(arrays_of([2, 3], 2))
    found[1].zero_()
    assert found.values[2:].eq(0).all() and found[0:1].values.data_ptr() == found.values.data_ptr()


def test_both_tensors_move() -> None:
    found = ragged(arrays_of([2, 0], 2)).to("meta", non_blocking=True)
    assert (found.values.device.type, found.offsets.device.type) == ("meta", "meta")


def test_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        calls.append(device)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    found = ragged(arrays_of([2, 0], 2))
    assert_same(found.pin_memory(), list(found))
    assert_same(found.pin_memory("cuda"), list(found))
    assert calls == [None, None, "cuda", "cuda"]


def test_pickling_and_showing() -> None:
    found = ragged(arrays_of([2, 0, 1], 2))
    assert_same(pickle.loads(pickle.dumps(found)), list(found))
    assert repr(found) == "Ragged(3 arrays in torch.int64 [3, 2] on cpu)"


def test_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="in steps of 1 only, not of -1"):
        ragged(arrays_of([1, 2], 2))[::-1]
