"""Laws of what the simulations of scale count."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scale.eviction import BELADY, LRU, RULES, Places, fetched, fetched_by_policy, windows_of
from packtrain._storage.streams.order import ChunkOrder


def test_a_cache_that_holds_all_is_filled_once() -> None:
    order = ChunkOrder(Places(100, 10).chunk_bounds(), 4, 2)
    (windows,) = windows_of(order, 1, 4)
    assert fetched(windows, 100, 100, RULES[BELADY]) == [100, 0, 0, 0]


def test_every_chunk_is_fetched_once_by_some_node() -> None:
    order = ChunkOrder(Places(400, 10).chunk_bounds(), 8, 2)
    found = windows_of(order, 4, 2)
    used = np.concatenate([np.unique(np.concatenate(windows[0])) for windows in found])
    assert set(used.tolist()) == set(range(400))
    # Those on the border of two nodes.
    assert len(used) <= 400 + 3


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.complete
def test_the_order_meets_its_bounds(share: float) -> None:
    chunks = 500
    order = ChunkOrder(Places(chunks, 10).chunk_bounds(), 4, 2)
    (windows,) = windows_of(order, 1, 6)
    rates = {
        name: np.mean(fetched(windows, chunks, int(share * chunks), rule)[3:]) / chunks for name, rule in RULES.items()
    }
    assert rates[BELADY] <= 1 - share + 0.05
    own = np.mean(fetched_by_policy(order, 1, 0, int(share * chunks), 6)[3:]) / chunks
    assert own <= 1 - share + 0.05
    assert all(rates[BELADY] <= rate for rate in rates.values())
    assert share != 0.5 or rates[BELADY] <= rates[LRU] * 2 / 3


def test_a_cache_too_small_for_two_windows_is_refused() -> None:
    order = ChunkOrder(Places(100, 10).chunk_bounds(), 4, 2)
    (windows,) = windows_of(order, 1, 1)
    with pytest.raises(ValueError, match="cannot hold two windows"):
        fetched(windows, 100, 10, RULES[BELADY])
