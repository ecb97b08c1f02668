"""Progress of a loader: the epoch, how much of it has been handed out, and what comes next."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from packtrain._core.errors import UsageError
from packtrain._core.keys import mixed
from packtrain._core.overriding import override

from .batches import Probe
from .chunk_shuffled import ChunkShuffled
from .engine import Job
from .order import Buffered, CacheOrder, Order
from .ranks import Ranks, Seed, World
from .sampler import SamplerOrder
from .schedule import Schedule
from .state import Chosen, LoaderState

# The keys of an epoch's order and of its random numbers are mixed from seed, epoch and one of these.
_ORDER, _SAMPLES = 0, 1
# Number of samples that are tried before the whole dataset counts as damaged.
_TRIES: Final = 1000


class Progress:
    """Progress of a loader through its epochs.

    Args:
        order: The order of each epoch.
        batch_size: Number of samples that one rank takes in one step.
        drop_last: True to drop an incomplete step at the end of an epoch.
        ranks: Which rank this is.
        seed: The seed of order and random numbers.
        dataset: Which samples the rows are; None if that is not known.

    Attributes:
        epoch: Number of the present epoch.
        consumed: Number of its positions that all ranks together have handed out.
        under_way: True if the present pass has handed out a batch.
        look: True if it has handed out one batch so far. If it is left now, it was a look, which does not count.
        began: `consumed` when it handed out its first batch.
        again: True if the present pass begins where a look began, and has handed out nothing yet.
        looks: Number of looks since the last pass that was none.
        order: The order of the epoch.
        dataset: Which samples the rows are; None if that is not known.
        grows: True if each epoch goes through a generation of the growing cache `dataset`.
        chosen: The generations that the epoch goes through; None if they are not chosen yet, or if there are none.
    """

    def __init__(
        self, order: Order, batch_size: int, drop_last: bool, ranks: Ranks, seed: Seed, dataset: str | None = None
    ) -> None:
        self.order = order
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._ranks = ranks
        self._seed = seed
        self.dataset = dataset
        self.grows = False
        self.epoch = 0
        self.consumed = 0
        self.under_way = False
        self.look = False
        self.began = 0
        self.again = False
        self.looks = 0
        self.chosen: Chosen | None = None
        self._nodes: int | None = None
        """Number of nodes that the ranks run on; None as long as they have not said so."""
        self._drawn: tuple[int | None, int] | None = None
        """Seed and epoch of the last draw of a foreign sampler."""
        self._resumed: Mapping[str, Any] | None = None
        """State from which a foreign sampler is to draw its next epoch."""

    def move(self, epoch: int) -> None:
        """Goes to the beginning of an epoch."""
        self.chosen = None
        self.rename(epoch)

    def rename(self, epoch: int) -> None:
        """The same, but with the generations of the present epoch."""
        self.under_way = self.look = self.again = False
        self.epoch, self.consumed, self.looks, self._resumed = epoch, 0, 0, None

    def leave(self) -> bool:
        """Leaves the present pass. After a look, the next one begins where it began, otherwise with the next epoch.

        Returns:
            True if it was a look.
        """
        looked = self.look
        if looked:
            self.consumed, self.under_way, self.look, self.again = self.began, False, False, True
            self.looks += 1
        elif self.under_way:
            self.move(self.epoch + 1)
        return looked

    def forget_choice(self) -> None:
        """Lets the next pass choose anew what the epoch goes through, if nothing of it has been handed out."""
        if not self.consumed:
            self.chosen = None

    def schedule(self, world: World) -> Schedule:
        """The steps of a rank through an epoch."""
        # A foreign sampler yields only the rows of this rank.
        rank, world_size = World(0, 1) if isinstance(self.order, SamplerOrder) else world
        order = self.order
        nodes = self._nodes or 1
        return Schedule(
            len(order), self._batch_size, rank, world_size, self._drop_last, order.dealing, order.lanes, nodes
        )

    def begin(self, world: World) -> None:
        """Makes everything ready for a pass. All ranks must call this together: they agree on seed and order."""
        self._seed.agree()
        if isinstance(self.order, ChunkShuffled):
            self._nodes = self._ranks.nodes()
        self._fit(world)
        self._draw(world)

    def jobs(self, world: World) -> Iterator[Job]:
        """The batches of the rest of the epoch."""
        schedule, order = self.schedule(world), self.order
        # Computing the rows of several steps at a time is faster, but only a single rank takes them all.
        order = Buffered(order) if schedule.world_size == 1 else order
        order_key, key = self._keys(world)
        consumed = self.consumed
        while step := schedule.step(consumed):
            consumed = step.consumed
            yield Job(key, step.positions, order.batch_rows(order_key, step.positions), consumed)

    def probe(self, world: World) -> Probe:
        """The next samples of the epoch, over all ranks, of which the first that is sound shows what a batch is."""
        order_key, key = self._keys(world)
        count = len(self.order)
        positions = range(self.consumed, min(count, self.consumed + _TRIES))
        rows = self.order.rows(order_key, positions.start, positions.stop).tolist()
        # A later epoch of a foreign sampler may be longer.
        size = self._batch_size if isinstance(self.order, SamplerOrder) else min(self._batch_size, count)
        return Probe(size, key, positions, rows)

    def sample(self, position: int) -> tuple[int, int]:
        """Key of the epoch's random numbers, and row of the sample at a position of the epoch.

        Raises:
            IndexError: The epoch has no such position.
            UsageError: The ranks have not agreed on a seed yet, or the sample is one of a rank with another cache.
        """
        self._seed.agree_alone()
        world = self._ranks.now()
        self._fit(world, alone=self._nodes is None and world.world_size > 1 and not self._ranks.given)
        self._draw(world)
        if not 0 <= position < len(self.order):
            raise IndexError(f"position {position} of an epoch of {len(self.order)}")
        if isinstance(self.order, CacheOrder) and not self.order.has(position):
            raise UsageError(
                f"position {position} is that of a rank with another cache, whose ranks alone can make its sample"
            )
        order_key, key = self._keys(world)
        return key, int(self.order.rows(order_key, position, position + 1)[0])

    def state(self) -> LoaderState:
        """The state, from which `load` continues."""
        seed, world = self._seed.value, self._ranks.now()
        # Without a seed, a sampler cannot draw. It does when the first pass begins.
        if seed is not None:
            self._draw(world)
        sampler = {**self.order.state(), **world._asdict()} if isinstance(self.order, SamplerOrder) else None
        name, length, parameters = _name(self.order), _length(self.order), self.order.parameters
        dataset, generations = self.dataset, None
        if self.grows:
            # A state without any has the name, too, as for the seed.
            chosen = self.chosen or Chosen((self.dataset or "",), ())
            dataset, generations = "+".join(chosen.caches), [list(pair) for pair in chosen.generations]
        return LoaderState(seed, self.epoch, self.consumed, length, name, parameters, sampler, dataset, generations)

    def load(self, state: LoaderState, order: Order | None = None, chosen: Chosen | None = None) -> None:
        """Goes to a state.

        Args:
            state: The state.
            order: The order from now on; None: it stays.
            chosen: The generations that the epoch goes through.

        Raises:
            UsageError: It belongs to another dataset, order, or number of ranks; see `Loader.load_state_dict`.
        """
        rank, world_size = self._ranks.now()
        order = self.order if order is None else order
        if isinstance(order, ChunkShuffled):
            order = order.resumed(state.parameters)
        name = _name(order)
        if state.order != name:
            raise UsageError(f"the state was saved by a loader with order {state.order}, this one has {name}")
        if state.dataset is not None and self.dataset is not None and state.dataset != self.dataset:
            raise UsageError(
                "the state was saved with another dataset, whose rows are other samples or in another order: samples "
                "would be repeated or left out. A state continues on the dataset that it was saved with, or on a later "
                "version of it, as long as its own was not dropped; `packtrain log PATH` shows the versions"
            )
        if state.sampler is None:
            if state.length != len(order):
                raise UsageError(
                    f"the state was saved by a loader with {state.length} positions in an epoch, this one has "
                    f"{len(order)}: is it another dataset?"
                )
            if state.parameters != order.parameters:
                raise UsageError(
                    f"the state was saved by a loader whose {name} has {_listed(state.parameters)}, this one has "
                    f"{_listed(order.parameters)}, so rows would be repeated or left out"
                )
        elif state.sampler.get("world_size") != world_size:
            raise UsageError(
                f"the state was saved by {state.sampler.get('world_size')} ranks, now there are {world_size}; "
                "only packtrain's own orders can continue with another number, a foreign sampler cannot"
            )
        self.move(state.epoch)
        self.order, self.chosen = order, chosen
        if state.seed is not None:
            self._seed.load(state.seed)
        self.consumed, self._resumed, self._drawn = state.consumed, state.sampler, None
        if state.sampler is not None and state.sampler.get("rank") != rank:
            # The checksum is that of another rank's rows.
            self._resumed = {name: value for name, value in state.sampler.items() if name != "crc32c"}

    def order_keys(self, epoch: int) -> tuple[int, int]:
        """The keys of the order in an epoch and in the next; the seed must be known."""
        return self._key(epoch, _ORDER), self._key(epoch + 1, _ORDER)

    def _keys(self, world: World) -> tuple[int, int]:
        """The keys of the epoch's order and of its random numbers."""
        # Every rank counts the positions of its foreign sampler from 0, but must draw other random numbers.
        rank = (world.rank,) if isinstance(self.order, SamplerOrder) else ()
        return self._key(self.epoch, _ORDER), self._key(self.epoch, _SAMPLES, *rank)

    def _key(self, *numbers: int) -> int:
        seed = self._seed.value
        assert seed is not None
        return mixed(seed, *numbers)

    def _fit(self, world: World, *, alone: bool = False) -> None:
        """Takes the order for the ranks that there are now, unless the epoch has begun with others.

        Args:
            world: The ranks.
            alone: True where other ranks would have to take part, but may not.

        Raises:
            UsageError: `alone` is true, and the order depends on the ranks.
        """
        if isinstance(self.order, ChunkShuffled) and not self.consumed:
            if alone:
                raise UsageError("the ranks agree on the order when the first pass begins: begin one before")
            self.order = self.order.fitted(world.world_size * self._batch_size, self._nodes or self._ranks.nodes())

    def _draw(self, world: World) -> None:
        """Draws the epoch of a foreign sampler, once."""
        if not isinstance(self.order, SamplerOrder) or self._drawn == (self._seed.value, self.epoch):
            return
        key, _ = self._keys(world)
        if self._resumed is None:
            self.order.begin(key, self.epoch)
        else:
            self.order.resume(key, self.epoch, self._resumed)
        self._resumed, self._drawn = None, (self._seed.value, self.epoch)


