"""Tar shards read by DALI's own reader, in DALI's order, with DALI's random crops; packtrain only says where they are.

What a sample is drawn with and when it comes is decided inside DALI, so none of it can be named, compared or resumed.
`DaliLoader` is the loader that can do this.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Never, Self, cast

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from packtrain._core.arguments import choice, flag, whole
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, LoaderError, UsageError
from packtrain._core.keys import mixed
from packtrain._core.opening import read_regular
from packtrain._core.problems import reading
from packtrain._formats.tar.reader import check_dali_index
from packtrain._readers.dataset.image_dataset import ImageDataset, samples_of
from packtrain._readers.dataset.samples import PackedSamples
from packtrain._readers.dataset.store import NO_LABEL, RecordStore
from packtrain._readers.loader.arguments import TORCHS, refuse, require_dataset, with_transform
from packtrain._readers.loader.batches import Made
from packtrain._readers.loader.device import device_of, transfer_of
from packtrain._readers.loader.engine import Batch, Engine, Job
from packtrain._readers.loader.passes import Token
from packtrain._readers.loader.postprocess import BatchTransform, Postprocess
from packtrain._readers.loader.ranks import Place, Ranks, Seed
from packtrain._readers.transforms.geometric import RandomHorizontalFlip, RandomResizedCrop
from packtrain._readers.transforms.undecoded import require_plannable

from .arguments import DECODE, gpu_of, hints_of, require_dali, threads_of
from .forks import left_alone_by_children
from .graph import INTERPOLATIONS

if TYPE_CHECKING:
    from torch.utils.data import Dataset

_INSTEAD: Final = "packtrain.dali.DaliLoader can do it"
_ADVICE: Final = f"DALI's reader cannot do it: {_INSTEAD}"
_REFUSED: Final[Mapping[str, tuple[object, str]]] = {
    **TORCHS,
    "num_workers": (object(), "DALI's threads do the work of workers: give num_threads="),
    **dict.fromkeys(("sampler", "generator"), (None, _ADVICE)),
    "fields": ((), _ADVICE),
    "on_error": ("raise", f"DALI's reader ends with the first damaged image: {_INSTEAD}"),
}
# What packed shards name images that DALI decodes.
_IMAGES: Final = "jpg;jpeg;png;webp;bmp;tif;tiff;ppm;pgm;pbm"
_KIND: Final = "packtrain.dali.WebdatasetLoader"


class WebdatasetLoader:
    """Training batches of the tar shards of a dataset, read, shuffled, cropped and decoded by NVIDIA DALI alone.

    ``for images, labels in loader`` goes through one epoch. Images are uint8 [batch, 3, height, width] in channels_last
    memory, or what `mean`, `std`, `dtype` and `batch_transform` make of them. Labels are int64 [batch]; -1 without
    labels.

    Each rank reads a part of the shards of its own, another one in each epoch. If these parts differ in size, the last
    sample of a shorter one comes twice, so that all ranks make equally many batches. Samples are shuffled within a
    buffer only. A damaged image ends the pass. Checksums are not compared.

    Args:
        dataset: A whole dataset from `open_dataset`, packed as tar, of colour images that are not stored raw.
        batch_size: Number of samples in a batch of this rank.
        transform: Transforms in place of the dataset's own: `RandomResizedCrop`, with or without
            `RandomHorizontalFlip` behind it.
        shuffle: True to shuffle samples within a buffer.
        initial_fill: Number of samples in that buffer.
        seed: Seed of DALI's random numbers, as for `packtrain.Loader`.
        drop_last: True to drop the last batch of an epoch if it is smaller.
        num_threads: As for `DaliLoader`.
        prefetch_factor: As for `DaliLoader`.
        rank: As for `packtrain.Loader`.
        world_size: As for `packtrain.Loader`.
        device: As for `packtrain.Loader`.
        mean: As for `packtrain.Loader`.
        std: As for `packtrain.Loader`.
        dtype: As for `packtrain.Loader`.
        batch_transform: As for `packtrain.Loader`.
        decode: As for `DaliLoader`.
        host_memory_padding: As for `DaliLoader`.
        device_memory_padding: As for `DaliLoader`.
        preallocate_width_hint: As for `DaliLoader`.
        preallocate_height_hint: As for `DaliLoader`.
        unknown: Not for use: refuses what this loader does not have, and says what it has instead.

    Raises:
        UsageError: An argument is unknown, of the wrong type or out of its range, or DALI's reader cannot read the
            dataset or run the transform.
        CorruptFile: An index of DALI's beside a shard is missing or damaged.
        MissingDependency: DALI is not installed.

    Attributes:
        epoch: Number of the epoch of the present pass; if that has handed out nothing, of the next pass.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        transform: Any = None,
        shuffle: bool = False,
        initial_fill: int = 1024,
        seed: int | None = None,
        drop_last: bool = False,
        num_threads: int | Literal["auto"] = "auto",
        prefetch_factor: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device | None = None,
        mean: float | Iterable[float] | None = None,
        std: float | Iterable[float] | None = None,
        dtype: torch.dtype | None = None,
        batch_transform: BatchTransform | None = None,
        decode: Literal["cpu", "mixed"] = "cpu",
        host_memory_padding: int | None = None,
        device_memory_padding: int | None = None,
        preallocate_width_hint: int | None = None,
        preallocate_height_hint: int | None = None,
        **unknown: Never,
    ) -> None:
        refuse("WebdatasetLoader", unknown, self._arguments, _REFUSED)
        self.batch_size: Final = whole("batch_size", batch_size, 1)
        self.drop_last: Final = flag("drop_last", drop_last)
        self._dataset: Final = require_dataset(dataset) if transform is None else with_transform(dataset, transform)
        shards = shards_of(self._dataset)
        self._graph: Final = _Graph(
            shards,
            *_crop_and_flip(shards.samples),
            self.batch_size,
            whole("initial_fill", initial_fill, 1) if flag("shuffle", shuffle) else None,
            threads_of(num_threads),
            whole("prefetch_factor", prefetch_factor, 1),
            gpu_of(choice("decode", decode, DECODE), device),
            hints_of(
                decode,
                host_memory_padding=host_memory_padding,
                device_memory_padding=device_memory_padding,
                preallocate_width_hint=preallocate_width_hint,
                preallocate_height_hint=preallocate_height_hint,
            ),
        )
        self._identity: Final = shards.samples.store.identity
        self._ranks: Final = Ranks(rank, world_size)
        self._seed: Final = Seed(seed, None, self._ranks)
        self._device: Final = device_of(device)
        self._postprocess: Final = Postprocess(mean, std, dtype, batch_transform)
        require_dali()
        self.epoch = 0
        self._handed_out = 0
        """Number of batches of the present epoch that were handed out."""
        self._look = False
        """True if that is one batch, and the pass did not fail."""
        self._pipeline: Any = None
        """At the beginning of the present epoch, unless a pass is under way; None if it has to be made."""
        self._process = os.getpid()
        """The process that the pipeline was made in."""
        self._pass: Token | None = None
        """Stands for the present pass."""

    _arguments: ClassVar[Mapping[str, object]] = __init__.__annotations__

    def __len__(self) -> int:
        """Number of batches in a whole epoch."""
        share = self._share(self._ranks.now())
        return share // self.batch_size if self.drop_last else -(-share // self.batch_size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Begins a pass through the next epoch, which ends any other pass.

        A pass that was left after its first batch was a look: the epoch begins anew.
        """
        if self._handed_out:
            self.set_epoch(self.epoch + (not self._look))
        self._pass = this = Token()
        return self._batches(this)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass go through this epoch, from the beginning."""
        epoch = whole("epoch", epoch, 0)
        if epoch != self.epoch or self._handed_out:
            self.close()
            self.epoch, self._handed_out = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """The state of the loader between two epochs.

        Raises:
            UsageError: An epoch is under way. Only DALI knows which of its samples are left.
        """
        if 0 < self._handed_out < len(self):
            raise UsageError(
                f"{self._handed_out} of {len(self)} batches of the epoch were handed out, and DALI's reader can only "
                "continue at the beginning of an epoch: save the state there, or use packtrain.dali.DaliLoader, which "
                "continues anywhere"
            )
        epoch = self.epoch + bool(self._handed_out)
        return {"kind": _KIND, "dataset": self._identity, "epoch": epoch, "seed": self._seed.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the epoch of a state. Its order and crops are not those that the saved loader goes on with.

        Raises:
            UsageError: The state is of another loader or another dataset.
        """
        if state.get("kind") != _KIND:
            raise UsageError(
                "this is no state of a packtrain.dali.WebdatasetLoader: only such a loader can load its own"
            )
        if state.get("dataset") != self._identity:
            raise UsageError("the state belongs to another dataset")
        self.set_epoch(state["epoch"])
        if state["seed"] is not None:
            self._seed.load(whole("seed", state["seed"]))
        self.close()

    def close(self) -> None:
        """Ends DALI's threads. Batches that were handed out stay valid, and another pass starts threads again."""
        self._pass = None
        self._pipeline = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        rank, world_size = self._ranks.now()
        return (
            f"WebdatasetLoader({self._dataset!r}, batch_size={self.batch_size}, threads={self._graph.threads}, "
            f"rank {rank} of {world_size}, epoch {self.epoch})"
        )

    def __getstate__(self) -> dict[str, Any]:
        # DALI's threads are those of this process.
        return {**vars(self), "_pipeline": None, "_pass": None}

    def _share(self, place: Place) -> int:
        """Number of samples of each rank."""
        return -(-len(self._dataset) // place.world_size)

    def _batches(self, this: Token) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        place, steps = self._ranks.now(), len(self)
        self._require_present(this, place)
        key = mixed(self._seed.settle(), self.epoch)
        if self._pipeline is None or self._process != os.getpid():
            self._pipeline, self._process = self._graph.built(place, key), os.getpid()
        source = _Source()
        # A transfer asks no more of an engine.
        engine = cast(Engine, source)
        transfer = transfer_of(self._device, self._postprocess, _tensors, _as_it_is, engine, pin=False)
        try:
            run = transfer.run(source.batches(self._pipeline, self._jobs(key, self._share(place))))
            while self._handed_out < steps:
                found = [next(run).value]
                self._handed_out += 1
                self._look = self._handed_out == 1
                # A variable would keep the batch's memory after the consumer has dropped it.
                yield found.pop()
                self._require_present(this, place)
            # What is not handed out has to be gone through: the next epoch follows.
            for _ in run:
                pass
            self.epoch, self._handed_out = self.epoch + 1, 0
        except BaseException as error:
            if self._pass is this:
                # Nobody has left a pass that failed.
                self._look &= isinstance(error, GeneratorExit)
                self.close()
            raise
        finally:
            transfer.close()

    def _jobs(self, key: int, share: int) -> Iterator[Job]:
        for start in range(0, share, self.batch_size):
            positions = np.arange(start, min(start + self.batch_size, share))
            yield Job(key, positions, np.empty(0, np.int64), start // self.batch_size)

    def _require_present(self, this: Token, place: Place) -> None:
        this.require_own_process()
        if self._pass is not this:
            raise UsageError("this pass has ended: another one was begun, or the loader was moved or closed")
        self._ranks.require(place)


@dataclass(frozen=True)
class Shards:
    """What DALI reads.

    Attributes:
        paths: The shards.
        indexes: DALI's index of each.
        samples: The dataset's own.
        labelled: True if each sample has a label.
        mapped: True to map them, False to read them by system calls.
    """

    paths: list[str]
    indexes: list[str]
    samples: PackedSamples
    labelled: bool
    mapped: bool


def shards_of(dataset: Any) -> Shards:
    """The shards of a dataset, for DALI's reader.

    Raises:
        UsageError: DALI's reader cannot read it.
        CorruptFile: An index of DALI's is missing, or would make DALI end the process.
        UnreadableFile: A shard or its index cannot be read.
    """
    samples = samples_of(dataset)
    if not (isinstance(samples, PackedSamples) and isinstance(samples.store, RecordStore)):
        found = repr(dataset) if isinstance(dataset, ImageDataset) else f"an object of type {type(dataset).__name__}"
        raise UsageError(f"DALI's reader reads a whole dataset from open_dataset, not {found}: {_INSTEAD}")
    store = samples.store
    manifest = store.manifest
    numbers = [number for number, shard in enumerate(manifest.shards) if shard.records]
    labels = manifest.labels
    reasons = {
        "a dataset that is read from an object store": store.chunks is not None,
        f"shards of format {manifest.format}": manifest.format != "tar",
        "shards without an index of DALI's": any(not manifest.shards[number].sidecars for number in numbers),
        "a dataset without samples": not numbers,
        "samples of named fields": samples.fields is not None,
        "labels other than one whole number": str(labels) not in ("int", "none"),
        "a target_transform": samples.target_transform is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UsageError(f"{store.path}: DALI's reader does not take {reason}: {_INSTEAD}")
    paths = [manifest.shard_path(store.path, number) for number in numbers]
    indexes = [store.path / manifest.shards[number].sidecars[0].name for number in numbers]
    for path, index in zip(paths, indexes, strict=True):
        _check_index(path, index)
    return Shards(
        [str(path) for path in paths],
        [str(index) for index in indexes],
        samples,
        labels.kind != "none",
        store.io == "mmap",
    )


def _check_index(shard: Path, index: Path) -> None:
    with reading(shard):
        size = os.stat(shard).st_size
    with reading(index):
        content = read_regular(index, MOST_BYTES)
    try:
        check_dali_index(content, size)
    except ValueError as error:
        message = f"{index} is damaged: {error}. DALI would crash: packtrain.dali.DaliLoader does without it"
        raise CorruptFile(message, file=index.name) from error


def _crop_and_flip(samples: PackedSamples) -> tuple[RandomResizedCrop, float]:
    """The random crop of a transform, and the probability of the flip behind it.

    Raises:
        UsageError: It does something else.
    """
    image = samples.store.schema.image
    if image is None or image.store is None:
        raise UsageError(f"{samples.store.path}: its samples have no image")
    compose = require_plannable(samples.compose, image.store)
    if compose.finishing:
        raise UsageError(f"{compose.finishing[0]}: give mean=, std= and dtype= to this loader in its place")
    match compose.fused:
        case [RandomResizedCrop() as crop]:
            flip = 0.0
        case [RandomResizedCrop() as crop, RandomHorizontalFlip(p=flip)]:
            pass
        case _:
            raise UsageError(
                f"{compose}: DALI's reader takes RandomResizedCrop, and RandomHorizontalFlip behind it. {_INSTEAD}; "
                "that is also the one for validation"
            )
    if crop.interpolation not in INTERPOLATIONS:
        raise UsageError(f"interpolation={crop.interpolation!r}: DALI has {', '.join(INTERPOLATIONS)}")
    return crop, flip


@dataclass(frozen=True)
class _Graph:
    """DALI's pipeline.

    Attributes:
        shards: What it reads.
        crop: The random crop.
        flip: Probability of a horizontal flip.
        batch_size: Number of samples in a batch.
        buffer: Number of samples that it shuffles; None: it does not shuffle.
        threads: Number of its threads.
        depth: Number of batches that it makes ahead.
        gpu: Number of the GPU that decodes; None: the CPU does.
        hints: Further arguments of the decoder.
    """

    shards: Shards
    crop: RandomResizedCrop
    flip: float
    batch_size: int
    buffer: int | None
    threads: int
    depth: int
    gpu: int | None
    hints: Mapping[str, int]

    def built(self, place: Place, key: int) -> Any:
        """A pipeline of images, uint8 [batch, height, width, 3], and the digits of labels, if there are any.

        Args:
            place: Rank, and number of ranks.
            key: Decides its random numbers, with the rank.

        Raises:
            LoaderError: DALI cannot read the shards.
        """
        from nvidia.dali import Pipeline, fn, types

        seed = mixed(key, place.rank) >> 1
        pipeline = Pipeline(
            self.batch_size, self.threads, self.gpu, seed=seed, prefetch_queue_depth=self.depth, exec_dynamic=True
        )
        with pipeline:
            found = fn.readers.webdataset(
                paths=self.shards.paths,
                index_paths=self.shards.indexes,
                ext=[_IMAGES, "cls"] if self.shards.labelled else [_IMAGES],
                missing_component_behavior="error",
                dont_use_mmap=not self.shards.mapped,
                shard_id=place.rank,
                num_shards=place.world_size,
                random_shuffle=self.buffer is not None,
                initial_fill=self.buffer or 1,
                # Each epoch begins with a batch.
                pad_last_batch=True,
            )
            data, *labels = found if self.shards.labelled else [found]
            images = fn.decoders.image_random_crop(
                data,
                device="cpu" if self.gpu is None else "mixed",
                output_type=types.RGB,
                # packtrain turns no image by its EXIF orientation, as torchvision does.
                adjust_orientation=False,
                jpeg_fancy_upsampling=True,
                random_area=list(self.crop.scale),
                random_aspect_ratio=list(self.crop.ratio),
                **self.hints,
            )
            filters = getattr(types, INTERPOLATIONS[self.crop.interpolation])
            images = fn.resize(images, size=self.crop.size, interp_type=filters, antialias=True)
            if self.flip:
                images = fn.flip(images, horizontal=fn.random.coin_flip(probability=self.flip))
            pipeline.set_outputs(images, *labels)
        try:
            pipeline.build()
        except RuntimeError as error:
            raise LoaderError(f"DALI's reader cannot read these shards: {_INSTEAD}. DALI says: {error}") from error
        return left_alone_by_children(pipeline)


class _Source:
    """Makes batches with a pipeline; what a transfer asks of an engine."""

    def memory(self) -> None:
        """Each batch has memory of its own."""

    def ready(self) -> bool:
        """DALI does not say whether it is. It works ahead, so the next batch is not far."""
        return True

    def batches(self, pipeline: Any, jobs: Iterator[Job]) -> Iterator[Batch]:
        """One batch for each job."""
        for job in jobs:
            try:
                images, *labels = pipeline.run()
            except RuntimeError as error:
                raise LoaderError(
                    f"DALI's reader ended at batch {job.consumed} of its epoch. packtrain.dali.DaliLoader says which "
                    f"image is damaged, and goes on with on_error='skip'. DALI says: {error}"
                ) from error
            # The last batch of an epoch is padded.
            size = len(job.positions)
            numbers = [_number(digits) for digits in labels[0]] if labels else [NO_LABEL] * len(images)
            value = images.as_tensor(), torch.tensor(numbers[:size])
            # In a list, because a variable would keep the batch alive after the consumer has dropped it.
            found = [Batch(job, Made(size), value)]
            del images, labels, value
            yield found.pop()


def _number(digits: Any) -> int:
    return int(bytes(np.asarray(digits)))


def _tensors(batch: Batch, *, apart: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch as tensors. Images are a view of DALI's memory, unless that is a GPU's."""
    pixels, labels = batch.value
    images = from_dlpack(pixels)
    if images.is_cuda:
        # DALI does not know when torch has read it.
        images = images.clone()
        torch.cuda.current_stream(images.device).synchronize()
    return images[: batch.made.size].permute(0, 3, 1, 2), labels


def _as_it_is(value: Any, batch: Batch) -> Any:
    return value
