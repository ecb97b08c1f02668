"""The loader: batches of a dataset, in an order that can be resumed anywhere, made by worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np

from packtrain._core.errors import DatasetError, LoaderError, UsageError

from ..dataset.image_dataset import ImageDataset
from ..monitoring.stats import Meter, setting_of
from .arena import Layout
from .arguments import context_of, order_of, place_in_world, require, require_functions, workers_of
from .batches import BatchMaker, Made
from .device import Finished, Stage, device_of, pins, stage_of
from .engine import Engine, Job, ParallelEngine, SerialEngine
from .headspace import Replay
from .order import Ahead, Order
from .postprocess import BatchTransform, Finish, tensors_of
from .randomness import mixed, preserved
from .sampler import SamplerOrder
from .samples import SampleMaker
from .schedule import Schedule
from .state import LoaderState

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset, Sampler

# The keys of an epoch's order and of its random numbers are made of seed, epoch, and one of these.
_ORDER, _SAMPLES = 0, 1
# So many samples are tried before a dataset counts as damaged altogether.
_TRIES: Final = 1000
_WARNINGS: Final = 10


class Loader:
    """Batches of a dataset for a training loop; names and meanings are torch's wherever torch has them.

    ``for images, labels in loader`` goes through one epoch: images uint8 [batch, 3, height, width] in channels_last
    memory, labels as torch's default_collate makes them (int64 [batch] for integers), then what `fields` asks for. If
    transforms end in something other than bytes, images are what they return, stacked.

    Images lie in memory that workers write and that is used again as soon as no tensor or array over it is alive. Who
    keeps batches gets copies, once workers would run out of it.

    With `mean` and `std` images are normalised as torchvision's ToTensor and Normalize do it, a batch at a time, and on
    a GPU if `device` names one: bytes go there, and the batch after the present one is ready when it is asked for.

    Workers are started by the first epoch and live until `close`, the end of a ``with`` block, or of the loader. They
    have the dataset as it was then.

    Args:
        dataset: What `open_dataset`, `concat` or `subset` returned; or any map-style dataset of (image, label).
        batch_size: Samples in a batch of this rank.
        transform: In place of the dataset's own: see `open_dataset`.
        shuffle: Each row once per epoch, in an order that depends on seed and epoch; else in the order of the rows.
        seed: Of the order and of all random numbers.
        drop_last: Leave out the incomplete step at the end of an epoch; else its batches are smaller, and equally large
            on all ranks by way of samples from the epoch's beginning.
        sampler: In place of `shuffle`: an `Order` of `packtrain._readers.loader`, of which each rank takes its part; or
            a torch Sampler, which yields the rows of this rank.
        num_workers: Processes that make batches; 0 makes them in this one, when they are asked for. ``"auto"``: as many
            as cores that affinity and the cgroup leave, divided among the ranks on this machine.
        prefetch_factor: Batches ahead, for each worker.
        collate_fn: Makes a batch of a list of samples, each a tuple of image, label and fields, in the worker. What it
            returns goes through a pipe, its tensors through shared memory of their own, as in torch's DataLoader: the
            ordinary way, for samples of different shapes, and slower.
        worker_init_fn: Called in each worker with its number.
        multiprocessing_context: ``"fork"``, ``"forkserver"``, ``"spawn"``, or a context; None: Python's default.
        fields: What to give besides: any of ``"row"``, ``"line"`` and ``"position"`` (int64 [batch]), ``"path"`` (list
            of str).
        on_error: What becomes of a damaged record: ``"raise"``, or ``"skip"``: its sample is missing in the batch, and
            a warning says so. A batch without samples is left out; with several ranks it is an error.
        rank: Of this process; None: what torch.distributed says if it is initialised, else 0.
        world_size: Number of ranks, likewise.
        device: Where tensors are to be, ``"cuda"`` or ``"cpu"``, and where the following is done; None: on the CPU.
        mean: Of each channel, for images in [0, 1]; one number for all. Images have to be uint8.
        std: Likewise; both or neither.
        dtype: Of the images; None: float32 if they are normalised, else as they are.
        batch_transform: Called last, in this process, with images and labels of a whole batch (mixup, say): returns
            both. `random`, numpy and torch (not a GPU's generator) are seeded for the batch before.
        headspace: Make a few batches, and hand them out again and again in place of all others: `stats` then tells how
            fast training would be if data cost nothing. Not for training.
        pin_memory: Hand out batches in pinned memory, as torch's DataLoader; with a GPU as `device` there is no need.

    Raises:
        UsageError: An argument is out of its range.

    Attributes:
        skipped: Damaged records left out since the loader was made.
        stats: How long the consumer waited, and what the workers did. ``print(loader.stats)`` says what it means.
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
                raise UsageError(f"transform= is for datasets of packtrain; a {type(dataset).__name__} has its own")
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
        self._finish = Finish(mean, std, dtype, batch_transform)
        self._pin = pins(pin_memory, self.device)
        self._order = order_of(dataset, sampler, shuffle)
        self._context = context_of(multiprocessing_context)
        self.stats: Final = Meter(setting_of(self.num_workers, self._maker.samples.stores, headspace=headspace))
        self._replay = Replay() if headspace else None
        self._engine: Engine | None = None
        self._stage: Stage | None = None
        self._layout: Layout | None = None
        self._seed = seed
        self._epoch = 0
        self._consumed = 0
        self._under_way = False
        """Whether the present pass has given something, so that the next one goes through another epoch."""
        self._pass: object | None = None
        """Stands for the present pass."""
        self._drawn: tuple[int, int] | None = None
        """Seed and epoch that a foreign sampler drew last."""
        self._resumed: Mapping[str, Any] | None = None
        """State from which it is to draw its next epoch."""

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self._schedule().steps()

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass, which ends any other.

        The first one begins with the state as it is, in the middle of an epoch if one was loaded. After a complete pass
        the next epoch follows, and likewise after one that was broken off; one that gave nothing does not count.
        """
        if self._under_way:
            self._move(self._epoch + 1)
        self._pass = object()
        return self.stats.timed(self._batches(self._pass))

    def set_epoch(self, epoch: int) -> None:
        """The next pass goes through this epoch; from its beginning, unless a state in it has just been loaded."""
        if require("epoch", epoch, 0) != self._epoch or self._under_way:
            self._move(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, between two steps; that of any rank will do for all of them.

        Batches that were handed out count, the one the consumer works on included, those made ahead do not. torch's
        ``Stateful`` protocol: torchdata, Lightning and ``torch.distributed.checkpoint`` ask for it.
        """
        order = self._ready()
        sampler = None
        if isinstance(order, SamplerOrder):
            sampler = {**order.state(), "rank": self.rank, "world_size": self.world_size}
        return LoaderState(self._seed, self._epoch, self._consumed, len(order), type(order).__name__, sampler).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state, with whatever batch size, workers and ranks this loader has.

        The next pass hands out what is left of the epoch: every position that was not yet handed out, and no other.

        Raises:
            UsageError: It is the state of another dataset or kind of order; or, with a foreign sampler, of another
                number of ranks, for only packtrain's orders can be dealt out anew.
        """
        found = LoaderState.from_dict(state)
        order = type(self._order).__name__
        if found.order != order:
            raise UsageError(f"the state is that of a loader with order {found.order}, this one has {order}")
        if found.sampler is None:
            if found.length != len(self._order):
                raise UsageError(
                    f"the state is that of a loader with {found.length} positions in an epoch, this one has "
                    f"{len(self._order)}: is it another dataset?"
                )
        elif found.sampler.get("world_size") != self.world_size:
            raise UsageError(
                f"the state was saved by {found.sampler.get('world_size')} ranks, now there are {self.world_size}; a "
                "foreign sampler can go on with the same number only, packtrain's own orders with any"
            )
        self._move(found.epoch)
        self._seed, self._consumed = found.seed, found.consumed
        self._resumed, self._drawn = found.sampler, None
        if found.sampler is not None and found.sampler.get("rank") != self.rank:
            # Another rank's rows were others.
            self._resumed = {name: value for name, value in found.sampler.items() if name != "crc32c"}

    def sample(self, position: int) -> tuple[Any, ...]:
        """The sample at a position of the present epoch: image and label as the dataset gives them, and the fields.

        It is made in this process, with the random numbers that belong to the position.

        Raises:
            IndexError: The epoch has no such position.
            PacktrainError: It cannot be made.
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
        """Ends the workers. Batches handed out stay valid; another pass starts workers again."""
        self._pass = None
        if self._engine is not None:
            self.stats.detach()
            self._engine.close()
            self._engine = None
        if self._stage is not None:
            self._stage.close()
            self._stage = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _move(self, epoch: int) -> None:
        self._pass = None
        self._under_way = False
        self._epoch, self._consumed, self._resumed = epoch, 0, None

    def _schedule(self) -> Schedule:
        # A foreign sampler has dealt the rows out already.
        foreign = isinstance(self._order, SamplerOrder)
        rank, world_size = (0, 1) if foreign else (self.rank, self.world_size)
        return Schedule(len(self._order), self.batch_size, rank, world_size, self.drop_last)

    def _keys(self) -> tuple[int, int]:
        """Of the epoch's order, and of its random numbers."""
        # The positions of a foreign sampler are those of one rank; each draws numbers of its own.
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

    def _batches(self, this: object) -> Iterator[Any]:
        try:
            self._require_present(this)
            self._ready()
            run = self._run() if self._schedule().steps(self._consumed) else iter(())
            while batch := next(run, None):
                self._consumed, self._under_way = batch.job.consumed, True
                self._note_skipped(batch.made)
                found = [batch.value]
                # A variable would keep the batch's memory after the consumer has dropped it.
                del batch
                if found[0] is not None:
                    yield found.pop()
                self._require_present(this)
            self._move(self._epoch + 1)
        except (GeneratorExit, DatasetError, UsageError):
            raise
        except BaseException:
            # A worker may be dead, or what it said half read: nothing of this can be used again.
            self.close()
            raise

    def _require_present(self, this: object) -> None:
        if self._pass is not this:
            raise UsageError("this pass has ended: another one was begun, or the loader was moved or closed")

    def _jobs(self) -> Iterator[Job]:
        schedule, order = self._schedule(), self._order
        # Rows of several steps at a time cost less, but only who takes all of them gets them in one piece.
        order = Ahead(order) if schedule.world_size == 1 else order
        order_key, key = self._keys()
        consumed = self._consumed
        while step := schedule.step(consumed):
            consumed = step.consumed
            yield Job(key, step.positions, _rows(order, order_key, step.positions), consumed)

    def _run(self) -> Iterator[Finished]:
        """The batches of a pass, as the consumer gets them."""
        layout = self._layout = self._layout or self._probed()
        if self._engine is None:
            self._engine = (
                SerialEngine(self._maker, layout)
                if not self.num_workers
                else ParallelEngine(
                    self._maker, layout, self.num_workers, self.prefetch_factor, self._context, self.worker_init_fn
                )
            )
            self.stats.attach(self._engine.gauges())
        if self._stage is None:
            # Nothing here may refer to the loader: workers end as soon as it is dropped.
            tensors = partial(tensors_of, layout=layout, fields=self._maker.samples.fields)
            self._stage = stage_of(self.device, self._finish, tensors, self._engine, pin=self._pin)
        return self._replay.run(self._jobs(), self._made) if self._replay else self._made(self._jobs())

    def _made(self, jobs: Iterator[Job]) -> Iterator[Finished]:
        assert self._engine is not None and self._stage is not None
        return self._stage.run(self.stats.collected(self._engine.run(jobs)))

    def _probed(self) -> Layout:
        """The layout that the next samples of the epoch have."""
        order_key, key = self._keys()
        positions = range(self._consumed, min(len(self._order), self._consumed + _TRIES))
        rows = self._order.rows(order_key, positions.start, positions.stop)
        # Another epoch of a foreign sampler may be longer.
        size = self.batch_size if isinstance(self._order, SamplerOrder) else min(self.batch_size, len(self._order))
        with preserved():
            return self._maker.layout(size, key, positions, rows.tolist())

    def _note_skipped(self, made: Made) -> None:
        for reason in made.skipped[: max(0, _WARNINGS - self.skipped)]:
            warnings.warn(f"left out: {reason}", RuntimeWarning, stacklevel=4)
        self.skipped += len(made.skipped)
        self.stats.count(made.size, len(made.skipped))
        if not made.size and self.world_size > 1:
            raise LoaderError(f"all records of a batch are damaged, the other ranks have theirs: {made.skipped[0]}")


def _rows(order: Order, key: int, positions: Any) -> Any:
    """The rows at consecutive positions, or at some that go over the end of the epoch to its beginning."""
    first, last = int(positions[0]), int(positions[-1])
    if last - first == len(positions) - 1:
        return order.rows(key, first, last + 1)
    return np.concatenate([order.rows(key, position, position + 1) for position in positions.tolist()])
