"""Training steps over one back end, in a process of their own: what `backends` and `largest_batch` measure.

    python -m benchmarks.training rate BACKEND FOLDER DEVICE SECONDS
    python -m benchmarks.training fits BACKEND FOLDER NETWORK BATCH BYTES

Prints the images per second of every network, or whether a batch fits in so many bytes of a GPU's memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers.common import EPOCH, PACKED, SEED, SIDE, WORKERS, files
from benchmarks.torchvision_import import import_torchvision

MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)

BACKENDS: Final = {
    "packtrain": "packtrain",
    "packtrain-gpu": 'packtrain, decode="cuda"',
    "torch": "torch DataLoader, crop-ready tar",
    "files": "torch DataLoader, loose files",
    "dali-cpu": "DALI on the CPU",
    "dali-gpu": "DALI on the GPU",
}
"""Titles of the back ends: those of `packtrain.imagenet_loaders`, which read packtrain's crop-ready dataset; its Loader
that decodes on the GPU; and torch's DataLoader over loose files, as the recipe has it."""
ON_GPU: Final = ("packtrain-gpu", "dali-gpu")
"""The back ends that decode on a GPU."""
ALONE: Final = "none"
"""In place of a network: batches are only taken."""
NETWORKS: Final = {"cpu": (ALONE, "small"), "cuda": (ALONE, "resnet18", "shufflenet_v2_x0_5")}
"""Networks that are trained, by device."""
BATCH: Final = {"cpu": 128, "cuda": 256}
WARM_UP: Final = 8
"""Steps before the clock starts."""
STEPS: Final = 4
"""Steps after which a batch is said to fit: as many as batches are in flight, and one more."""

_FULL: Final = ("out of memory", "out_of_memory", "cuda allocation failed", "cudaerrormemoryallocation")
"""Words of torch, CUDA and DALI, in lower case, when the memory of a GPU is full."""


class Trainer:
    """Takes the steps of a training: in half precision on a GPU, in single precision on a CPU.

    Args:
        name: The network; `ALONE` for none.
        classes: The number of classes.
        device: Where.
    """

    def __init__(self, name: str, classes: int, device: torch.device) -> None:
        torch.manual_seed(SEED)
        self._device: Final = device
        self._network: Any = network(name, classes)
        self._half: Final = device.type == "cuda"
        if self._network is not None:
            self._network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
            self._scaler = torch.amp.GradScaler(device.type, enabled=self._half)

    @property
    def learns(self) -> bool:
        """True if there is a network."""
        return self._network is not None

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        if self._network is None:
            return
        with torch.autocast(self._device.type, torch.float16, enabled=self._half):
            loss: Any = functional.cross_entropy(self._network(images), labels.to(self._device, non_blocking=True))
        self._optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()


def network(name: str, classes: int) -> nn.Module | None:
    """A network with fresh weights; None for `ALONE`."""
    if name == ALONE:
        return None
    if name == "small":
        first, second = nn.Conv2d(3, 16, 7, stride=4), nn.Conv2d(16, 32, 3, stride=4)
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes))
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *head)
    import_torchvision()
    from torchvision import models

    found: nn.Module = models.get_model(name, weights=None, num_classes=classes)
    return found


def batches(
    backend: str, folder: Path, batch_size: int, device: torch.device, workers: int | None = None
) -> Iterator[Any]:
    """An endless stream of normalised images, float32 or on a GPU float16, and labels, on the device.

    Args:
        backend: One of `BACKENDS`.
        folder: What `workloads.prepare` wrote.
        batch_size: Number of images in a batch.
        device: Where the batches go.
        workers: Number of worker processes, for back ends that have them, each of which makes one batch ahead. None:
            next to a GPU one for each core, each of which makes two.
    """
    ahead = 1
    # DALI's threads share a batch, so there are as many however large it is, and the queue is that of all of them.
    if workers is None or backend.startswith("dali"):
        workers, ahead = len(os.sched_getaffinity(0)) if device.type == "cuda" else WORKERS, 2
    if backend == "files":
        return _of_files(folder, batch_size, device, workers, ahead)
    if backend == "packtrain-gpu":
        return _decoded_on_gpu(folder, batch_size, device, workers, ahead)
    return _of_records(backend, folder, batch_size, device, workers, ahead)


def _of_records(
    backend: Any, folder: Path, batch_size: int, device: torch.device, workers: int, ahead: int
) -> Iterator[Any]:
    from benchmarks.peers.packtrain import repeated
    from packtrain import imagenet_loaders, open_dataset

    dataset = open_dataset(folder / PACKED)
    options: dict[str, Any] = {
        "crop": SIDE,
        "seed": SEED,
        "dtype": _dtype(device),
        "num_workers": workers,
        "prefetch_factor": ahead,
        "device": device,
    }
    loader, _ = imagenet_loaders(repeated(dataset), dataset, backend, batch_size=batch_size, **options)
    with loader:
        yield from loader


