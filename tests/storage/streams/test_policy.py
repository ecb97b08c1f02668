"""Laws of what is fetched and what goes, against a brute-force policy that is written down from lists."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from packtrain._storage.streams.order import ChunkOrder
from packtrain._storage.streams.order_files import OrderChunks
from packtrain._storage.streams.policy import Policy, Reading, lanes_of, least_bytes

SIZE = 100


def lanes_taken(reading: Reading) -> set[int]:
    """The lanes of a rank's positions in any full step, by going through them."""
    taken = set[int]()
    step = reading.world_size * reading.batch_size
    for first in range(reading.lanes):
        positions = sorted(range(first, first + step), key=lambda position: (position % reading.lanes, position))
        mine = positions[reading.rank * reading.batch_size : (reading.rank + 1) * reading.batch_size]
        taken |= {position % reading.lanes for position in mine}
    return taken


@given(world=st.integers(1, 9), batch=st.integers(1, 40), lanes=st.integers(1, 40), rank=st.integers(0, 8))
def test_a_rank_takes_these_lanes(world: int, batch: int, lanes: int, rank: int) -> None:
    reading = Reading(rank % world, world, batch, lanes, 2, (1,))
    assert set(lanes_of(reading).tolist()) == lanes_taken(reading)


def uses(
    order: ChunkOrder, keys: tuple[int, ...], lanes: set[int], chunks: OrderChunks | None = None
) -> list[set[int]]:
    """For each window of these epochs, the chunks that some lanes use in it."""
    windows = []
    for visits in map(order.visits, keys):
        mine = np.isin(visits.lane, list(lanes))
        windows += [set(visits.chunk[mine & (visits.window == window)].tolist()) for window in range(order.windows)]
    if chunks is None:
        return windows
    return [{int(chunks.chunk[chunk]) for chunk in window} - {-1} for window in windows]


def next_use(windows: list[set[int]], now: int, chunk: int) -> float:
    """The next window in which a chunk is used."""
    return next((at for at in range(now, len(windows)) if chunk in windows[at]), math.inf)


