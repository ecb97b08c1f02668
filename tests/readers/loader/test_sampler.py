"""Laws of foreign samplers: they yield the same as in torch's DataLoader, and the same again when resumed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from packtrain._readers.loader import sampler as module
from packtrain._readers.loader.sampler import SamplerOrder
from packtrain.errors import UsageError

ROWS = 40
KEY = 12345


class Foreign(Sampler[int]):
    """Draws from all three generators, and has no length."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(20):
            yield random.randrange(ROWS)
            yield int(np.random.randint(ROWS))
            yield int(torch.randint(ROWS, ()))


class OwnGenerator(Sampler[int]):
    """Draws from a generator of its own that cannot be reset."""

    def __init__(self) -> None:
        self.generator = random.Random(0)

    def __iter__(self) -> Iterator[int]:
        yield from (self.generator.randrange(ROWS) for _ in range(ROWS))


class OwnState(OwnGenerator):
    """The same, with a state. The state is the live object, not a copy of it."""

    def __init__(self) -> None:
        self.state = {"draws": [0]}

    def __iter__(self) -> Iterator[int]:
        for _ in range(ROWS):
            self.state["draws"][0] += 1
            yield self.state["draws"][0] * 7 % ROWS if self.state["draws"][0] % 3 else 0

    def state_dict(self) -> dict[str, list[int]]:
        return self.state

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.state = state


class HowFar(Sampler[int]):
    """Its state is how far it has come, and iteration continues there: torchdata's StatefulDistributedSampler."""

    def __init__(self) -> None:
        self.yielded, self.skip = 0, 0

    def __iter__(self) -> Iterator[int]:
        self.yielded, self.skip = self.skip, 0
        for row in torch.randperm(ROWS).tolist()[self.yielded :]:
            self.yielded += 1
            yield row

    def state_dict(self) -> dict[str, int]:
        return {"yielded": self.yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skip = state["yielded"]


class ByEpoch(Sampler[int]):
    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * 3)


def distributed() -> DistributedSampler[Any]:
    return DistributedSampler(range(ROWS), num_replicas=3, rank=1, seed=9)  # type: ignore[arg-type]


RESUMABLE: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(range(ROWS)),
    "with replacement": lambda: RandomSampler(range(ROWS), replacement=True, num_samples=100),
    "weighted": lambda: WeightedRandomSampler([1.0] * ROWS, 50),
    "subset": lambda: SubsetRandomSampler(range(5, 20)),
    "sequential": lambda: SequentialSampler(range(ROWS)),
    "distributed": distributed,
    "list": lambda: [3, 1, 3],
    "range": lambda: range(7),
    "empty": lambda: [],
    "array": lambda: np.arange(9, dtype=np.uint8),
    "tensor": lambda: torch.arange(9),
    "all generators": Foreign,
    "own state": OwnState,
    "how far": HowFar,
    "epoch": ByEpoch,
}


@pytest.fixture(params=RESUMABLE)
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return RESUMABLE[request.param]


def drawn(order: SamplerOrder, key: int = KEY) -> list[int]:
    rows = order.rows(key, 0, len(order))
    assert rows.dtype == np.int64
    return list(rows.tolist())


def begun(sampler: Any, epoch: int = 0, key: int = KEY) -> SamplerOrder:
    order = SamplerOrder(sampler, ROWS)
    order.begin(key, epoch)
    return order


def test_an_epoch_is_resumed_in_a_new_process(make: Callable[[], Any]) -> None:
    torch.manual_seed(1)
    order = SamplerOrder(make(), ROWS)
    for epoch in range(4):
        order.begin(KEY + epoch, epoch)
        # Through JSON, as a user may store it, and both before and after later epochs were drawn.
        state, expected = json.loads(json.dumps(order.state())), drawn(order, KEY + epoch)
        torch.manual_seed(epoch)
        fresh = SamplerOrder(make(), ROWS)
        fresh.resume(KEY + epoch, epoch, state)
        assert drawn(fresh, KEY + epoch) == expected
        assert drawn(order, KEY + epoch) == expected
        assert {name: fresh.state()[name] for name in ("samples", "crc32c")} == {
            "samples": len(expected),
            "crc32c": state["crc32c"],
        }


@pytest.mark.parametrize("name", [name for name in RESUMABLE if name != "how far"])
def test_what_follows_a_resumed_epoch_is_the_same_too(name: str) -> None:
    order, fresh = SamplerOrder(RESUMABLE[name](), ROWS), SamplerOrder(RESUMABLE[name](), ROWS)
    for epoch in range(2):
        order.begin(epoch, epoch)
    fresh.resume(1, 1, order.state())
    for resumed in (order, fresh):
        resumed.begin(2, 2)
    assert drawn(fresh, 2) == drawn(order, 2)
    assert fresh.state() == order.state()


