"""A loader of threads and two queues, as everybody writes it once.

python examples/two_queues/loader.py train.txt
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, Final

import numpy as np
import torch
from PIL import Image

Sample = tuple[str, int]
"""Path and label of an image."""
Batch = tuple[torch.Tensor, torch.Tensor]
"""Images, stacked, and their labels, int64 [batch]."""

SIDE: Final = 224
POLL: Final = 0.1
"""Seconds between two checks of a waiting thread whether the epoch was stopped."""


class TwoQueues:
    """Batches of decoded images. A reader thread fills queue one; decoding threads empty it and fill queue two.

    Args:
        samples: Path and label of each image.
        batch_size: Images per batch.
        transform: Turns a PIL image into a tensor. All tensors must have the same shape.
        decoders: Number of decoding threads; each makes whole batches.
        batches_ahead: Number of batches that queue two holds.
        shuffle: True shuffles the samples anew in each epoch.
        drop_last: True drops a last batch that is not full.
        seed: Seed of the order.
        pin_memory: True puts batches in pinned memory; None does so if there is a GPU.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        batch_size: int,
        transform: Callable[[Any], torch.Tensor],
        *,
        decoders: int = 2,
        batches_ahead: int = 4,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.transform = transform
        self.decoders = decoders
        self.batches_ahead = batches_ahead
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.random = random.Random(seed)
        self.pin_memory = torch.cuda.is_available() if pin_memory is None else pin_memory

    def __len__(self) -> int:
        full, rest = divmod(len(self.samples), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        """One epoch. Batches come in the order in which they are finished.

        Raises:
            Exception: The exception that ended a thread, once the batches before it are consumed.
        """
        epoch = _Epoch(self)
        try:
            for _ in range(len(self)):
                batch = epoch.batches.get()
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            epoch.stop()


class _Epoch:
    """The queues and threads of one epoch."""

    def __init__(self, loader: TwoQueues) -> None:
        self.loader = loader
        self.paths: Queue[Sample | None] = Queue(2 * loader.decoders * loader.batch_size)
        self.taking = threading.Lock()
        self.batches: Queue[Batch | BaseException] = Queue(loader.batches_ahead)
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self._guarded, args=(self._read,), daemon=True)]
        for _ in range(loader.decoders):
            self.threads.append(threading.Thread(target=self._guarded, args=(self._decode,), daemon=True))
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Hands an exception to the consumer, which would otherwise wait for ever."""
        try:
            work()
        except BaseException as error:
            self._put(self.batches, error)

    def _read(self) -> None:
        samples = list(self.loader.samples)
        if self.loader.shuffle:
            self.loader.random.shuffle(samples)
        for sample in samples[: len(self.loader) * self.loader.batch_size]:
            self._put(self.paths, sample)
        self._put(self.paths, None)

    def _decode(self) -> None:
        while samples := self._take():
            images = torch.stack([self.loader.transform(load(path)) for path, _ in samples])
            labels = torch.tensor([label for _, label in samples])
            if self.loader.pin_memory:
                images, labels = images.pin_memory(), labels.pin_memory()
            self._put(self.batches, (images, labels))

    def _take(self) -> list[Sample]:
        """The samples of a batch; an empty list at the end of the epoch."""
        taken: list[Sample] = []
        # One thread at a time: otherwise several threads would each end up with a part of the last batch.
        with self.taking:
            while len(taken) < self.loader.batch_size:
                # At the end only one thread gets None; the others wait until the epoch is stopped.
                if (sample := self._get(self.paths)) is None:
                    break
                taken.append(sample)
        return taken

    def _put(self, queue: Queue[Any], item: object) -> None:
        while not self.stopped.is_set():
            try:
                return queue.put(item, timeout=POLL)
            except Full:
                continue
        return None

    def _get(self, queue: Queue[Any]) -> Any:
        while not self.stopped.is_set():
            try:
                return queue.get(timeout=POLL)
            except Empty:
                continue
        return None


def load(path: str) -> Image.Image:
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def read_list(path: Path) -> list[Sample]:
    """Reads a list of `path label` lines; paths are relative to its folder."""
    pairs = (line.rsplit(None, 1) for line in path.read_text().splitlines() if line.strip())
    return [(str(path.parent / name), int(label)) for name, label in pairs]


def random_square(image: Image.Image) -> torch.Tensor:
    """A random square of half to all of the short side, resized to 224 x 224; uint8 [224, 224, 3]."""
    side = random.randint(max(1, min(image.size) // 2), min(image.size))
    left, top = random.randint(0, image.width - side), random.randint(0, image.height - side)
    crop = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return torch.from_numpy(np.array(crop))


def main() -> None:
    parser = argparse.ArgumentParser(description="Read a list of images once and print how fast that was.")
    parser.add_argument("list", type=Path, help="file of `path label` lines")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--decoders", type=int, default=2)
    arguments = parser.parse_args()
    if not arguments.list.is_file():
        sys.exit(f"{arguments.list}: there is no such list; name a file of `path label` lines")
    loader = TwoQueues(read_list(arguments.list), arguments.batch_size, random_square, decoders=arguments.decoders)
    started = time.perf_counter()
    images = sum(len(labels) for _, labels in loader)
    print(f"{images} images, {images / (time.perf_counter() - started):,.0f} images/s")


if __name__ == "__main__":
    main()