class Model(RuleBasedStateMachine):
    """Readers that go on, tickets that come and go, chunks that arrive, fail and go; and what must hold meanwhile."""

    @initialize(
        records=st.lists(st.integers(1, 9), min_size=4, max_size=30),
        sizes=st.integers(0, 9),
        share=st.floats(0.1, 1.1),
    )
    def begin(self, records: list[int], sizes: int, share: float) -> None:
        bounds = np.cumsum([0, *records])
        random = np.random.default_rng(sizes)
        self.sizes = random.integers(50, 150, len(records)) if sizes else np.full(len(records), SIZE)
        self.bounds = bounds
        self.policy = Policy(bounds, self.sizes, int(share * self.sizes.sum()))
        self.readings: dict[int, Reading] = {}
        self.orders: dict[int, OrderChunks | None] = {}
        self.tickets = Counter[int]()
        self.asked = set[int]()

    @rule(
        who=st.integers(0, 2),
        rank=st.integers(0, 3),
        world=st.integers(1, 4),
        batch=st.integers(1, 8),
        lanes=st.integers(1, 5),
        window=st.integers(1, 3),
        key=st.integers(0, 3),
        last=st.booleans(),
        seed=st.none() | st.integers(0, 9),
    )
    def register(
        self,
        who: int,
        rank: int,
        world: int,
        batch: int,
        lanes: int,
        window: int,
        key: int,
        last: bool,
        seed: int | None,
    ) -> None:
        """With a seed, the order goes through parts of some chunks, and through others that lie elsewhere."""
        keys = (key,) if last else (key, key + 1)
        self.readings[who] = Reading(rank % world, world, batch, lanes, window, keys)
        self.orders[who] = None
        if seed is not None:
            random = np.random.default_rng(seed)
            count = int(random.integers(1, 20))
            chunks = random.integers(-1, len(self.sizes), count)
            self.orders[who] = OrderChunks(np.cumsum([0, *random.integers(1, 9, count)]), chunks)
        self.policy.read(who, self.readings[who], self.orders[who])

    @precondition(lambda self: self.readings)
    @rule(data=st.data(), steps=st.integers(1, 6), in_flight=st.integers(0, 20))
    def go_on(self, data: st.DataObject, steps: int, in_flight: int) -> None:
        who = data.draw(st.sampled_from(sorted(self.readings)))
        old = self.readings[who]
        consumed = old.consumed + steps * old.world_size * old.batch_size
        keys = old.keys
        chunks = self.orders[who]
        if consumed >= (self.bounds if chunks is None else chunks.bounds)[-1]:
            consumed, keys = 0, (keys[-1], keys[-1] + 1)
        self.readings[who] = Reading(
            old.rank, old.world_size, old.batch_size, old.lanes, old.window, keys, consumed, in_flight
        )
        self.policy.read(who, self.readings[who], chunks)

    @precondition(lambda self: self.readings)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.readings)))
        del self.readings[who]
        self.policy.forget(who)

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        chunk = data.draw(st.integers(0, len(self.sizes) - 1))
        self.policy.ask(chunk)
        if not self.policy.present[chunk]:
            self.asked.add(chunk)

    @rule(data=st.data())
    def take_ticket(self, data: st.DataObject) -> None:
        chunk = data.draw(st.integers(0, len(self.sizes) - 1))
        self.tickets[chunk] += 1
        self.policy.hold(chunk)

    @precondition(lambda self: self.tickets.total())
    @rule(data=st.data())
    def give_ticket_back(self, data: st.DataObject) -> None:
        chunk = data.draw(st.sampled_from(sorted(self.tickets.elements())))
        self.tickets[chunk] -= 1
        self.policy.release(chunk)

    @rule(share=st.floats(0.1, 1.1))
    def change_the_budget(self, share: float) -> None:
        self.policy.budget = int(share * self.sizes.sum())
        before = self.state()
        found = self.policy.victims(0)
        for chunk in found or ():
            self.check_victim(chunk, None, before)
            self.policy.gone(chunk)
        if found is None:
            kept = sum(int(self.sizes[chunk]) for chunk in before["present"] if self.kept(chunk))
            kept += sum(int(self.sizes[chunk]) for chunk in self.policy.fetching)
            assert kept > self.policy.budget, "it says that too much must stay, so too much must"

    @rule(arrive=st.booleans(), most=st.integers(1, 5))
    def fetch(self, arrive: bool, most: int) -> None:
        wanted = self.policy.wanted(most)
        assert len(set(wanted)) == len(wanted) <= most
        assert not any(self.policy.present[chunk] or chunk in self.policy.fetching for chunk in wanted)
        asked = [chunk for chunk in self.asked if not self.policy.present[chunk]]
        waiting = [chunk for chunk in asked if chunk not in self.policy.fetching]
        assert set(wanted[: len(waiting)]) <= set(waiting), "who waits comes first"
        for chunk in wanted:
            before = self.state()
            room = self.policy.free
            victims = self.policy.victims(int(self.sizes[chunk]), chunk)
            if victims is None:
                continue
            if victims:
                assert room + sum(int(self.sizes[each]) for each in victims[:-1]) < self.sizes[chunk], (
                    "no more than needed"
                )
            for each in victims:
                self.check_victim(each, chunk, before)
                self.policy.gone(each)
            self.policy.begin(chunk)
            assert self.policy.used <= self.policy.budget
            if arrive:
                self.policy.arrived(chunk)
                self.asked.discard(chunk)

    @precondition(lambda self: self.policy.fetching)
    @rule(arrive=st.booleans())
    def end_a_fetch(self, arrive: bool) -> None:
        chunk = min(self.policy.fetching)
        self.asked.discard(chunk)
        if arrive:
            self.policy.arrived(chunk)
        else:
            self.policy.failed(chunk)

    @invariant()
    def space_adds_up(self) -> None:
        if hasattr(self, "policy"):
            inside = {*np.flatnonzero(self.policy.present).tolist(), *self.policy.fetching}
            assert self.policy.used == sum(int(self.sizes[chunk]) for chunk in inside)

    def state(self) -> dict[str, Any]:
        return {"present": set(np.flatnonzero(self.policy.present).tolist())}

    def order(self, who: int) -> ChunkOrder:
        reading, chunks = self.readings[who], self.orders[who]
        return ChunkOrder(self.bounds if chunks is None else chunks.bounds, reading.lanes, reading.window)

    def windows(self, who: int) -> tuple[list[set[int]], int, int]:
        reading, order = self.readings[who], self.order(who)
        windows = uses(order, reading.keys, lanes_taken(reading), self.orders[who])
        last = min(len(order) - 1, reading.consumed + max(0, reading.in_flight - 1))
        now = order.window_of(reading.consumed // reading.lanes)
        beyond = reading.consumed + max(0, reading.in_flight - 1) >= len(order)
        return windows, now, (order.windows if beyond else order.window_of(last // reading.lanes)) + 1

    def distance(self, chunk: int) -> float:
        """Records until a chunk is used, by the lists."""
        found = [math.inf]
        for who, reading in self.readings.items():
            windows, now, _ = self.windows(who)
            order = self.order(who)
            pace = len(order) / (order.windows * reading.world_size)
            found.append((next_use(windows, now, chunk) - now) * pace)
        return min(found)

    def protected(self, chunk: int) -> bool:
        for who in self.readings:
            windows, now, last = self.windows(who)
            if next_use(windows, now, chunk) <= last:
                return True
        return False

    def kept(self, chunk: int) -> bool:
        return self.tickets[chunk] > 0 or self.protected(chunk)

    def check_victim(self, victim: int, chunk: int | None, before: dict[str, Any]) -> None:
        assert victim in before["present"]
        assert self.tickets[victim] == 0, "a chunk with a ticket stays"
        if chunk not in self.asked:
            assert not self.protected(victim), "the present and the next window stay"
        if chunk is not None and chunk not in self.asked:
            assert self.protected(chunk), "nothing goes for what has time"
        others = {each for each in before["present"] if self.policy.present[each] and not self.kept(each)}
        if not self.protected(victim):
            assert all(self.distance(each) <= self.distance(victim) + 1e-6 for each in others), (
                "the farthest goes first"
            )
        else:
            assert not others, "what is protected goes last"


TestPolicy = Model.TestCase
TestPolicy.settings = settings(stateful_step_count=30, deadline=None)


def simulate(
    share: float,
    chunks: int,
    per: int,
    lanes: int,
    window: int,
    epochs: int,
    jobs: tuple[int, ...] = (0,),
    batch: int = 64,
) -> list[float]:
    """Datasets fetched in each epoch, if every chunk arrives at once. Each job's keys begin with its number."""
    bounds = np.arange(chunks + 1) * per
    policy = Policy(bounds, np.full(chunks, SIZE), int(share * chunks * SIZE))
    order = ChunkOrder(bounds, lanes, window)
    fetched = []
    for epoch in range(epochs):
        count = 0
        for start in range(0, len(order), batch):
            for job in jobs:
                keys = (1000 * job + epoch, 1000 * job + epoch + 1)
                policy.read(job, Reading(0, 1, batch, lanes, window, keys, start, batch))
            for chunk in policy.wanted(chunks):
                victims = policy.victims(SIZE, chunk)
                if victims is not None:
                    for victim in victims:
                        policy.gone(victim)
                    policy.begin(chunk)
                    policy.arrived(chunk)
                    count += 1
            for job in jobs:
                places = order.places(1000 * job + epoch, start, min(len(order), start + batch))
                assert policy.present[np.unique(places // per)].all(), "what is read now is there"
            assert policy.used <= policy.budget
        fetched.append(count / chunks)
    return fetched


@pytest.mark.parametrize("share", [0.5, *(pytest.param(share, marks=pytest.mark.complete) for share in (0.25, 0.75))])
def test_what_is_fetched_is_what_is_not_cached(share: float) -> None:
    """In steady state, one minus the share of the dataset that is cached, give or take 5 %."""
    assert all(found <= 1 - share + 0.05 for found in simulate(share, 400, 20, 8, 2, 3)[1:])


def test_a_dataset_that_fits_is_fetched_once() -> None:
    assert simulate(1, 100, 10, 8, 2, 3) == [1, 0, 0]


@pytest.mark.complete
def test_jobs_share_what_they_fetch() -> None:
    """Two jobs at the same pace with the same order fetch what one does; with others, less than one each would."""
    alone = simulate(0.5, 150, 10, 8, 2, 3)
    assert simulate(0.5, 150, 10, 8, 2, 3, (0, 0)) == alone
    together = simulate(0.5, 150, 10, 8, 2, 3, (0, 1))
    assert sum(together[1:]) < 2 * sum(alone[1:])
    assert simulate(1, 150, 10, 8, 2, 3, (0, 1)) == [1, 0, 0]


def test_everything_in_the_order_of_places() -> None:
    policy = Policy(np.arange(11), np.full(10, SIZE), 10 * SIZE)
    assert policy.wanted(3) == []
    policy.fill(True)
    policy.ask(7)
    assert policy.wanted(4) == [7, 0, 1, 2]


@pytest.mark.parametrize("lanes", [3, 8])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
def test_two_windows_of_every_lane_fit_the_least_budget_of_each_of_two_caches(share: float, lanes: int) -> None:
    """The windows of some orders, of which each has some 50 pairs that follow each other."""
    window, chunks = 2, 800
    here = np.arange(chunks) < share * chunks
    order = ChunkOrder(np.arange(chunks + 1) * 20, lanes, window)
    for key in range(10):
        parts = OrderChunks(order.bounds, np.where(here, np.arange(chunks), -1))
        windows = uses(order, (key,), set(range(lanes)), parts)
        most = max(len(first | second) for first, second in pairwise(windows))
        least = least_bytes(np.full(int(here.sum()), SIZE), lanes, window, parts.share)
        assert most * SIZE <= least <= least_bytes(np.full(chunks, SIZE), lanes, window)


def test_time_is_counted_in_records_from_one_reader_to_another() -> None:
    """One rank of four reads a quarter of a window while a rank that is alone reads all of it."""
    chunks = 40
    bounds = np.arange(chunks + 1) * 16
    policy = Policy(bounds, np.full(chunks, SIZE), chunks * SIZE)
    order = ChunkOrder(bounds, 4, 1)
    fast, slow = Reading(0, 1, 4, 4, 1, (1,)), Reading(0, 4, 4, 4, 1, (2,))
    policy.read("fast", fast)
    policy.read("slow", slow)
    windows = {reading: uses(order, reading.keys, lanes_taken(reading)) for reading in (fast, slow)}

    wanted = policy.wanted(chunks)
    first, later = windows[slow][1] - windows[fast][0], windows[fast][1] - windows[slow][0] - windows[slow][1]
    assert max(map(wanted.index, first)) < min(map(wanted.index, later))


def test_epochs_that_are_over_are_forgotten() -> None:
    bounds = np.arange(11) * 10
    policy = Policy(bounds, np.full(10, SIZE), 5 * SIZE)
    for epoch in range(20):
        policy.read(0, Reading(0, 1, 8, 2, 1 + epoch // 10, (epoch, epoch + 1)))
    assert len(policy._visits) == 2
    assert len(policy._orders) == 1
    policy.forget(0)
    assert not policy._visits
