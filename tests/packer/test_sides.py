"""Laws of splits: which side a row goes to is what the specification says, computed here row by row from its text."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from packtrain._core.versions import NO_SIDE, Split
from packtrain._packer.key_hashes import key_hashes
from packtrain._packer.sides import JoinedSides, sides_of

BITS = (1 << 64) - 1
GOLDEN = {
    (0, 0, b""): 0x238275BC38FCBE91,
    (0, 0, b"train/dog/1.jpg"): 0xE7344A4EE8DD70AA,
    (0, 1, b"train/dog/1.jpg"): 0x5630E124BFAD7D1C,
    (0xFFFFFFFFFFFFFFFF, 0, b"12345678"): 0xD0874E2B34368682,
    (7, 0, "Ä 9".encode()): 0xB516F311FE86B612,
}


def mix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & BITS
    value = (value ^ value >> 27) * 0x94D049BB133111EB & BITS
    return value ^ value >> 31


def hash_of(key: bytes, seed: int = 0, number: int = 0) -> int:
    words = [int.from_bytes(key[at : at + 8], "little") for at in range(0, len(key), 8)]
    found = 0
    for value in (seed, number, len(key), *words):
        found = mix((found ^ value) + 0x9E3779B97F4A7C15 & BITS)
    return found


def hashes(keys: list[bytes], seed: int = 0, number: int = 0) -> np.ndarray:
    ends = np.cumsum([0, *map(len, keys)])
    return key_hashes(ends, np.frombuffer(b"".join(keys), np.uint8), seed, number)


@pytest.mark.parametrize(("of", "expected"), GOLDEN.items())
def test_hashes_never_change(of: tuple[int, int, bytes], expected: int) -> None:
    seed, number, key = of
    assert hashes([b"x", key, b"yz"], seed, number)[1] == expected


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, BITS), st.integers(0, 9))
def test_hashes_are_what_is_specified(keys: list[bytes], seed: int, number: int) -> None:
    assert hashes(keys, seed, number).tolist() == [hash_of(key, seed, number) for key in keys]


def groups_of(keys: list[list[int]]) -> list[int]:
    """The hash of each row's group."""
    rows = [set(column) for column in zip(*keys, strict=True)]
    while True:
        joined = [set.union(*(other for other in rows if other & row)) for row in rows]
        if joined == rows:
            return [min(row) for row in rows]
        rows = joined


def expected(keys: list[list[int]], classes: list[int], recorded: list[int], split: Split) -> list[int]:
    """The sides by the specification, rule by rule."""
    groups, sides = groups_of(keys), list(recorded)
    known = {group: side for group, side in zip(groups, recorded, strict=True) if side != NO_SIDE}
    sides = [known.get(group, NO_SIDE) for group in groups]
    first = {
        each: min((g for g, c, s in zip(groups, classes, sides, strict=True) if c == each and s == NO_SIDE), default=0)
        for each in classes
    }
    if split.folds:
        shares = [(fold, Fraction(1, split.folds - fold)) for fold in range(split.folds - 1)]
        rest = split.folds - 1
    else:
        shares = [(1, Fraction(split.val, 10**6)), (2, Fraction(split.test, 10**6 - split.val))]
        rest = 0
    done: list[int] = []
    for side, share in shares:
        n = Counter(c for c, s in zip(classes, sides, strict=True) if s not in done)
        h = Counter(c for c, s in zip(classes, sides, strict=True) if s == side)
        f = Counter(c for c, s in zip(classes, sides, strict=True) if s == NO_SIDE)
        kept = {c for c, s in zip(classes, sides, strict=True) if s == rest}
        m = {c: f[c] if split.folds or c in kept else max(f[c] - 1, 0) for c in n}
        quota = {c: max(floor(share * n[c]), h[c]) for c in n}
        able = [c for c in n if h[c] <= floor(share * n[c]) < share * n[c] and m[c] > floor(share * n[c]) - h[c]]
        for c in sorted(able, key=lambda c: (floor(share * n[c]) - share * n[c], first[c], c)):
            if sum(quota.values()) < floor(share * sum(n.values()) + Fraction(1, 2)):
                quota[c] += 1
        need = {c: min(quota[c] - h[c], m[c]) for c in n}
        for group in sorted({g for g, s in zip(groups, sides, strict=True) if s == NO_SIDE}):
            rows = Counter(c for g, c in zip(groups, classes, strict=True) if g == group)
            nearer = sum(abs(need[c] - count) - abs(need[c]) for c, count in rows.items()) < 0
            if nearer and all(count <= m[c] for c, count in rows.items()):
                sides = [side if g == group else s for g, s in zip(groups, sides, strict=True)]
                for c, count in rows.items():
                    need[c] -= count
                    m[c] -= count
        done.append(side)
    return [rest if side == NO_SIDE else side for side in sides]