def test_the_rows_are_what_the_sampler_yields_under_torch() -> None:
    sampler = distributed()
    for epoch in (0, 5):
        order = begun(sampler, epoch)
        plain = distributed()
        plain.set_epoch(epoch)
        assert drawn(order) == list(plain)
    assert sorted(drawn(begun(RandomSampler(range(ROWS))))) == list(range(ROWS))
    assert drawn(begun(SequentialSampler(range(ROWS)))) == list(range(ROWS))
    assert drawn(begun(ByEpoch(), 6)) == [6, 6, 6]
    assert drawn(begun([np.int32(4), torch.tensor(2), True])) == [4, 2, 1]


@pytest.mark.parametrize("name", ["random", "with replacement", "weighted", "subset", "all generators"])
def test_other_keys_give_other_rows(name: str) -> None:
    make = RESUMABLE[name]
    rows = {tuple(drawn(begun(make(), key=key), key)) for key in range(20)}
    assert len(rows) == 20


def test_the_length_is_what_was_drawn_and_before_what_the_sampler_says() -> None:
    assert len(SamplerOrder(RandomSampler(range(ROWS)), ROWS)) == ROWS
    assert len(begun(Foreign())) == 60
    with pytest.raises(TypeError, match="Foreign has no length before an epoch is begun"):
        len(SamplerOrder(Foreign(), ROWS))


@pytest.mark.parametrize(
    "sampler",
    [OwnGenerator(), RandomSampler(range(ROWS), generator=torch.Generator().manual_seed(1))],
    ids=["own", "torch's"],
)
def test_a_sampler_that_does_not_draw_the_same_again_is_refused(sampler: Any) -> None:
    order = begun(sampler)
    with pytest.raises(UsageError, match=r"did not draw epoch 3 again.*40 rows then, 40 now.*generator of its own"):
        order.resume(KEY, 3, order.state())


def test_a_state_of_other_rows_is_refused() -> None:
    state = begun([1, 2, 3]).state()
    for rows in ([1, 2], [1, 2, 3, 4], [3, 2, 1]):
        with pytest.raises(UsageError, match=rf"3 rows then, {len(rows)} now"):
            SamplerOrder(rows, ROWS).resume(KEY, 0, state)
    with pytest.raises(UsageError, match="did not draw"):
        SamplerOrder([1, 2, 3], ROWS).resume(KEY, 0, {})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 1, ROWS], f"list yields {ROWS} at position 2, the dataset has rows 0 to {ROWS - 1}"),
        ([-1], "list yields -1 at position 0"),
        ([0, 2**70], f"yields {2**70} at position 1"),
        ([0, 1.0], "yields an object of type float at position 1, where an integer was expected"),
        (["0"], "yields an object of type str at position 0"),
        (
            BatchSampler(range(ROWS), 4, False),
            r"yields an object of type list at position 0.*give the sampler inside it and batch_size",
        ),
    ],
)
def test_what_is_no_row_of_the_dataset_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        begun(rows)


def test_a_sampler_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return (number % ROWS for number in count())

    monkeypatch.setattr(module, "_ENDLESS", 10)
    with pytest.raises(UsageError, match=r"Endless yields more than 4000 rows in an epoch: make it end"):
        begun(Endless())
    assert len(begun([0] * 4000)) == 4000


def test_rows_of_another_epoch_or_outside_it_are_refused() -> None:
    order = begun([1, 2, 3])
    with pytest.raises(UsageError, match="only for the epoch that was begun"):
        order.rows(KEY + 1, 0, 1)
    for start, stop in ((-1, 2), (0, 4), (2, 1)):
        with pytest.raises(IndexError, match=f"positions {start} to {stop} of an order of 3"):
            order.rows(KEY, start, stop)
    with pytest.raises(UsageError, match="only for the epoch"):
        SamplerOrder([1], ROWS).rows(KEY, 0, 0)


def test_a_state_without_a_checksum_is_taken_at_its_length() -> None:
    """As a loader passes on a state from another rank, which had other rows."""
    state = begun([1, 2, 3]).state()
    del state["crc32c"]
    SamplerOrder([4, 5, 6], ROWS).resume(KEY, 0, state)
    with pytest.raises(UsageError, match="3 rows then, 2 now"):
        SamplerOrder([4, 5], ROWS).resume(KEY, 0, state)
