"""Laws of the search for images that look alike."""

from __future__ import annotations

import numpy as np
import pytest

from packtrain._extras.report import alike
from packtrain._extras.report.alike import groups_of_alikes, groups_of_equals, ones
from packtrain._extras.report.hashing import SIDE, VIEWS, hashes


def test_ones_are_counted_with_and_without_numpys_help(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 64, 1000, np.uint64)
    expected = [number.bit_count() for number in numbers.tolist()]
    assert ones(numbers).tolist() == expected
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert ones(numbers).tolist() == expected


def test_equals_are_numbered_by_the_first() -> None:
    digests = np.array([[1, 2], [2, 1], [1, 2], [1, 1], [2, 1], [1, 2]], np.uint64)
    assert groups_of_equals(digests).tolist() == [0, 1, 0, 3, 1, 0]


@pytest.mark.parametrize("reach", [0, 1])
def test_all_pairs_within_the_promised_distance_are_found_and_none_beyond_the_last(
    reach: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alike, "_AT_ONCE", 50)
    random = np.random.default_rng(reach)
    hashes = random.integers(0, 1 << 64, 60, np.uint64)
    # Some differ from earlier ones in a few bits.
    for number in range(30, 60):
        changed = int(hashes[number - 30])
        for bit in random.choice(64, random.integers(0, 14), replace=False).tolist():
            changed ^= 1 << bit
        hashes[number] = changed
    found = {
        (one, other)
        for pairs in alike._close(hashes, hashes, reach)
        for one, other in zip(*(side.tolist() for side in pairs), strict=True)
    }
    distances = {
        (one, other): (int(hashes[one]) ^ int(hashes[other])).bit_count() for one in range(60) for other in range(60)
    }
    assert found >= {pair for pair, distance in distances.items() if distance <= 4 * reach + 3}
    assert found <= {pair for pair, distance in distances.items() if distance <= alike.DISTANCE}


def scene(seed: int, size: int = SIDE) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A smooth grey image."""
    coarse = np.random.default_rng(seed).integers(0, 256, (size // 4, size // 4))
    return np.kron(coarse, np.ones((4, 4), int)).astype(np.uint8)


def test_a_chain_of_images_that_look_alike_is_one_group() -> None:
    greys = np.stack([scene(0), scene(1), scene(0) // 2, scene(0)[:, ::-1], scene(2), scene(1) // 3])
    groups, bits = groups_of_alikes(greys, lambda view, views: None)
    assert groups.tolist() == [0, 1, 0, 0, 4, 1]
    assert bits == 7


def test_too_many_that_look_alike_are_compared_less_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(1).integers(0, 40, (30, SIDE, SIDE))
    greys = (scene(0) // 2 + noise).astype(np.uint8)
    fewest, most = (
        max(alike._candidates(hashes(greys, view), hashes(greys), reach) for view in VIEWS) for reach in (0, 1)
    )
    assert fewest < most
    for limit, bits in ((most, 7), (fewest, 3), (100, None)):
        monkeypatch.setattr(alike, "_MOST_CANDIDATES", limit)
        groups, compared = groups_of_alikes(greys, lambda view, views: None)
        assert compared == bits
        assert len(set(groups.tolist())) == (30 if bits is None else 1)


def test_images_of_the_same_pixels_are_one_group_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    greys = np.stack([scene(number % 3) for number in range(30)])
    monkeypatch.setattr(alike, "_MOST_CANDIDATES", 100)
    groups, bits = groups_of_alikes(greys, lambda view, views: None)
    assert groups.tolist() == [0, 1, 2] * 10
    assert bits == 7


def test_no_images_are_no_group() -> None:
    groups, _ = groups_of_alikes(np.zeros((0, SIDE, SIDE), np.uint8), lambda view, views: None)
    assert groups.tolist() == []
