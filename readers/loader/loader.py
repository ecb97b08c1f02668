"""The loader: batches of a dataset, made by worker processes, in an order that can be resumed anywhere."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
from typing_extensions import override

from packtrain._core.errors import DatasetError, LoaderError, UsageError

from ..dataset.image_dataset import ImageDataset
from ..monitoring.figures import setup_of
from ..monitoring.stats import Meter
from .arguments import context_of, order_of, place_in_world, require, require_functions, workers_of
from .batches import BatchMaker, Made, Probe
from .device import Transfer, device_of, pins, transfer_of
from .engine import Batch, Engine, Job, ParallelEngine, SerialEngine
from .headspace import Replay
from .order import Ahead, Order
from .postprocess import BatchTransform, Postprocess, tensors_of
from .randomness import mixed, preserved
from .sampler import SamplerOrder
from .samples import SampleMaker
from .schedule import Schedule
from .state import LoaderState

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset, Sampler

# The keys of an epoch's order and of its random numbers are mixed from seed, epoch and one of these.
_ORDER, _SAMPLES = 0, 1
# Number of samples that are tried before the whole dataset counts as damaged.
_TRIES: Final = 1000
# Number of damaged records that are warned about.
_WARNINGS: Final = 10


class Loader:
    """Batches of a dataset for a training loop. Arguments that torch's DataLoader has, too, mean the same here.

    ``for images, labels in loader`` goes through one epoch. Images are uint8 [batch, 3, height, width] in channels_last
    memory. Labels are what torch's default_collate makes of them, int64 [batch] for integers. Then follows what
    `fields` asks for. If the transforms return something other than bytes, images are what they return, stacked.

    Images lie in memory that workers write to, and that is used again as soon as no tensor or array over it is alive.
    If a program keeps so many batches that the workers would run out of memory, it gets copies.

    With `mean` and `std`, images are normalised as torchvision's ToTensor and Normalize do it, a batch at a time. With
    a GPU as `device` this is done there, on bytes that were copied to it, and the next batch is ready on the GPU when
    it is asked for.

    Workers are started by the first epoch. They live until `close`, until the end of a ``with`` block, or until the
    loader is deleted. They have the dataset as it was when they were started.

    Args:
        dataset: A dataset from `open_dataset`, `concat` or `subset`, or any map-style dataset of (image, label).
        batch_size: Number of samples in a batch of this rank.
        transform: Transforms in place of the dataset's own, see `open_dataset`.
        shuffle: True for each row once per epoch, in an order that depends on seed and epoch; False for the order of
            the rows.
        seed: Seed of the order and of all random numbers.
        drop_last: True to drop the incomplete step at the end of an epoch. False to make smaller batches of it, which
            samples from the beginning of the epoch fill up so that they are equally large on all ranks.
        sampler: An order in place of `shuffle`: a `packtrain.Order`, of which each rank takes its part, or a torch
            Sampler, which yields the rows of this rank.
        num_workers: Number of processes that make batches. 0 makes them in this process, when they are asked for.
            ``"auto"`` takes as many as the cores that affinity and the cgroup allow, divided among the ranks on this
            machine.
        prefetch_factor: Number of batches that each worker makes ahead.
        collate_fn: Makes a batch of a list of samples, each a tuple of image, label and fields. Called in the worker.
            What it returns goes through a pipe, and its tensors through shared memory of their own, as in torch's
            DataLoader. That allows samples of different shapes, but is slower.
        worker_init_fn: Called in each worker with its number.
        multiprocessing_context: ``"fork"``, ``"forkserver"``, ``"spawn"``, or a context; None: Python's default.
        fields: What to hand out in addition: any of ``"row"``, ``"line"`` and ``"position"`` (int64 [batch]) and
            ``"path"`` (list of str).
        on_error: What to do about a damaged record: ``"raise"`` an error, or ``"skip"`` it, which leaves its sample out
            of the batch with a warning. A batch without any samples is left out; with several ranks that is an error.
        rank: Rank of this process; None: the rank in torch.distributed if that is initialised, otherwise 0.
        world_size: Number of ranks; None: the number in torch.distributed if that is initialised, otherwise 1.
        device: Device of the tensors, ``"cuda"`` or ``"cpu"``, where the following steps are also done; None: the CPU.
        mean: Mean of each channel, for images in [0, 1], or one number for all channels. Images must be uint8.
        std: Standard deviation of each channel, or one number for all channels. Give both `mean` and `std`, or neither.
        dtype: Dtype of the images; None: float32 if they are normalised, otherwise unchanged.
        batch_transform: Called last, in this process, with images and labels of a whole batch, and returns both; for
            MixUp, for example. `random`, numpy and torch (but not a GPU's generator) are seeded for each batch.
        headspace: True to make only a few batches and hand them out again and again. `stats` then tells how fast
            training would be if data cost nothing. Not for training.
        pin_memory: True to hand out batches in pinned memory, as torch's DataLoader does. Not needed with a GPU as
            `device`.

    Raises:
        UsageError: An argument is of the wrong type or out of its range.

    Attributes:
        skipped: Number of damaged records left out since the loader was made.
        stats: How long the consumer waited, and what the workers did. ``print(loader.stats)`` names the bottleneck.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        transform: Any = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        sampler: Order | Sampler[int] | Iterable[int] | None = None,
        num_workers: int | Literal["auto"] = "auto",
        prefetch_factor: int = 2,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        fields: Sequence[str] = (),
        on_error: Literal["raise", "skip"] = "raise",
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device | None = None,
        mean: float | Iterable[float] | None = None,
        std: float | Iterable[float] | None = None,
        dtype: torch.dtype | None = None,
        batch_transform: BatchTransform | None = None,
        pin_memory: bool = False,
        headspace: bool = False,
    ) -> None:
        require("batch_size", batch_size, 1)
        require("prefetch_factor", prefetch_factor, 1)
        if type(seed) is not int:
            raise UsageError(f"seed={seed!r}: expected a whole number")
        require_functions(collate_fn=collate_fn, worker_init_fn=worker_init_fn)
        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error={on_error!r}: expected 'raise' or 'skip'")
        if transform is not None:
            if not isinstance(dataset, ImageDataset):
                raise UsageError(
                    f"transform= needs a packtrain dataset; an object of type {type(dataset).__name__} has its own"
                )
            dataset = dataset.with_transform(transform)
        self.dataset: Final = dataset
        self.batch_size: Final = batch_size
        self.drop_last: Final = drop_last
        self.sampler: Final = sampler
        self.num_workers: Final = workers_of(num_workers)
        self.prefetch_factor: Final = prefetch_factor
        self.worker_init_fn: Final = worker_init_fn
        self.rank, self.world_size = place_in_world(rank, world_size)
        self.device: Final = device_of(device)
        self.skipped = 0
        self._maker = BatchMaker(SampleMaker(dataset, fields), collate_fn, skip=on_error == "skip")
        self._postprocess = Postprocess(mean, std, dtype, batch_transform)
        self._pin = pins(pin_memory, self.device)
        self._order = order_of(dataset, sampler, shuffle)
        self._context = context_of(multiprocessing_context)
        self.stats: Final = Meter(setup_of(self.num_workers, self._maker.samples.stores, headspace=headspace))
        self._replay = Replay() if headspace else None
        self._engine: Engine | None = None
        self._transfer: Transfer | None = None
        self._process = os.getpid()
        """The process that the engine was made in."""
        self._seed = seed
        self._epoch = 0
        self._consumed = 0
        self._under_way = False
        """True if the present pass has handed out a batch, so that the next pass goes through the next epoch."""
        self._pass: _Present | None = None
        """Stands for the present pass."""
        self._drawn: tuple[int, int] | None = None
        """Seed and epoch of the last draw of a foreign sampler."""
        self._resumed: Mapping[str, Any] | None = None
        """State from which a foreign sampler is to draw its next epoch."""

    def __len__(self) -> int:
        """Number of batches in a whole epoch."""
        return self._schedule().steps()

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass, which ends any other pass.

        The first pass begins in the present state, which may be in the middle of an epoch if a state was loaded. Each
        later pass goes through the next epoch, even if the pass before it was stopped early. A pass that has handed out
        nothing does not count.
        """
        if self._under_way:
            self._move(self._epoch + 1)
        self._pass = _Present(os.getpid())
        return _Pass(self, self.stats.timed(self._batches(self._pass)))

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass go through this epoch, from the beginning unless a state in it has just been loaded."""
        if require("epoch", epoch, 0) != self._epoch or self._under_way:
            self._move(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state of the loader between two steps. The state of any one rank can be loaded on all ranks.

        It counts the batches that were handed out, including the one the consumer works on, but not those made ahead.
        This is torch's ``Stateful`` protocol, which torchdata, Lightning and ``torch.distributed.checkpoint`` use.
        """
        order = self._ready()
        sampler = None
        if isinstance(order, SamplerOrder):
            sampler = {**order.state(), "rank": self.rank, "world_size": self.world_size}
        return LoaderState(self._seed, self._epoch, self._consumed, len(order), type(order).__name__, sampler).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state. Batch size, workers and number of ranks may differ from those that saved it.

        The next pass hands out the rest of the epoch: every position that has not been handed out, and no other.

        Raises:
            UsageError: The state belongs to another dataset or another kind of order. Or, with a foreign sampler, it
                was saved with another number of ranks: only packtrain's own orders can be divided among other ranks.
        """
        found = LoaderState.from_dict(state)
        order = type(self._order).__name__
        if found.order != order:
            raise UsageError(f"the state was saved by a loader with order {found.order}, this one has {order}")
        if found.sampler is None:
            if found.length != len(self._order):
                raise UsageError(
                    f"the state was saved by a loader with {found.length} positions in an epoch, this one has "
                    f"{len(self._order)}: is it another dataset?"
                )
        elif found.sampler.get("world_size") != self.world_size:
            raise UsageError(
                f"the state was saved by {found.sampler.get('world_size')} ranks, now there are {self.world_size}; "
                "only packtrain's own orders can continue with another number, a foreign sampler cannot"
            )
        self._move(found.epoch)
        self._seed, self._consumed = found.seed, found.consumed
        self._resumed, self._drawn = found.sampler, None
        if found.sampler is not None and found.sampler.get("rank") != self.rank:
            # The checksum is that of another rank's rows.
            self._resumed = {name: value for name, value in found.sampler.items() if name != "crc32c"}

    def sample(self, position: int) -> tuple[Any, ...]:
        """The sample at a position of the present epoch: image and label as the dataset returns them, and the fields.

        It is made in this process, with the random numbers of its position.

        Raises:
            IndexError: The epoch has no such position.
            PacktrainError: The sample cannot be made.
        """
        order, samples = self._ready(), self._maker.samples
        if not 0 <= position < len(order):
            raise IndexError(f"position {position} of an epoch of {len(order)}")
        order_key, key = self._keys()
        row = int(order.rows(order_key, position, position + 1)[0])
        with preserved():
            image, label = samples.make(key, position, row, samples.random(key, [position])[0].tolist())
        return image, label, *samples.extras(position, row)

    def close(self) -> None:
        """Ends the workers. Batches that were handed out stay valid, and another pass starts workers again."""
        self._pass = None
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self) -> None:
        # Forgotten first, so that whatever happens meanwhile, nothing of it is used again.
        engine, self._engine, transfer, self._transfer = self._engine, None, self._transfer, None
        try:
            if engine is not None:
                self.stats.detach()
                engine.close()
        finally:
            if transfer is not None:
                transfer.close()

    def _move(self, epoch: int) -> None:
        self._pass = None
        self._under_way = False
        self._epoch, self._consumed, self._resumed = epoch, 0, None

    def _schedule(self) -> Schedule:
        # A foreign sampler yields only the rows of this rank.
        foreign = isinstance(self._order, SamplerOrder)
        rank, world_size = (0, 1) if foreign else (self.rank, self.world_size)
        return Schedule(len(self._order), self.batch_size, rank, world_size, self.drop_last)

    def _keys(self) -> tuple[int, int]:
        """The keys of the epoch's order and of its random numbers."""
        # Every rank counts the positions of its foreign sampler from 0, but must draw other random numbers.
        rank = (self.rank,) if isinstance(self._order, SamplerOrder) else ()
        return mixed(self._seed, self._epoch, _ORDER), mixed(self._seed, self._epoch, _SAMPLES, *rank)

    def _ready(self) -> Order:
        """The order, ready for the present epoch."""
        if isinstance(self._order, SamplerOrder) and self._drawn != (self._seed, self._epoch):
            key, _ = self._keys()
            if self._resumed is None:
                self._order.begin(key, self._epoch)
            else:
                self._order.resume(key, self._epoch, self._resumed)
            self._resumed, self._drawn = None, (self._seed, self._epoch)
        return self._order

    def _batches(self, this: _Present) -> Iterator[tuple[Any, int]]:
        """The batches of a pass, each with the number of positions consumed once it has been handed out."""
        try:
            self._require_present(this)
            self._ready()
            run = self._run() if self._schedule().steps(self._consumed) else iter(())
            while batch := next(run, None):
                self._note_skipped(batch.made)
                found, consumed = [batch.value] if batch.made.size else [], batch.job.consumed
                # A variable would keep the batch's memory after the consumer has dropped it.
                del batch
                if found:
                    yield found.pop(), consumed
                self._require_present(this)
            self._move(self._epoch + 1)
        except (GeneratorExit, DatasetError, UsageError):
            raise
        except BaseException:
            # A worker may be dead, or its result read only in part, so nothing of this can be used again.
            self.close()
            raise

    def _require_present(self, this: _Present) -> None:
        if this.process != os.getpid():
            raise UsageError("this pass was begun by the parent of this process: begin another one here")
        if self._pass is not this:
            raise UsageError("this pass has ended: another one was begun, or the loader was moved or closed")

    def _jobs(self) -> Iterator[Job]:
        schedule, order = self._schedule(), self._order
        # Computing the rows of several steps at a time is faster, but only a single rank takes them all.
        order = Ahead(order) if schedule.world_size == 1 else order
        order_key, key = self._keys()
        consumed = self._consumed
        while step := schedule.step(consumed):
            consumed = step.consumed
            yield Job(key, step.positions, _rows(order, order_key, step.positions), consumed)

    def _run(self) -> Iterator[Batch]:
        """The batches of a pass, as the consumer gets them."""
        if self._process != os.getpid():
            # A copy in a forked process: the engine works for the original.
            self._end()
        if self._engine is None:
            self._engine = (
                SerialEngine(self._maker, self._probe())
                if not self.num_workers
                else ParallelEngine(
                    self._maker,
                    self._probe(),
                    self.num_workers,
                    self.prefetch_factor,
                    self._context,
                    self.worker_init_fn,
                )
            )
            self._process = os.getpid()
            self.stats.attach(self._engine.counters())
        if self._transfer is None:
            # Nothing here may refer to the loader, so that it ends its workers as soon as it is dropped.
            tensors = partial(tensors_of, layout=self._engine.layout, fields=self._maker.samples.fields)
            self._transfer = transfer_of(self.device, self._postprocess, tensors, self._engine, pin=self._pin)
        return self._replay.run(self._jobs(), self._make) if self._replay else self._make(self._jobs())

    def _make(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        assert self._engine is not None and self._transfer is not None
        return self._transfer.run(self.stats.collected(self._engine.run(jobs)))

    def _probe(self) -> Probe:
        """The next samples of the epoch, of which the first that is sound shows what a batch looks like."""
        order_key, key = self._keys()
        positions = range(self._consumed, min(len(self._order), self._consumed + _TRIES))
        rows = self._order.rows(order_key, positions.start, positions.stop)
        # A later epoch of a foreign sampler may be longer.
        size = self.batch_size if isinstance(self._order, SamplerOrder) else min(self.batch_size, len(self._order))
        return Probe(size, key, positions, rows.tolist())

    def _note_skipped(self, made: Made) -> None:
        for reason in made.skipped[: max(0, _WARNINGS - self.skipped)]:
            warnings.warn(f"left out: {reason}", RuntimeWarning, stacklevel=5)
        self.skipped += len(made.skipped)
        self.stats.count(made.size, len(made.skipped))
        if not made.size and self.world_size > 1:
            raise LoaderError(
                f"all records of a batch are damaged, and the other ranks would wait for this one: {made.skipped[0]}"
            )


@dataclass(frozen=True, eq=False)
class _Present:
    """Stands for a pass, in the process that began it."""

    process: int


class _Pass(Iterator[Any]):
    """A pass, as the consumer sees it. A batch counts as consumed at the very moment at which it is handed out.

    Args:
        loader: The loader.
        batches: What `Loader._batches` yields.
    """

    def __init__(self, loader: Loader, batches: Iterator[tuple[Any, int]]) -> None:
        self._loader = loader
        self._batches = batches

    @override
    def __next__(self) -> Any:
        loader = self._loader
        try:
            value, consumed = next(self._batches)
        except BaseException:
            # After an interrupt, the next batch would not be the one that follows the last one handed out.
            self._batches = iter(())
            raise
        # Python looks for signals when a function is called or a loop is repeated, so not from here to the consumer.
        loader._consumed, loader._under_way = consumed, True
        return value


def _rows(order: Order, key: int, positions: Any) -> Any:
    """The rows at consecutive positions, or at positions that continue at the beginning of the epoch."""
    first, last = int(positions[0]), int(positions[-1])
    if last - first == len(positions) - 1:
        return order.rows(key, first, last + 1)
    return np.concatenate([order.rows(key, position, position + 1) for position in positions.tolist()])
