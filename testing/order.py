"""Laws of orders: arithmetic from position to row, which neither time nor process nor rank changes."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from packtrain import Loader
from packtrain.orders import Order

KEYS = st.integers(0, 2**64 - 1)
# Each class that inherits a law runs it on its own.
_INHERITED = settings(suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])
_MANY = 40


class OrderContract:
    """Laws of an `Order`.

    A subclass defines `order`, and says what kind of order it is.

    Attributes:
        sizes: Strategy of the number of rows.
        each_row_once: True if an epoch has each row exactly once. Of another order it is only known that there are no
            rows but those of the dataset.
        random: True if each key gives another order.
    """

    sizes: ClassVar[st.SearchStrategy[int]] = st.integers(0, 60)
    each_row_once: ClassVar[bool] = True
    random: ClassVar[bool] = True

    def order(self, rows: int) -> Order:
        """A new order for a dataset of so many rows."""
        raise NotImplementedError(f"{type(self).__name__} has no method `order`, which makes an Order for some rows")

    @_INHERITED
    @given(data=st.data(), key=KEYS)
    def test_an_epoch_has_rows_of_the_dataset_each_as_often_as_promised(self, data: st.DataObject, key: int) -> None:
        rows = data.draw(self.sizes)
        order = self.order(rows)
        found = order.rows(key, 0, len(order))
        assert found.dtype == np.int64 and found.shape == (len(order),), "rows are int64 [stop - start]"
        assert order.dataset_rows in (None, rows), "`dataset_rows` is not the number of rows it was made for"
        if self.each_row_once:
            assert sorted(found.tolist()) == list(range(rows)), "an epoch does not have each row once"
        assert not len(found) or (found.min() >= 0 and found.max() < rows), "there are no such rows in the dataset"

    @_INHERITED
    @given(data=st.data(), key=KEYS)
    def test_a_range_may_be_split_anywhere(self, data: st.DataObject, key: int) -> None:
        order = self.order(data.draw(self.sizes))
        start, middle, stop = sorted(data.draw(st.lists(st.integers(0, len(order)), min_size=3, max_size=3)))
        # The later part first: nothing may depend on earlier calls.
        second, first = order.rows(key, middle, stop), order.rows(key, start, middle)
        whole = order.rows(key, start, stop)
        assert whole.dtype == first.dtype == np.int64
        assert whole.tolist() == first.tolist() + second.tolist(), "a row depends on more than key and position"

    @_INHERITED
    @given(data=st.data(), key=KEYS)
    def test_the_rows_of_a_batch_are_those_at_its_positions(self, data: st.DataObject, key: int) -> None:
        order = self.order(data.draw(self.sizes.filter(bool)))
        if not len(order):
            return
        found = order.rows(key, 0, len(order))
        step, backwards = data.draw(st.integers(1, 5)), np.arange(len(order))[::-1].copy()
        around = (np.arange(min(7, len(order))) + data.draw(st.integers(0, len(order)))) % len(order)
        for positions in (backwards, np.arange(0, len(order), step), around):
            assert order.batch_rows(key, positions).tolist() == found[positions].tolist(), "`batch_rows` != `rows`"

    @_INHERITED
    @given(data=st.data(), key=KEYS, other=KEYS)
    def test_the_key_decides_and_nothing_else_does(self, data: st.DataObject, key: int, other: int) -> None:
        rows = data.draw(self.sizes)
        used, fresh = self.order(rows), self.order(rows)
        used.rows(other, 0, len(used))
        found = used.rows(key, 0, len(used)).tolist()
        assert found == fresh.rows(key, 0, len(fresh)).tolist(), "two orders that are made alike differ"
        assert used.parameters == fresh.parameters, "`parameters` of two orders that are made alike differ"
        assert json.loads(json.dumps(dict(used.parameters))) == dict(used.parameters), "`parameters` are no numbers"
        if not self.random:
            assert found == used.rows(other, 0, len(used)).tolist(), "the key matters: say `random = True`"

    def test_another_key_gives_another_order(self) -> None:
        order = self.order(_MANY)
        epochs = {tuple(order.rows(key, 0, len(order)).tolist()) for key in range(20)}
        assert len(epochs) == (20 if self.random else 1), "different keys: are they all used?"

    @_INHERITED
    @given(data=st.data(), key=KEYS)
    def test_positions_outside_an_epoch_are_an_index_error(self, data: st.DataObject, key: int) -> None:
        order = self.order(data.draw(self.sizes))
        count = len(order)
        for start, stop in ((-1, count), (0, count + 1), (count + 1, count + 1), *([(count, 0)] if count else [])):
            with pytest.raises(IndexError):
                order.rows(key, start, stop)
        assert order.rows(key, count, count).tolist() == []

    @_INHERITED
    @given(
        data=st.data(),
        first=st.tuples(st.integers(1, 4), st.integers(1, 7)),
        starts=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 4)), max_size=3),
    )
    def test_ranks_share_each_position_once_whatever_changes_on_the_way(
        self, data: st.DataObject, first: tuple[int, int], starts: list[tuple[int, int, int]]
    ) -> None:
        rows = data.draw(self.sizes.filter(bool))
        expected = dict(_steps(self._ranks(rows, *first), len(self.order(rows)) + 1)[0])
        assert len(expected) == len(self.order(rows)), "positions are missing from an epoch"
        taken: list[tuple[int, int]] = []
        state, world, batch = None, *first
        for next_world, next_batch, count in [*starts, (1, 1, len(expected) + 1)]:
            loaders = self._ranks(rows, world, batch)
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            found, states = _steps(loaders, count)
            taken += found
            assert all(state == states[0] for state in states), "the ranks have different states"
            state, world, batch = json.loads(json.dumps(states[0])), next_world, next_batch
            if state["epoch"] or state["consumed"] == len(expected):
                break
        assert set(taken) == set(expected.items()), "a resumed epoch has other rows than one that was never stopped"
        # Only what fills up the last step comes twice.
        assert len(taken) - len(expected) < 5, "positions come twice"

    def _ranks(self, rows: int, world: int, batch: int) -> list[Loader]:
        options: dict[str, Any] = {"seed": 3, "num_workers": 0, "fields": ("position", "row"), "world_size": world}
        return [
            Loader(RowNumbers(rows), batch, sampler=self.order(rows), rank=rank, **options) for rank in range(world)
        ]


class RowNumbers(Dataset[tuple[torch.Tensor, int]]):
    """Samples that are their rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(row), row


def _steps(loaders: list[Loader], count: int) -> tuple[list[tuple[int, int]], list[Any]]:
    """Takes steps on all ranks: position and row of each sample, and the states then."""
    found = []
    for ranks in islice(zip(*loaders, strict=True), count):
        for _, _, positions, rows in ranks:
            found += list(zip(positions.tolist(), rows.tolist(), strict=True))
    return found, [loader.state_dict() for loader in loaders]
