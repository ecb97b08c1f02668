"""The loader: batches of a dataset, made by worker processes, in an order that can be resumed anywhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypedDict

from packtrain._core.arguments import choice, flag, function, number, whole
from packtrain._core.errors import DatasetError, LoaderError, RemoteError, UsageError
from packtrain._core.printable import printable

from ..dataset.growing import GrowingDataset
from ..dataset.image_dataset import VersionDataset, is_remote
from ..monitoring.figures import setup_of
from ..monitoring.stats import Meter
from .arguments import (
    context_of,
    loader_class,
    order_of,
    prefetch_factor_of,
    require_dataset,
    with_transform,
    workers_of,
)
from .assembly import BatchSteps
from .batches import BatchMaker, Made
from .chunk_cache import ChunkCacheHooks
from .cuda_decoder import decode_of
from .dataset_hooks import DatasetHooks
from .device import device_of, pins, transfer_of
from .engine import Backend, Batch, ParallelEngine, SerialEngine
from .frameworks import UNPREPARED, EpochSampler, InOrder, holds_gradients
from .generations import GenerationHooks
from .order import Order, Sequential
from .pipeline import Pipeline
from .postprocess import BatchTransform, Postprocess
from .progress import Pass, Progress
from .randomness import preserved
from .ranks import Ranks, Seed, World
from .sampler import SamplerOrder
from .samples import SampleMaker, clear_frames
from .schedule import Schedule
from .state import LoaderState, identity_of
from .version_hooks import VersionHooks
from .workers import WorkerOptions

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset, Sampler

# Number of damaged records that are warned about, and of images that DALI or the GPU refused.
_WARNINGS: Final = 10
# Seconds, a year: more cannot be waited for.
_LONGEST: Final = 365 * 86400.0
_LOOKS: Final = 10
_ALWAYS_THE_SAME: Final = (
    f"{_LOOKS} passes in a row were left after their first batch, which was the same each time, because such a pass "
    "does not count. Go through the loader by `for batch in loader`; or call `loader.set_epoch(loader.epoch + 1)` "
    "after each pass, if a single batch of an epoch is wanted"
)


class CommonOptions(TypedDict, total=False):
    """Arguments of `Loader` that mean the same whatever makes the batches."""

    shuffle: bool | None
    seed: int | None
    drop_last: bool
    sampler: Order | Callable[[Any], Order] | Sampler[int] | Iterable[int] | None
    prefetch_factor: int | None
    fields: Sequence[str]
    on_error: Literal["raise", "skip"]
    rank: int | None
    world_size: int | None
    device: str | torch.device | None
    mean: float | Iterable[float] | None
    std: float | Iterable[float] | None
    dtype: torch.dtype | None
    batch_transform: BatchTransform | None
    pin_memory: bool


@loader_class()
class Loader:
    """Batches of a dataset for a training loop. Arguments that torch's DataLoader has, too, mean the same here.

    ``for images, labels in loader`` goes through one epoch. Images are uint8 [batch, 3, height, width] in channels_last
    memory. Labels are what torch's default_collate makes of them, int64 [batch] for integers. Then follows what
    `fields` asks for. If the transforms return something other than bytes, images are what they return, stacked. With
    `packtrain.transforms.Views`, images are a tuple of tensors, one for each view.

    With a dataset from ``open_dataset(fields=...)``, a batch is a named tuple of its fields, then of what `fields` asks
    for (``batch.image``, ``batch.caption``). Images, masks, and arrays of one shape are tensors [batch, ...]; arrays
    whose first size differs are a `packtrain.Ragged`; texts, JSON values and bytes are lists. Masks are uint8 or int32
    [batch, height, width]: ``cross_entropy`` needs ``batch.mask.long()``, best called on the device. If fields are
    optional, ``batch.present`` comes last, a named tuple of a vector for each of these, bool [batch]. Where a sample is
    without a field, the batch has zeros, an empty text, None as JSON value, no bytes, or no entries.

    Images lie in memory that workers write to, and that is used again as soon as no tensor or array over it is alive.
    If a program keeps so many batches that the workers would run out of memory, it gets copies.

    With `mean` and `std`, images are normalised as torchvision's ToTensor and Normalize do it, a batch at a time. With
    a GPU as `device` this is done there, on bytes that were copied to it, and the next batch is ready on the GPU when
    it is asked for.

    A pass that is left after its first batch was a look: ``next(iter(loader))`` uses up no epoch, and the next pass
    begins where that one began. A pass that is left later, or with the last batch of the epoch, uses up its epoch.

    Workers are started by the first epoch. They live until `close`, until the end of a ``with`` block, or until the
    loader is deleted. `transform` can be set at any time and takes effect with the next pass. The workers live on
    if it can be pickled. All else stays as it was when the loader was made.

    Args:
        dataset: A dataset from `open_dataset`, `concat` or `subset`, or any map-style dataset of (image, label) or of
            samples of packtrain's; with `collate_fn`, of anything.
        batch_size: Number of samples in a batch of this rank.
        shuffle: True for each row once per epoch, in an order that depends on seed and epoch; False for the order of
            the rows. Training needs True.
        seed: Seed of the order and of all random numbers. None: torch's seed (`torch.initial_seed`) when the first pass
            begins, that of rank 0 for all ranks of torch.distributed.
        drop_last: True to drop the incomplete step at the end of an epoch. False to make smaller batches of it, which
            samples from the beginning of the epoch fill up so that they are equally large on all ranks.
        sampler: An order in place of `shuffle`: a `packtrain.orders.Order`, of which each rank takes its part, or a
            torch Sampler, which yields the rows of this rank. Or a function that is called with the dataset and
            returns a `packtrain.orders.Order`; with a growing cache, it is called for each generation.
        num_workers: Number of processes that make batches. 0 makes them in this process, when they are asked for.
            ``"auto"`` takes as many as the cores that affinity and the cgroup allow, divided among the ranks on this
            machine.
        prefetch_factor: Number of batches that each worker makes ahead; None: 2.
        timeout: Seconds to wait for the workers before a pass ends with an error; 0: no limit. Like all that is about
            workers, it has no effect if there are none.
        collate_fn: Makes a batch of a list of samples, each as the dataset gives it: a tuple of image and label, or a
            named tuple of fields. What `fields` asks for follows in the same tuple. Called in the worker. What it
            returns goes through a pipe, and its tensors through shared memory of their own, as in torch's DataLoader.
            That allows samples of different shapes, but is slower.
        worker_init_fn: Called in each worker with its number.
        multiprocessing_context: ``"fork"``, ``"forkserver"``, ``"spawn"``, or a context; None: Python's default.
        fields: What to hand out in addition: any of ``"row"``, ``"line"`` and ``"position"`` (int64 [batch]) and
            ``"path"`` (list of str). Which fields of the dataset there are, ``open_dataset(fields=...)`` says.
        on_error: What to do about a damaged record: ``"raise"`` an error, or ``"skip"`` it, which leaves its sample out
            of the batch with a warning. A batch without any samples is left out; with several ranks that is an error.
        rank: Rank of this process; None: the rank in torch.distributed if that is initialised when a pass begins,
            otherwise 0.
        world_size: Number of ranks; None: as for `rank`. Ranks that are given need a `seed`.
        device: Device of the tensors, ``"cuda"`` or ``"cpu"``, where the following steps are also done; None: the CPU.
        mean: Mean of each channel, for images in [0, 1], or one number for all channels. Images must be uint8. Of many
            fields, `mean`, `std` and `dtype` are for ``image`` only, not for other fields with pixels.
        std: Standard deviation of each channel, or one number for all channels. Give both `mean` and `std`, or neither.
        dtype: Dtype of the images; None: float32 if they are normalised, otherwise unchanged.
        batch_transform: Called last, in this process, with images and labels of a whole batch, and returns both; for
            MixUp, for example. With named fields it gets the whole batch, and what it returns is handed out. `random`,
            numpy and torch (but not a GPU's generator) are seeded for each batch.
        decode: Where images are decoded: ``"cpu"``, by the workers, or ``"cuda"``, by the GPU that is `device`.
            Experimental: it has not been run on a GPU yet. Then transforms may only crop, resize and flip, and take
            steps on tensors; pixels differ a little from Pillow's, see docs/gpu-decoding.md.
        pin_memory: True to hand out batches in pinned memory, as torch's DataLoader does. Only then is
            ``images.to("cuda", non_blocking=True)`` safe, see docs/frameworks.md. Not needed with a GPU as `device`.

    Raises:
        UsageError: An argument is unknown, of the wrong type or out of its range.

    Attributes:
        stats: How long the consumer waited, and what the workers did. ``print(loader.stats)`` names the bottleneck.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool | None = False,
        seed: int | None = None,
        drop_last: bool = False,
        sampler: Order | Callable[[Any], Order] | Sampler[int] | Iterable[int] | None = None,
        num_workers: int | Literal["auto"] = "auto",
        prefetch_factor: int | None = 2,
        timeout: float = 0,
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
        decode: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        self.batch_size: Final = whole("batch_size", batch_size, 1)
        self.drop_last: Final = flag("drop_last", drop_last)
        self._sampler: Final = sampler
        self.num_workers: Final = workers_of(num_workers)
        self.prefetch_factor: Final = prefetch_factor_of(prefetch_factor)
        self.timeout: Final = number("timeout", timeout, 0, _LONGEST, "a number of seconds, at least 0")
        self.device: Final = device_of(device, decode)
        self._dataset = require_dataset(dataset)
        self._ranks = Ranks(rank, world_size)
        self._decode = decode_of(decode, self.device)
        backend, undecoded = self._backend, self._backend.undecoded or self._decode is not None
        if function("collate_fn", collate_fn) is not None and undecoded:
            raise UsageError(
                "collate_fn gets decoded images, but here they are decoded after it: leave it out (batch_transform "
                "changes whole batches), or take packtrain.Loader with decode='cpu'"
            )
        self._samples_of: Final = partial(
            SampleMaker, fields=fields, finish=collate_fn is not None, undecoded=undecoded
        )
        skip = choice("on_error", on_error, ("raise", "skip")) == "skip"
        # Steps on tensors come after decoding.
        leave = undecoded or (self.device is not None and self.device.type == "cuda")
        self._batches_of: Final = partial(BatchMaker, collate_fn=collate_fn, skip=skip, leave=leave)
        self._last_maker: BatchMaker | None = None
        """Makes the batches of the present pass; None after `close`, so that a loader keeps no generation."""
        maker = self._maker_for(dataset)
        self._progress = Progress(
            order_of(dataset, sampler, shuffle),
            self.batch_size,
            self.drop_last,
            self._ranks,
            Seed(seed, self._ranks),
            identity_of(maker.samples.stores),
        )
        self.stats: Final = Meter(
            setup_of(self.num_workers, maker.samples.stores, undecoded=undecoded, threads=backend.threads)
        )
        self._hooks = self._hooks_of(partial(order_of, sampler=sampler, shuffle=shuffle))
        self._postprocess = Postprocess(mean, std, dtype, batch_transform)
        self._postprocess.check(maker.samples.finishers)
        context = context_of(multiprocessing_context)
        # Not an attribute: Lightning would set it.
        init = function("worker_init_fn", worker_init_fn)
        options = WorkerOptions(self.num_workers, self.prefetch_factor, context, init, self.timeout)
        own = partial(ParallelEngine, options=options) if self.num_workers else SerialEngine
        self._pipeline = Pipeline(
            backend.engine or own,
            partial(transfer_of, device=self.device, pin=pins(flag("pin_memory", pin_memory), self.device)),
            partial(BatchSteps, decoder=self._decode, postprocess=self._postprocess),
            self.stats,
        )
        self._replays = False
        """True within `headspace`."""
        self._skipped = 0
        self._warned = set[str]()
        """Warnings that each epoch would give again."""
        self._pass: object | None = None
        """Stands for the present pass."""
        self._made = True
        """From now on, attributes cannot be set: it would change nothing."""

    _arguments: ClassVar[frozenset[str]]
    """The arguments of the constructor. Only packtrain's own classes say theirs."""
    _backend = Backend()
    """Makes the batches. A subclass sets its own before it calls the constructor."""

    def _hooks_of(self, order: Callable[[Any], Order]) -> DatasetHooks:
        """Return the hooks for the dataset; see their classes for errors."""
        progress, dataset, ranks, meter = self._progress, self._dataset, self._ranks, self.stats
        if isinstance(dataset, GrowingDataset):
            return GenerationHooks(progress, dataset, order, ranks, meter)
        if is_remote(dataset):
            hooks: Callable[[Any], DatasetHooks] = partial(
                ChunkCacheHooks, progress, batch_size=self.batch_size, ranks=ranks, meter=meter
            )
        else:
            hooks = partial(DatasetHooks, progress)
        return VersionHooks(progress, dataset, order, hooks) if isinstance(dataset, VersionDataset) else hooks(dataset)

    @property
    def dataset(self) -> Any:
        """The dataset, with the transform that was set last."""
        return self._dataset

    @property
    def transform(self) -> Any:
        """The transform of the dataset. Another one takes effect with the next pass, in all workers."""
        return self._dataset.transform

    @transform.setter
    def transform(self, transform: Any) -> None:
        self._dataset = with_transform(self._dataset, transform)

    @property
    def rank(self) -> int:
        """Rank of this process: the one that was given, or that in torch.distributed at the moment."""
        return self._ranks.now().rank

    @property
    def world_size(self) -> int:
        """Number of ranks: the one that was given, or that in torch.distributed at the moment."""
        return self._ranks.now().world_size

    @property
    def skipped(self) -> int:
        """Number of damaged records left out since the loader was made."""
        return self._skipped

    def __setattr__(self, name: str, value: Any) -> None:
        # A user's subclass may have attributes of its own.
        known = "_arguments" in vars(type(self)) or hasattr(Loader, name) or name in self._arguments
        if known and not name.startswith("_") and name != "transform" and "_made" in vars(self):
            raise UsageError(
                f"loader.{name} cannot be set: make another Loader, and let it continue with load_state_dict if it "
                "should. Only loader.transform can be set, and set_epoch chooses the epoch"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        progress, (rank, world_size) = self._progress, self._ranks.now()
        order = type(progress.order if self._sampler is None else self._sampler).__name__
        decode = "" if self._decode is None else ", decode='cuda'"
        made_by = self._backend.description or f"workers={self.num_workers}{decode}"
        return (
            f"{type(self).__name__}({self._dataset!r}, batch_size={self.batch_size}, order={order}, {made_by}, "
            f"rank {rank} of {world_size}, epoch {progress.epoch}, {progress.consumed} samples handed out in it)"
        )

    def __len__(self) -> int:
        """Number of batches in a whole epoch."""
        return self._schedule().steps()

    @property
    def epoch(self) -> int:
        """Number of the epoch of the present pass; if that has handed out nothing, of the next pass.

        After a look, see `__iter__`, it is the epoch of the look, through which the next pass goes, too.
        """
        return self._progress.epoch

    @property
    def remaining(self) -> int:
        """Number of batches of the epoch that have not been handed out. A look counts until the next pass begins."""
        return self._schedule().steps(self._progress.consumed)

    @property
    def remainder(self) -> int:
        """Number of samples in the incomplete step that ends the epoch, over all ranks and without padding.

        0 if there is no such step; -1 if it is unknown, because a torch Sampler yields the rows of one rank only.
        """
        if isinstance(self._progress.order, SamplerOrder):
            return -1
        return self._schedule().remainder(self._progress.consumed)

    @property
    def sampler(self) -> EpochSampler:
        """Passes `set_epoch` on to the loader, for frameworks that look for it here. Nothing can be drawn from it."""
        kind = InOrder if isinstance(self._progress.order, Sequential) else EpochSampler
        return kind(self._follow)

    @property
    def batch_sampler(self) -> EpochSampler:
        """The same as `sampler`."""
        return self.sampler

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass, which ends any other pass.

        The first pass begins in the present state, which may be in the middle of an epoch if a state was loaded. Each
        later pass goes through the next epoch, even if the pass before it was stopped early.

        A pass that is left after its first batch, as ``next(iter(loader))`` leaves it, was a look: the next pass begins
        where that one began. To go on with the next epoch all the same, call ``loader.set_epoch(loader.epoch + 1)``. A
        pass that has handed out nothing does not count either.
        """
        self._leave()
        # Before the first batch is asked for, because frameworks take the length now.
        self._hooks.begin(self._dataset)
        self._pass = object()
        return Pass(self._progress, self.stats.timed(self._batches(self._pass)))

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass go through this epoch, from the beginning unless a state in it has just been loaded.

        A pass that has handed out nothing counts as the next one, and a look, see `__iter__`, does not count.
        """
        epoch = whole("epoch", epoch, 0)
        if self._progress.under_way:
            self._leave()
        if epoch != self._progress.epoch:
            # Lightning calls `iter` first, and then says which epoch that is.
            waits = self._pass is not None and not self._progress.consumed
            (self._progress.rename if waits else self._progress.move)(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader between two steps. The state of any one rank can be loaded on all ranks.

        It holds everything that decides what comes next, but not the seed as long as that is not known: without
        `seed`, before the first pass.

        It counts the batches that were handed out, including the one the consumer works on, but not those made ahead.
        A look, see `__iter__`, counts until the next pass begins, because only then it is known to be one.
        This is torch's ``Stateful`` protocol, which torchdata, Lightning and ``torch.distributed.checkpoint`` use.

        After the last batch of an epoch, the state is the end of that epoch, until the pass ends or the loader is moved
        to another epoch. As in torchdata, a pass from there hands out nothing, and the pass after it goes through the
        next epoch. So a loop that continues in the epoch it was saved in finishes it, without any step. A loop that
        continues with the next epoch says so by `set_epoch`, as Lightning does by itself.
        """
        self._hooks.fit(self._dataset)
        self._hooks.keep(self._dataset)
        return self._progress.state().to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Batch size, workers and number of ranks may differ from those that saved it.

        The next pass hands out the rest of the epoch: every position that has not been handed out, and no other. The
        seed of the state is the seed from then on. If the dataset was changed since, that epoch ends on the version
        that it began with, and the next one goes through the version of this loader.

        Raises:
            UsageError: The state belongs to another dataset or another order. Or, with a foreign sampler, it was saved
                with another number of ranks: only packtrain's own orders can be divided among other ranks.
        """
        self._hooks.load(self._dataset, LoaderState.from_dict(state))
        self._pass = None

    def sample(self, position: int) -> Any:
        """Return the sample at a position of the present epoch: what the dataset returns, and what `fields` asks for.

        With `collate_fn`, it is what that function gets. It is made in this process, with the random numbers of its
        position.

        Raises:
            IndexError: The epoch has no such position.
            UsageError: The seed is not known yet, because the ranks agree on it when the first pass begins.
            PacktrainError: The sample cannot be made.
        """
        position = whole("position", position)
        dataset = self._hooks.pin(self._dataset)
        key, row = self._progress.sample(position)
        with preserved():
            return self._maker_for(dataset).sample(key, position, row)

    @contextmanager
    def headspace(self) -> Iterator[None]:
        """Measure how fast training would be if data cost nothing. Not for training.

        In a ``with`` block, each pass makes only a few batches and hands them out again and again. The loader goes
        through its epochs as it always does. ``print(loader.stats)`` says how fast that was.
        """
        self._replays = True
        try:
            yield
        finally:
            self._replays, self._pass = False, None

    def close(self) -> None:
        """End the workers. Batches that were handed out stay valid, and another pass starts workers again."""
        self._pass = None
        # The generation may be gone when the next pass begins.
        self._progress.forget_choice()
        self._hooks.close()
        self._pipeline.close()
        self._last_maker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # A pass belongs to the process that it was begun in.
        return {**vars(self), "_pass": None}

    def _follow(self, epoch: int) -> None:
        progress, looks = self._progress, self._looks
        # In an epoch after the first, a look says that the loader has begun.
        looked = (progress.again or looks) and progress.epoch > 0
        begun = looked or (progress.began if looks else progress.consumed) > 0
        if epoch > progress.epoch and (begun or not progress.epoch):
            self.set_epoch(progress.epoch + 1 if begun else epoch)

    def _maker_for(self, dataset: Any) -> BatchMaker:
        """Return what makes batches of a dataset as it is now."""
        maker = self._last_maker
        if maker is None or not maker.samples.same_dataset(dataset):
            maker = self._last_maker = self._batches_of(self._samples_of(dataset))
        maker.look_again()
        return maker

    def _schedule(self) -> Schedule:
        """Return the schedule of the epoch, as far as its samples are known."""
        self._hooks.fit(self._dataset)
        return self._progress.schedule(self._ranks.now())

    @property
    def _looks(self) -> bool:
        """True if the present pass is a look if it is left now."""
        progress = self._progress
        # Frameworks that count batches leave a pass after the last one, without asking whether there is another.
        return progress.look and progress.schedule(self._ranks.now()).steps(progress.consumed) > 0

    def _leave(self) -> None:
        self._pass = None
        progress = self._progress
        progress.look = self._looks
        if not progress.leave():
            return
        if self._last_maker is None:
            # The generation of the look may be gone since `close`.
            progress.forget_choice()
        if progress.looks == _LOOKS:
            warnings.warn(_ALWAYS_THE_SAME, RuntimeWarning, stacklevel=3)

    def _batches(self, this: object) -> Iterator[tuple[Any, int]]:
        """Yield the batches of a pass, each with the number of positions consumed once it has been handed out."""
        progress = self._progress
        try:
            world = self._ranks.now()
            self._require_present(this, world)
            # Once more: the pass may have been moved since.
            self._hooks.begin(self._dataset)
            progress.begin(world)
            # Otherwise they are not of this pass: it may be a validation, in which nothing is accumulated.
            applied = not holds_gradients()
            run = self._run(world) if progress.schedule(world).steps(progress.consumed) else iter(())
            while batch := next(run, None):
                self._note_skipped(batch.made)
                found, consumed = [batch.value] if batch.made.size else [], batch.job.consumed
                # A variable would keep the batch's memory after the consumer has dropped it.
                del batch
                if found:
                    yield found.pop(), consumed
                self._require_present(this, world)
            if not self._replays:
                self._hooks.finish()
            self._pass = None
            progress.move(progress.epoch + 1)
            if applied and UNPREPARED not in self._warned and holds_gradients():
                self._warned.add(UNPREPARED)
                warnings.warn(UNPREPARED, RuntimeWarning, stacklevel=4)
        except BaseException as error:
            # Whoever keeps the error must keep neither records nor a generation.
            clear_frames(error)
            if self._pass is this:
                # Nobody has left a pass that failed.
                progress.look &= isinstance(error, GeneratorExit)
                progress.forget_choice()
            if not isinstance(error, GeneratorExit | DatasetError | RemoteError | UsageError):
                # A worker may be dead, or its result read only in part, so nothing of this can be used again.
                self.close()
            raise

    def _require_present(self, this: object, world: World) -> None:
        if self._pass is not this:
            raise UsageError("this pass has ended: another one was begun, or the loader was moved or closed")
        self._ranks.require(world)

    def _run(self, world: World) -> Iterator[Batch]:
        """Return the batches of a pass, made with the dataset as it is now."""
        maker = self._maker_for(self._hooks.pin(self._dataset))
        self._postprocess.check(maker.samples.finishers)
        steps, remedy = maker.samples.unfused
        self.stats.describe(unfused=steps, remedy=remedy, headspace=self._replays)
        jobs = self._hooks.jobs(self._progress.jobs(world), world)
        return self._pipeline.run(maker, jobs, partial(self._progress.probe, world), replays=self._replays)

    def _note_skipped(self, made: Made) -> None:
        for reason in made.skipped[: max(0, _WARNINGS - self._skipped)]:
            warnings.warn(printable(f"left out: {reason}"), RuntimeWarning, stacklevel=5)
        self._skipped += len(made.skipped)
        for message in made.refused:
            if len(self._warned) < _WARNINGS and message not in self._warned:
                self._warned.add(message)
                warnings.warn(printable(message), RuntimeWarning, stacklevel=5)
        self.stats.count(made.size, len(made.skipped), len(made.refused))
        if not self._replays:
            self._hooks.count(made.size)
        if not made.size and self.world_size > 1:
            raise LoaderError(
                f"all records of a batch are damaged, and the other ranks would wait for this one: {made.skipped[0]}"
            )