class Pass(Iterator[Any]):
    """A pass through an epoch. A batch counts as consumed at the very moment at which it is handed out.

    Args:
        progress: How far the loader is.
        batches: The batches, each with the number of positions consumed once it has been handed out.
    """

    def __init__(self, progress: Progress, batches: Iterator[tuple[Any, int]]) -> None:
        self._progress = progress
        self._batches = batches
        self._process = os.getpid()

    @override
    def __next__(self) -> Any:
        progress = self._progress
        if self._process != os.getpid():
            raise UsageError("this pass was begun by the parent of this process: begin another one here")
        try:
            value, consumed = next(self._batches)
        except BaseException as error:
            if getattr(self._batches, "gi_running", False):
                # It goes on in the other thread.
                raise UsageError(
                    "another thread is taking a batch from this pass: take batches in one thread and hand them on, for "
                    "example through a queue.Queue"
                ) from error
            # After an interrupt, the next batch would not be the one that follows the last one handed out.
            self._batches = iter(())
            raise
        # Python looks for signals when a function is called or a loop is repeated, so not from here to the consumer.
        if not progress.under_way:
            progress.began = progress.consumed
        progress.look, progress.again = not progress.under_way, False
        progress.consumed, progress.under_way = consumed, True
        return value


def _name(order: Order) -> str:
    """Return what a state calls an order."""
    return type(order.generation if isinstance(order, CacheOrder) else order).__name__


def _length(order: Order) -> int:
    """Number of positions in an epoch; 0 for a sampler that tells it only when it draws one."""
    try:
        return len(order)
    except TypeError:
        return 0


def _listed(parameters: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items()) or "no parameters"