SHARES = st.sampled_from([0, 50_000, 100_000, 333_333, 400_000, 499_999])
SPLITS = st.one_of(
    st.builds(Split, SHARES, SHARES, st.just(0), st.just(0), st.just(("path",)), st.just(True)),
    st.builds(Split, st.just(0), st.just(0), st.integers(2, 6), st.just(0), st.just(("path",)), st.just(True)),
)


def split_rows(keys: list[list[int]], classes: list[int], recorded: list[int], split: Split) -> list[int]:
    arrays = [hashes([b"%d" % key for key in column], 0, number) for number, column in enumerate(keys)]
    found: list[int] = sides_of(arrays, np.array(classes), np.array(recorded, np.uint8), split).tolist()
    return found


def oracle(keys: list[list[int]], classes: list[int], recorded: list[int], split: Split) -> list[int]:
    hashed = [[hash_of(b"%d" % key, 0, number) for key in column] for number, column in enumerate(keys)]
    return expected(hashed, classes, recorded, split)


class Growing(RuleBasedStateMachine):
    """Rows are added and dropped, and split again: old ones stay, and the new ones go where they are specified to."""

    @initialize(split=SPLITS, kinds=st.integers(1, 2), many=st.booleans(), classes=st.integers(1, 5))
    def begin(self, split: Split, kinds: int, many: bool, classes: int) -> None:
        self.split, self.most, self.count = split, 10**6 if many else 30, classes
        self.keys: list[list[int]] = [[] for _ in range(kinds)]
        self.classes: list[int] = []
        self.sides: list[int] = []

    @rule(data=st.data(), count=st.integers(1, 60))
    def add(self, data: st.DataObject, count: int) -> None:
        draw = data.draw(st.randoms(use_true_random=False))
        keys = [[*column, *(draw.randrange(self.most) for _ in range(count))] for column in self.keys]
        classes = [*self.classes, *(min(draw.randrange(self.count), draw.randrange(self.count)) for _ in range(count))]
        recorded = [*self.sides, *[NO_SIDE] * count]
        try:
            found = split_rows(keys, classes, recorded, self.split)
        except JoinedSides as error:
            one, other, joining = error.rows
            groups = groups_of([[*map(str, column)] for column in keys])  # type: ignore[list-item]
            assert groups[one] == groups[other]
            assert NO_SIDE != recorded[one] != recorded[other] != NO_SIDE
            assert joining < 0 or (groups[joining], recorded[joining]) == (groups[one], NO_SIDE)
            return
        assert found == oracle(keys, classes, recorded, self.split)
        assert found[: len(self.sides)] == self.sides
        assert split_rows(keys, classes, found, self.split) == found
        self.keys, self.classes, self.sides = keys, classes, found

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        draw = data.draw(st.randoms(use_true_random=False))
        kept = [row for row in range(len(self.sides)) if draw.random() < 0.7]
        self.keys = [[column[row] for row in kept] for column in self.keys]
        self.classes = [self.classes[row] for row in kept]
        self.sides = [self.sides[row] for row in kept]

    @invariant()
    def each_row_is_on_a_side(self) -> None:
        assert NO_SIDE not in getattr(self, "sides", [])


TestGrowing = Growing.TestCase
TestGrowing.settings = settings(max_examples=3 * settings().max_examples, stateful_step_count=6, deadline=None)


@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 25])
def test_each_class_has_its_share(size: int) -> None:
    """A tenth of the rows are in val; a class of ten has one of them, and one of a single row has none."""
    classes = [row % 300 for row in range(300 * size)]
    found = split_rows(
        [list(range(len(classes)))], classes, [NO_SIDE] * len(classes), Split(100_000, 0, 0, 0, (), True)
    )
    counts = Counter(each for each, side in zip(classes, found, strict=True) if side == 1)
    assert sum(counts.values()) == (30 * size if size > 1 else 0)
    assert all(size // 10 <= counts[each] <= -(-size // 10) for each in range(300))


def test_folds_differ_by_a_row() -> None:
    classes = [0] * 53 + [1] * 9 + [2] * 4 + [3] * 5
    found = split_rows([list(range(71))], classes, [NO_SIDE] * 71, Split(0, 0, 5, 0, (), True))
    for chosen in ({0}, {1}, {2}, {3}, {0, 1, 2, 3}):
        sizes = Counter(side for each, side in zip(classes, found, strict=True) if each in chosen)
        assert max(sizes.values()) - min(sizes[fold] for fold in range(5)) <= 1