def _decoded_on_gpu(folder: Path, batch_size: int, device: torch.device, workers: int, ahead: int) -> Iterator[Any]:
    from benchmarks.peers.packtrain import jpeg_dataset
    from packtrain import Loader

    options: dict[str, Any] = {"mean": MEAN, "std": STD, "dtype": _dtype(device), "device": device, "decode": "cuda"}
    loader = Loader(
        jpeg_dataset(folder), batch_size, shuffle=True, seed=SEED, num_workers=workers, prefetch_factor=ahead, **options
    )
    with loader:
        yield from loader


def _of_files(folder: Path, batch_size: int, device: torch.device, workers: int, ahead: int) -> Iterator[Any]:
    """Bytes travel to the device and are normalised there, as the recipes with Pillow-SIMD do it."""
    from torch.utils.data import DataLoader, RandomSampler

    from benchmarks.peers.torch_loader import Files
    from benchmarks.peers.vision import train_transform

    dataset = Files(files(folder), train_transform())
    options: dict[str, Any] = {"num_workers": workers, "prefetch_factor": ahead, "pin_memory": device.type == "cuda"}
    loader = DataLoader(dataset, batch_size, sampler=RandomSampler(dataset, num_samples=EPOCH), **options)
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) * 255 for values in (MEAN, STD))
    mean, std = mean.to(_dtype(device)), std.to(_dtype(device))
    for images, labels in loader:
        images = images.permute(0, 3, 1, 2).to(device, non_blocking=True)
        yield images.to(_dtype(device)).sub_(mean).div_(std), labels.to(device, non_blocking=True)


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float16 if device.type == "cuda" else torch.float32


def rates(backend: str, folder: Path, device: torch.device, least_seconds: float) -> dict[str, float]:
    """Images per second of training every network on one stream of batches, and of the stream alone."""
    torch.backends.cudnn.benchmark = True
    classes, size = classes_of(folder), BATCH[device.type]
    stream, found = batches(backend, folder, size, device), {}
    for name in NETWORKS[device.type]:
        trainer = Trainer(name, classes, device)
        for images, labels in islice(stream, WARM_UP):
            trainer.step(images, labels)
        wait(device)
        started, seconds, count = time.perf_counter(), 0.0, 0
        # An even number, since two workers tend to finish batches in pairs.
        while seconds < least_seconds or count % 2:
            trainer.step(*next(stream)[:2])
            count += 1
            seconds = time.perf_counter() - started
        wait(device)
        found[name] = count * size / (time.perf_counter() - started)
    return found


def fits(backend: str, folder: Path, name: str, batch_size: int, memory: int) -> bool:
    """True if a training of the network with this batch fits in so many bytes of a GPU's memory."""
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    # What the GPU has beyond is occupied, so that a large GPU answers for a smaller one.
    free, _ = torch.cuda.mem_get_info()
    occupied = torch.empty(max(0, free - memory), dtype=torch.uint8, device=device)
    try:
        trainer = Trainer(name, classes_of(folder), device)
        # A worker for each batch: more would only fill the memory of the host.
        for images, labels in islice(batches(backend, folder, batch_size, device, workers=STEPS), STEPS):
            trainer.step(images, labels)
        wait(device)
    except Exception as error:
        if is_full(error):
            return False
        raise
    del occupied
    return True


def is_full(error: BaseException | None) -> bool:
    """True if an error, or what caused it, says that the memory of a GPU is full."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or any(text in str(error).lower() for text in _FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def classes_of(folder: Path) -> int:
    """The number of classes that a network needs for the loose files and for packtrain's dataset."""
    return max(1000, 1 + max(label for _, label in files(folder)))


def wait(device: torch.device) -> None:
    """Waits until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    what, backend, folder, *rest = sys.argv[1:]
    device = torch.device(rest[0] if what == "rate" else "cuda")
    try:
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ModuleNotFoundError("no CUDA", name="torch with CUDA")
        if what == "rate":
            answer: Any = rates(backend, Path(folder), device, float(rest[1]))
        else:
            answer = fits(backend, Path(folder), rest[0], int(rest[1]), int(rest[2]))
    except ModuleNotFoundError as error:
        answer = {"missing": error.name}
    print(json.dumps(answer), flush=True)
    # Threads of DALI may wait for a device whose memory is full.
    os._exit(0)


if __name__ == "__main__":
    main()
